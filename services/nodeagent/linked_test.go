package nodeagent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// servicesOf is an API server that has the service "kubernetes" in default and "db" in each other
// namespace.
type servicesOf struct {
	mu     sync.Mutex
	deaf   bool
	listed []string // namespaces
	events int
}

func (s *servicesOf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPost {
		s.events++
		_, _ = io.WriteString(w, `{}`)
		return
	}
	namespace, ok := strings.CutPrefix(strings.TrimSuffix(r.URL.Path, "/services"), "/api/v1/namespaces/")
	if s.deaf || !ok {
		http.Error(w, "switched off by the test", http.StatusForbidden)
		return
	}
	s.listed = append(s.listed, namespace)
	name := "db"
	if namespace == "default" {
		name = "kubernetes"
	}
	_, _ = fmt.Fprintf(w, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[
		{"metadata":{"name":%q,"namespace":%q},"spec":{"clusterIP":"10.0.0.1","ports":[{"port":1}]}}]}`, name, namespace)
}

// saw is which namespaces were listed since it was last asked, and how many Events there were.
func (s *servicesOf) saw() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := fmt.Sprintf("%v, %d Events", s.listed, s.events)
	s.listed, s.events = nil, 0
	return out
}

func TestServicesAreReadAndKeptOnlyForPodsThatWantThem(t *testing.T) {
	t.Parallel()
	api := &servicesOf{}
	srv := httptest.NewServer(api)
	defer srv.Close()
	c, err := kube.Load(kube.Config{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	log := slog.New(slog.DiscardHandler)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	a := &Agent{objects: volume.NewObjects(c, -1, nil), linked: map[string][]corev1.Service{}}
	pod := func(namespace string, links bool) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{EnableServiceLinks: &links}}
		p.Namespace = namespace
		return p
	}
	for _, row := range []struct {
		name string
		ctx  context.Context //nolint:containedctx // a call's
		pod  *corev1.Pod
		deaf bool
		api  string // --pod-api-address
		vars string // the hosts among the variables
		saw  string
	}{
		{"nothing is known", t.Context(), pod("a", true), true, "", "", "[], 2 Events"},
		{"nobody waits any more", over, pod("a", true), true, "", "", "[], 0 Events"},
		{"both are read", t.Context(), pod("a", true), false, "", "DB_SERVICE_HOST KUBERNETES_SERVICE_HOST", "[default a], 0 Events"},
		{"no links", t.Context(), pod("b", false), false, "", "KUBERNETES_SERVICE_HOST", "[default], 0 Events"},
		{"the API server's address is given", t.Context(), pod("b", true), false, "10.9.9.9:443", "DB_SERVICE_HOST KUBERNETES_SERVICE_HOST", "[b], 0 Events"},
		{"and no links", t.Context(), pod("b", false), false, "10.9.9.9:443", "KUBERNETES_SERVICE_HOST", "[], 0 Events"},
		{"in default", t.Context(), pod("default", true), false, "", "KUBERNETES_SERVICE_HOST", "[default], 0 Events"},
		{"those of before", t.Context(), pod("a", true), true, "", "DB_SERVICE_HOST KUBERNETES_SERVICE_HOST", "[], 0 Events"},
	} {
		api.mu.Lock()
		api.deaf = row.deaf
		api.mu.Unlock()
		a.cfg.PodAPI, a.recorder = row.api, kube.NewRecorder(c, "kubelet", "n", log)
		vars := slices.Sorted(maps.Keys(a.services(row.ctx, row.pod)))
		vars = slices.DeleteFunc(vars, func(v string) bool { return !strings.HasSuffix(v, "_SERVICE_HOST") })
		if err := a.recorder.Run(over); err != nil { // writes what waits
			t.Fatal(err)
		}
		if got := strings.Join(vars, " "); got != row.vars {
			t.Errorf("%s: %s, want %s", row.name, got, row.vars)
		}
		if got := api.saw(); got != row.saw {
			t.Errorf("%s: the API server saw %s, want %s", row.name, got, row.saw)
		}
	}
	a.forgetServices(map[types.UID]*corev1.Pod{"u": pod("b", true)})
	if got := slices.Sorted(maps.Keys(a.linked)); !slices.Equal(got, []string{"b", "default"}) {
		t.Errorf("services of %q are kept", got)
	}
}
