package nodeagent_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent"
)

// TestAgentsThatDieAndRuntimesThatVanishStartNothingTwice runs pods while the
// agent is stopped without grace, again and again, and its runtime cannot be reached at times.
func TestAgentsThatDieAndRuntimesThatVanishStartNothingTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rnd := rand.New(rand.NewPCG(5, 5))
	line := &cut{ClientConnInterface: w.runtime.Conn()}
	options := func(c *nodeagent.Config, d *nodeagent.Deps) {
		c.Grace, d.Runtime = time.Nanosecond, line
		c.ErrorWait, c.NoEvents = 500*time.Millisecond, rnd.IntN(2) == 0
	}
	pause := func() { <-time.After(time.Duration(rnd.IntN(700)) * time.Millisecond) }
	a := w.newAgent(options)
	stop := w.run("agent", a)
	uids := map[string]types.UID{}
	for i := range 24 {
		name := fmt.Sprintf("p%d", i)
		seconds := []string{"200ms", "1s", "3s"}[rnd.IntN(3)]
		uids[name] = w.create(name, map[string]any{"containers": []map[string]any{
			{"name": "a", "image": "app:1"}, {"name": "b", "image": "pull/app:1"},
		}}, runs(seconds))
		switch rnd.IntN(4) {
		case 0:
			w.ok(stop())
			pause()
			stop = w.run("agent", w.newAgent(options))
		case 1:
			line.off.Store(true)
			pause()
			line.off.Store(false)
		default:
			pause()
		}
	}
	for name, uid := range uids {
		pod := w.becomes(name, corev1.PodSucceeded)
		for _, c := range pod.Status.ContainerStatuses {
			if c.RestartCount != 0 {
				t.Errorf("%s: container %s was restarted %d times, want never", name, c.Name, c.RestartCount)
			}
		}
		if got := w.containers(uid); !slices.Equal(got, []string{"a/0 exited", "b/0 exited"}) {
			t.Errorf("%s: containers are %v, want each once", name, got)
		}
	}
	for name := range uids {
		w.remove(name, nil)
	}
	for name, uid := range uids {
		w.vanishes(name)
		w.eventually("everything of "+name+" is removed", func() string { return strings.Join(w.containers(uid), " ") })
	}
}
