package nodeagent_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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
			_, _ = rw.Write([]byte(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
				{"metadata":{"name":"db","namespace":"default"},"spec":{"clusterIP":"10.0.0.7","ports":[{"port":1}]}}]}`))
		}
	}))
	t.Cleanup(srv.Close)
	c, err := kube.Load(kube.Config{URL: srv.URL})
	w.ok(err)
	t.Cleanup(c.Close)
	deaf.Store(true)
	line := &creations{ClientConnInterface: w.runtime.Conn()}
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { d.Kube, d.Runtime = c, line })
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
	deaf.Store(true)
	w.create("third", nil, runs(forever))
	runsNow("those of before are used", "third")
	for pod, want := range map[string]string{"first": "", "second": "10.0.0.7", "third": "10.0.0.7"} {
		env, created := line.environments.Load(pod)
		if vars, ok := env.(map[string]string); !created || !ok || vars["DB_SERVICE_HOST"] != want {
			t.Errorf("%s: the environment is %v, want the service's address %q", pod, env, want)
		}
	}
}

// creations is a connection to a runtime that notes with which environment containers are created.
type creations struct {
	grpc.ClientConnInterface
	environments sync.Map // of the pod's name: map[string]string
}

func (c *creations) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if r, ok := args.(*runtimeapi.CreateContainerRequest); ok {
		vars := map[string]string{}
		for _, v := range r.GetConfig().GetEnvs() {
			vars[v.GetKey()] = string(v.GetValue())
		}
		c.environments.Store(r.GetSandboxConfig().GetMetadata().GetName(), vars)
	}
	return c.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
