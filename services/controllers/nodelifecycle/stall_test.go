package nodelifecycle_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

// follow lets time pass as the service does: zones are judged and nodes looked at
// every 5 s while the collections can be read, the view of the zones is forgotten
// when they cannot be for longer, and the zone hands out by its rate. It returns
// when each node got its NoExecute taint, counted from the beginning.
func (w *world) follow(d time.Duration, looked bool, alive ...string) map[string]time.Duration {
	w.t.Helper()
	began, zone := w.now, rules.Zone{}
	placed, tokens, judged := map[string]time.Duration{}, 1.0, w.now
	for w.now.Before(began.Add(d)) {
		w.now = w.now.Add(5 * time.Second)
		for _, name := range alive {
			w.renew(name)
		}
		if _, err := (index{w}).Fresh(w.t.Context()); err == nil {
			w.refresh()
			judged = w.now
		} else if w.now.Sub(judged) > 15*time.Second {
			w.rec.Zones().Forget(0)
		}
		if !looked {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(w.live)) {
			_ = w.look(name) // what fails is looked at again
		}
		tokens = min(1, tokens+5*w.rates[zone.String()])
		if list := w.queues[zone.String()]; len(list) > 0 && tokens >= 1 {
			w.queues[zone.String()] = list[:1]
			w.hand(zone)
			w.queues[zone.String()] = append(w.queues[zone.String()], list[1:]...)
			if strings.Contains(w.taints(list[0]), ":"+"NoExecute") {
				placed[list[0]] = w.now.Sub(began)
				tokens--
			}
		}
	}
	return placed
}

// Issue 4: a part of the way from the API server stops for five minutes, or the
// queue does. Four of ten nodes die at the same moment, which nobody can know.
func TestEachPartStoppedForFiveMinutesTaintsNobodyAndNoBurstFollows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		part string
		// fresh is what the index tells when the part has been away for so long.
		fresh func(w *world, since time.Time) (rules.Fresh, error)
		queue bool // keys are not handed out
	}{
		{part: "reflector", fresh: func(w *world, since time.Time) (rules.Fresh, error) {
			if w.now.Sub(since) > 15*time.Second {
				return rules.Fresh{}, nodelifecycle.ErrStale
			}
			return rules.Fresh{Known: since, Heard: since}, nil
		}},
		{part: "log of the leases", fresh: func(w *world, since time.Time) (rules.Fresh, error) {
			if w.now.Sub(since) > 15*time.Second {
				return rules.Fresh{}, nodelifecycle.ErrStale
			}
			return rules.Fresh{Known: since, Heard: w.now}, nil
		}},
		{part: "log of the leases, while node objects flow and nobody calls it stale", fresh: func(w *world, since time.Time) (rules.Fresh, error) {
			return rules.Fresh{Known: since, Heard: w.now}, nil
		}},
		{part: "log, and nobody calls it stale", fresh: func(_ *world, since time.Time) (rules.Fresh, error) {
			return rules.Fresh{Known: since, Heard: since}, nil
		}},
		{part: "index", fresh: func(*world, time.Time) (rules.Fresh, error) { return rules.Fresh{}, errDown }},
		{part: "queue", fresh: func(w *world, _ time.Time) (rules.Fresh, error) {
			return rules.Fresh{Known: w.now, Heard: w.now}, nil
		}, queue: true},
	} {
		for _, late := range []time.Duration{0, 10 * time.Second} { // live again before what was missed is shown
			t.Run(fmt.Sprint(c.part, ", shown ", late, " late"), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				var all []string
				for i := range 10 {
					all = append(all, fmt.Sprint("n", i))
					w.node(all[i], nil)
				}
				alive := all[4:]
				current := func() (rules.Fresh, error) { return rules.Fresh{Known: w.now, Heard: w.now}, nil }
				w.fresh = current
				w.follow(time.Minute, true, all...)
				since := w.now
				w.fresh = func() (rules.Fresh, error) { return c.fresh(w, since) }
				w.frozen = !c.queue
				w.follow(5*time.Minute, !c.queue, alive...)
				calm := func(when string, names ...string) {
					t.Helper()
					for _, name := range names {
						if w.live[name].Ready() != rules.True || w.taints(name) != "" {
							t.Errorf("%s: %s is %s %q", when, name, w.live[name].Ready(), w.taints(name))
						}
					}
				}
				calm("while it is stopped", all...)
				w.fresh = current
				w.follow(late, true, alive...)
				w.frozen = false
				w.follow(45*time.Second-late, true, alive...)
				calm("a grace begins when it is back", all...)
				placed := w.follow(2*time.Minute, true, alive...)
				calm("afterwards", alive...)
				at := slices.Sorted(maps.Values(placed))
				if len(at) != 4 {
					t.Fatalf("decisions resume for %v, want the four that are dead", placed)
				}
				for i := 1; i < len(at); i++ {
					if at[i]-at[i-1] < 10*time.Second {
						t.Errorf("a burst: tainted at %v by a rate of one in 10 s", at)
					}
				}
			})
		}
	}
}
