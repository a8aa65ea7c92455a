package main

import (
	"context"
	_ "embed"
	"io"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/deltaplane/deltaplane/client/controller"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

//go:embed crd.yaml
var crd string

func siteOf(title string) *Site {
	return &Site{
		TypeMeta:   metav1.TypeMeta{APIVersion: "example.com/v1", Kind: "Site"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"},
		Spec:       SiteSpec{Title: title},
	}
}

func TestSites(t *testing.T) {
	cfg := dptest.Config{Resources: []string{"sites.example.com", "configmaps"}, Objects: []any{crd}}
	dptest.Run(t, cfg, 30, func(t *testing.T, env *dptest.Env) {
		ctl := controller.New(env.Index(), env.Queue(), controller.Options{
			Name: "sites", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		}).For(sites.collection).Owns(configMaps.collection)
		config := &rest.Config{Host: env.API(), QPS: -1}
		config.Wrap(ctl.Transport(""))
		api, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		p := publisher{writer{api, ctl}}
		env.Go(func(ctx context.Context) error { return ctl.Run(ctx, p.reconcile) })
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
			if page == nil || page.Data["index.html"] != contentOf(site) {
				t.Fatalf("the page is %+v", page)
			}
			if got := dptest.Get[Site](env, "sites", "default/hello"); got.Status.ObservedGeneration != got.Generation {
				t.Errorf("generation %d is published, the Site has %d", got.Status.ObservedGeneration, got.Generation)
			}
		}
		env.Delete("sites", "default/hello")
		settled()
		if site := dptest.Get[Site](env, "sites", "default/hello"); site != nil {
			t.Errorf("the Site did not go: %+v", site)
		}
		if archive := dptest.Get[corev1.ConfigMap](env, "configmaps", "default/hello-archive"); archive == nil || archive.Data["index.html"] != contentOf(siteOf("Hello again")) {
			t.Errorf("the archive is %+v", archive)
		}
	})
}
