package controller

import (
	"context"
	"time"

	examplev1 "example.com/kubebuilder-operator/api/v1"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var _ = Describe("Site Controller", func() {
	It("publishes a page in two replicas, and archives it", func(ctx SpecContext) {
		SetDefaultEventuallyTimeout(time.Minute)
		for range 2 {
			mgr := newManager(GinkgoTB(), cfg, index, queue)
			replica, stop := context.WithCancel(context.Background())
			stopped := make(chan error, 1)
			go func() { stopped <- mgr.Start(replica) }()
			DeferCleanup(func() {
				stop()
				Expect(<-stopped).To(Succeed())
			})
		}
		page := func(name string) func(g Gomega) string {
			return func(g Gomega) string {
				var have corev1.ConfigMap
				g.Expect(k8sClient.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &have)).To(Succeed())
				return have.Data["index.html"]
			}
		}
		contentOf := func(title string) string { return pageOf("", "", siteOf(title)).Data["index.html"] }

		By("creating a Site")
		site := siteOf("Hello")
		key := client.ObjectKeyFromObject(site)
		Expect(k8sClient.Create(ctx, site)).To(Succeed())
		Eventually(page("hello")).Should(Equal(contentOf("Hello")))

		By("changing it")
		Eventually(func(g Gomega) { // a replica may write its status meanwhile
			g.Expect(k8sClient.Get(ctx, key, site)).To(Succeed())
			site.Spec.Title = "Hello again"
			g.Expect(k8sClient.Update(ctx, site)).To(Succeed())
		}).Should(Succeed())
		Eventually(page("hello")).Should(Equal(contentOf("Hello again")))
		Eventually(func(g Gomega) {
			var have examplev1.Site
			g.Expect(k8sClient.Get(ctx, key, &have)).To(Succeed())
			g.Expect(have.Status).To(Equal(examplev1.SiteStatus{ObservedGeneration: have.Generation, Page: "hello"}))
		}).Should(Succeed())

		By("deleting it")
		Expect(k8sClient.Delete(ctx, site)).To(Succeed())
		Eventually(func() bool { return apierrors.IsNotFound(k8sClient.Get(ctx, key, &examplev1.Site{})) }).Should(BeTrue())
		Expect(page("hello-archive")(Default)).To(Equal(contentOf("Hello again")))
	}, SpecTimeout(5*time.Minute))
})
