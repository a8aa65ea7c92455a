package system

import (
	"fmt"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
)

// A node dies, and while its grace runs every service is killed and started again: the grace is
// neither shortened nor started over. Then its pods are counted down in batches five seconds apart,
// and before each batch another service is killed: no eviction is lost, none comes early, none is
// late by more than a second.
func TestRealCountdownsSurviveTheKillOfAnyService(t *testing.T) {
	t.Parallel()
	t.Run("queues in the memory engine with a log on disk", func(t *testing.T) {
		t.Parallel()
		killInCountdowns(t, nil, nil)
	})
	t.Run("queues in Redis with every write synced", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("-short")
		}
		redis := embeddedtest.DurableRedis(t)
		killInCountdowns(t, []string{"--redis-url", redis.URL()}, func() {
			redis.Kill()
			redis.Start()
		})
	})
}

// killGrace bears a gap of two fifths of it, 8 s, which is more than it takes to be over the kill
// of any service.
const killGrace = 20 * time.Second

// killInCountdowns kills the store too when restart, which kills and starts it, is given.
func killInCountdowns(t *testing.T, store []string, restart func()) {
	k := startKube(t, "--nodes", "4", "--lease-seconds", "4")
	p := k.startPlane(t, store, lifecycleArgs(killGrace))
	p.run(t, "controllers")
	w := k.watch(t)
	p.ready(t, "controllers")

	services := []string{"reflector", "indexer", "queue", "controllers", "nats"}
	type blow struct {
		what string
		run  func()
	}
	var blows []blow
	for _, service := range services {
		blows = append(blows, blow{service, func() {
			p.kill(t, service)
			p.run(t, service)
		}})
	}
	if restart != nil {
		blows = append(blows, blow{"Redis", restart})
	}
	blows = append(blows, blow{"everything", func() {
		for _, service := range services {
			p.kill(t, service)
		}
		if restart != nil {
			restart()
		}
		for _, service := range []string{"nats", "queue", "indexer", "reflector", "controllers"} {
			p.run(t, service)
		}
	}})

	const (
		first, every = 6, 5 // seconds
		before       = 3500 * time.Millisecond
		each         = 5 // pods
	)
	due := func(i int) int { return first + i*every }
	all := map[string]int{}
	for i := range blows {
		for j := range each {
			name := fmt.Sprintf("p-%d-%d", i, j)
			all[name] = due(i)
			k.podOn(t, "node-1", name, unreachable, due(i))
		}
	}
	k.podOn(t, "node-2", "elsewhere", unreachable, 0)
	silent := time.Now()
	k.silence(t, true, "node-1")
	for i, b := range blows[:len(services)] {
		sleepUntil(t, silent.Add(time.Second+time.Duration(i)*3500*time.Millisecond))
		b.run()
	}
	w.onlyTainted(t, 2*killGrace, "the silent node is tainted", "node-1")
	w.mu.Lock()
	seen, added := w.since("node-1")
	w.mu.Unlock()
	t.Logf("tainted %.2f s after the node was stopped, over a kill of every service", seen.Sub(silent).Seconds())
	k.outlived(t, "node-1", seen, killGrace)
	if took := seen.Sub(silent); took > killGrace+3*time.Second {
		t.Errorf("tainted after %v, want a grace of %v", took, killGrace)
	}
	for i, b := range blows {
		deadline := added.Add(time.Duration(due(i)) * time.Second)
		sleepUntil(t, deadline.Add(-before))
		b.run()
		t.Logf("%s killed and started again %.1f s before the next deadline", b.what, time.Until(deadline).Seconds())
	}
	w.inTime(t, added, all)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.changes) != 1 || !w.evicted("elsewhere").IsZero() {
		t.Errorf("taints came and went: %+v, a pod elsewhere was evicted at %v; want one taint", w.changes, w.evicted("elsewhere"))
	}
}

func sleepUntil(t *testing.T, at time.Time) {
	t.Helper()
	select {
	case <-time.After(time.Until(at)):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}
