package controller

import (
	"context"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	examplev1 "example.com/kubebuilder-operator/api/v1"
	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	deltaplane "github.com/deltaplane/deltaplane/client/controllerruntime"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

func siteOf(title string) *examplev1.Site {
	return &examplev1.Site{
		TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Site"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Spec:       examplev1.SiteSpec{Title: title},
	}
}

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, examplev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// newManager is a replica of the operator.
func newManager(t testing.TB, cfg *rest.Config, index, queue grpc.ClientConnInterface) ctrl.Manager {
	t.Helper()
	operator, err := deltaplane.New(index, queue, deltaplane.Options{
		Name: "sites", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: newScheme(t), NewCache: operator.NewCache, NewClient: operator.NewClient,
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: ctrlconfig.Controller{SkipNameValidation: &yes},
	})
	if err != nil {
		t.Fatal(err)
	}
	reconciler := &SiteReconciler{Client: mgr.GetClient(), Scheme: mgr.GetScheme()}
	if err := reconciler.SetupWithManager(mgr, operator); err != nil {
		t.Fatal(err)
	}
	return mgr
}

// Every seed is another adverse environment; see the documentation of the package testing.
func TestSitesArePublishedAndArchived(t *testing.T) {
	crd, err := os.ReadFile("../../config/crd/bases/example.com_sites.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg := dptest.Config{Resources: []string{"sites.example.com", "configmaps"}, Objects: []any{string(crd)}}
	dptest.Run(t, cfg, 20, func(t *testing.T, env *dptest.Env) {
		cfg := &rest.Config{Host: env.API(), QPS: -1}
		for range 2 {
			env.Go(newManager(t, cfg, env.Index(), env.Queue()).Start)
		}
		settled := func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := env.Settled(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, title := range []string{"Hello", "Hello again"} {
			site := siteOf(title)
			env.Apply(site)
			settled()
			page := dptest.Get[corev1.ConfigMap](env, "configmaps", "default/hello")
			if page == nil || page.Data["index.html"] != pageOf("", "", site).Data["index.html"] {
				t.Fatalf("the page is %+v", page)
			}
			if got := dptest.Get[examplev1.Site](env, "sites", "default/hello"); got.Status.ObservedGeneration != got.Generation {
				t.Errorf("generation %d is published, the Site has %d", got.Status.ObservedGeneration, got.Generation)
			}
		}
		env.Delete("sites", "default/hello")
		settled()
		if site := dptest.Get[examplev1.Site](env, "sites", "default/hello"); site != nil {
			t.Errorf("the Site did not go: %+v", site)
		}
		archive := dptest.Get[corev1.ConfigMap](env, "configmaps", "default/hello-archive")
		if archive == nil || archive.Data["index.html"] != pageOf("", "", siteOf("Hello again")).Data["index.html"] {
			t.Errorf("the archive is %+v", archive)
		}
	})
}
