// Package caches is where controller-runtime's tests of pkg/cache are compiled, see package
// upstream. What is here takes the place of the environment that those tests start.
package caches

import (
	"testing"

	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func TestSource(t *testing.T) {
	gomega.RegisterFailHandler(ginkgo.Fail)
	ginkgo.RunSpecs(t, "Cache Suite")
}

var (
	cfg       *rest.Config
	clientset *kubernetes.Clientset
)

var _ = ginkgo.BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(ginkgo.GinkgoWriter), zap.UseDevMode(true)))
	var err error
	cfg, err = ctrl.GetConfig() // of the variable KUBECONFIG
	must(err)
	clientset, err = kubernetes.NewForConfig(cfg)
	must(err)
})

func must(err error) { gomega.ExpectWithOffset(1, err).NotTo(gomega.HaveOccurred()) }
