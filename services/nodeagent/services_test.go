package nodeagent_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent"
)

func TestAContainerStartsThoughTheServicesCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	target, err := url.Parse(w.kube.Address())
	w.ok(err)
	var deaf atomic.Bool
	proxy := httputil.NewSingleHostReverseProxy(target)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case !strings.HasSuffix(r.URL.Path, "/services"):
			proxy.ServeHTTP(rw, r)
		case deaf.Load():
			http.Error(rw, "switched off by the test", http.StatusServiceUnavailable)
		default:
			_, _ = rw.Write([]byte(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`))
		}
	}))
	t.Cleanup(srv.Close)
	c, err := kube.Load(kube.Config{URL: srv.URL})
	w.ok(err)
	t.Cleanup(c.Close)
	deaf.Store(true)
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { d.Kube = c })
	w.create("first", nil, runs(forever))
	w.told("first", "ServicesUnknown: containers start without the variables of services: ")
	runsNow := func(what, pod string) {
		w.eventually(what, func() string {
			if all := w.allContainers(); !slices.Contains(all, pod+" c") {
				return strings.Join(all, ", ")
			}
			return ""
		})
	}
	runsNow("it starts without them", "first")
	deaf.Store(false)
	w.create("second", nil, runs(forever))
	runsNow("the services are known", "second")
	if all := w.events("second"); strings.Contains(all, "ServicesUnknown") {
		t.Errorf("Events of a pod that was given its services: %s", all)
	}
}
