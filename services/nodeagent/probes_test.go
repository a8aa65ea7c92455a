package nodeagent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/deltaplane/deltaplane/services/nodeagent"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// answers are what containers answer to each kind of probe. A
// simulated container listens nowhere, so the test listens for it.
type answers struct {
	srv  *httptest.Server
	good [3]atomic.Bool
}

const (
	readiness = iota
	liveness
	startup
)

func newAnswers(t *testing.T) *answers {
	t.Helper()
	a := &answers{}
	a.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for kind, path := range []string{"/readiness", "/liveness", "/startup"} {
			if r.URL.Path == path && !a.good[kind].Load() {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	}))
	t.Cleanup(a.srv.Close)
	return a
}

// probe asks the test's server once a second.
func (a *answers) probe(t *testing.T, path string, more map[string]any) map[string]any {
	t.Helper()
	host, port, err := net.SplitHostPort(a.srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p := map[string]any{"httpGet": map[string]any{"host": host, "port": port, "path": path}, "periodSeconds": 1, "failureThreshold": 1}
	maps.Copy(p, more)
	return p
}

// is waits until the one container of a pod has started, is ready and was restarted as often.
func (w *world) is(name string, started, ready bool, restarts int32) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("%s: started %v, ready %v, %d restarts", name, started, ready, restarts), func() string {
		pod := w.pod(name)
		if pod == nil || len(pod.Status.ContainerStatuses) != 1 {
			return "it has no status"
		}
		c := pod.Status.ContainerStatuses[0]
		podReady := false
		for _, k := range pod.Status.Conditions {
			podReady = podReady || k.Type == "Ready" && k.Status == "True"
		}
		if c.State.Running != nil && c.Started != nil && *c.Started == started && c.Ready == ready && podReady == ready && c.RestartCount == restarts {
			return ""
		}
		text, _ := json.Marshal(pod.Status)
		return string(text)
	})
}

func TestAContainerIsReadyAndRestartedAsItsProbesSay(t *testing.T) {
	t.Parallel()
	w, a := newWorld(t), newAnswers(t)
	stop := w.start(nil)
	a.good[liveness].Store(true)
	w.create("p", map[string]any{"restartPolicy": "Always", "containers": []map[string]any{{
		"name": "c", "image": "app:1", "readinessProbe": a.probe(t, "/readiness", nil),
		"livenessProbe": a.probe(t, "/liveness", nil), "startupProbe": a.probe(t, "/startup", map[string]any{"failureThreshold": 1000}),
	}}}, runs(forever))
	w.is("p", false, false, 0)
	w.told("p", "Unhealthy: Container c: Startup probe failed: HTTP probe failed with statuscode: 503")
	a.good[startup].Store(true)
	w.is("p", true, false, 0)
	w.told("p", "Unhealthy: Container c: Readiness probe failed")
	a.good[readiness].Store(true)
	w.is("p", true, true, 0)

	w.ok(stop())
	a.good[startup].Store(false) // an agent that is started again asks no container that has started
	stop = w.start(nil)
	a.good[readiness].Store(false)
	w.is("p", true, false, 0)
	a.good[readiness].Store(true)
	w.is("p", true, true, 0)

	a.good[startup].Store(true)
	a.good[liveness].Store(false)
	w.told("p", "Killing: Container c failed liveness probe, will be restarted")
	a.good[liveness].Store(true)
	w.eventually("the container was restarted, and is ready again", func() string {
		c := w.pod("p").Status.ContainerStatuses[0]
		if c.RestartCount > 0 && c.Ready {
			return ""
		}
		return fmt.Sprintf("%d restarts, ready %v", c.RestartCount, c.Ready)
	})
	w.ok(stop())
}

func TestProbesOfSimulatedContainersPassWhereTheAgentIsMadeSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { d.Probe = prober.Passes })
	nobody := map[string]any{"exec": map[string]any{"command": []string{"true"}}, "failureThreshold": 1, "periodSeconds": 1}
	w.create("p", map[string]any{"restartPolicy": "Always", "containers": []map[string]any{{
		"name": "c", "image": "app:1", "readinessProbe": nobody, "livenessProbe": nobody, "startupProbe": nobody,
	}}}, runs(forever))
	w.is("p", true, true, 0)
	if all := w.events("p"); strings.Contains(all, "robe") {
		t.Errorf("Events tell of probes: %s", all)
	}
}
