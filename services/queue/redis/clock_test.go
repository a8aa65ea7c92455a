package redis_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// steps are what a clock may do between two transactions.
var steps = map[string]time.Duration{"an hour forward": time.Hour, "an hour back": -time.Hour, "a second forward": time.Second, "a second back": -time.Second}

// stepping is configured with time that passes, and a clock of Redis that steps.
func stepping(url string) (cfg redis.Config, skew, step *atomic.Int64) {
	skew, step = new(atomic.Int64), new(atomic.Int64)
	return redis.Config{
		URL: url, Skew: func() time.Duration { return time.Duration(skew.Load()) }, Step: func() time.Duration { return time.Duration(step.Load()) },
	}, skew, step
}

func TestAStepOfTheClockMovesNothing(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, skew, step := stepping(start(t).URL())
			e := newEngine(t, cfg)
			q := configure(t, e, workqueue.Config{LeaseFor: 20 * time.Second})
			apply(t, q, add("held", "later"))
			apply(t, q, take(1))
			delayed := add("delayed")
			delayed.Ops[0].Delay = (10 * time.Second).Microseconds()
			apply(t, q, delayed)

			step.Add(int64(by))
			apply(t, q, workqueue.Transaction{})
			if got := e.ClockSteps(); got != 1 {
				t.Errorf("%d steps counted, want 1", got)
			}
			if r := apply(t, q, take(1)); len(r.Leases) != 1 || r.Leases[0].Key != "later" {
				t.Fatalf("leases %v, want later, for what is ready goes on", r.Leases)
			}
			skew.Add(int64(8 * time.Second))
			if r := apply(t, q, take(1)); len(r.Leases) != 0 {
				t.Errorf("%s came 2 s early", r.Leases[0].Key)
			}
			skew.Add(int64(2500 * time.Millisecond))
			if r := apply(t, q, take(1)); len(r.Leases) != 1 || r.Leases[0].Key != "delayed" {
				t.Errorf("leases %v, want what was delayed", r.Leases)
			}
			// A lease may last once more as long as it was: after a step back nobody
			// knows in which of the two times it was granted.
			skew.Add(int64(7 * time.Second))
			if r := apply(t, q, take(1)); len(r.Leases) != 0 {
				t.Errorf("%s was handed out while it was held", r.Leases[0].Key)
			}
			skew.Add(int64(14 * time.Second))
			if r := apply(t, q, take(5)); len(r.Leases) < 1 || r.Leases[0].Key != "held" {
				t.Errorf("leases %v, want what a dead worker held", r.Leases)
			}
		})
	}
}

func TestEachPartitionIsPutRightOnce(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _, step := stepping(start(t).URL())
			e := newEngine(t, cfg)
			q := configure(t, e, workqueue.Config{LeaseFor: 20 * time.Second, Partitions: 2})
			other := at(q, 1)
			for _, of := range []engine.Queue{q, other} {
				apply(t, of, add("held"))
				apply(t, of, take(1))
			}
			step.Add(int64(by))
			for range 3 {
				for _, of := range []engine.Queue{q, other} {
					if r := apply(t, of, take(1)); len(r.Leases) != 0 {
						t.Errorf("%s was handed out while it was held", r.Leases[0].Key)
					}
				}
			}
			if got := e.ClockSteps(); got != 2 {
				t.Errorf("%d steps counted, want one for each partition", got)
			}
		})
	}
}

func TestAServerThatComesAfterAStepHandsNothingOutTwice(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, skew, step := stepping(start(t).URL())
			old := newEngine(t, cfg)
			q := configure(t, old, workqueue.Config{LeaseFor: 20 * time.Second})
			apply(t, q, add("old", "new"))
			apply(t, q, take(1))

			step.Add(int64(by))
			other, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
			if err != nil {
				t.Fatal(err)
			}
			if r := apply(t, other, take(1)); len(r.Leases) != 1 || r.Leases[0].Key != "new" {
				t.Fatalf("the new server leased %v, want new", r.Leases)
			}
			apply(t, q, workqueue.Transaction{}) // the old one puts the clock right
			skew.Add(int64(15 * time.Second))
			if a, b := apply(t, q, take(5)), apply(t, other, take(5)); len(a.Leases)+len(b.Leases) != 0 {
				t.Errorf("leased %v and %v while both keys were held", a.Leases, b.Leases)
			}
			skew.Add(int64(26 * time.Second))
			a, b := apply(t, q, take(5)), apply(t, other, take(5))
			if len(a.Leases)+len(b.Leases) != 2 {
				t.Errorf("leased %v and %v, want both keys of dead workers", a.Leases, b.Leases)
			}
		})
	}
}

func TestAServerThatComesAfterAStepLetsNoDelayEndEarly(t *testing.T) {
	t.Parallel()
	cfg, skew, step := stepping(start(t).URL())
	old := newEngine(t, cfg)
	q := configure(t, old, workqueue.Config{LeaseFor: 20 * time.Second})
	delayed := add("delayed")
	delayed.Ops[0].Delay = (10 * time.Second).Microseconds()
	apply(t, q, delayed)
	woken := wakes(t, old)
	for len(woken) > 0 {
		<-woken
	}

	step.Add(int64(time.Hour))
	other, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	r := apply(t, other, take(1))
	if len(r.Leases) != 0 {
		t.Errorf("%s came early", r.Leases[0].Key)
	}
	if wait := r.NextDue - r.Now; wait < 0.5e6 || wait > 1e6 {
		t.Errorf("next due in %d us, want when the other has looked", wait)
	}
	if name := <-woken; name != "dev/job" { // the old one is asked to look
		t.Errorf("woken for %q", name)
	}
	apply(t, q, workqueue.Transaction{})
	skew.Add(int64(5 * time.Second))
	if r := apply(t, other, take(1)); len(r.Leases) != 0 {
		t.Errorf("%s came early, when the clock was right again", r.Leases[0].Key)
	}
	skew.Add(int64(5500 * time.Millisecond))
	if r := apply(t, other, take(1)); len(r.Leases) != 1 {
		t.Error("what was delayed did not come")
	}
}

func TestAServerAloneLetsDelaysEndAfterItHasAsked(t *testing.T) {
	t.Parallel()
	cfg, skew, _ := stepping(start(t).URL())
	q := configure(t, newEngine(t, cfg), workqueue.Config{LeaseFor: 20 * time.Second})
	delayed := add("delayed")
	delayed.Ops[0].Delay = time.Second.Microseconds()
	apply(t, q, delayed)
	skew.Add(int64(2 * time.Second))
	alone, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, alone, workqueue.Transaction{})
	skew.Add(int64(1100 * time.Millisecond))
	if r := apply(t, alone, take(1)); len(r.Leases) != 1 {
		t.Error("what was delayed did not come")
	}
}

func TestAServerAloneLetsNoLeaseExpireUntilItKnowsTheClock(t *testing.T) {
	t.Parallel()
	cfg, skew, step := stepping(start(t).URL())
	q := configure(t, newEngine(t, cfg), workqueue.Config{LeaseFor: 20 * time.Second})
	apply(t, q, add("held", "ready"))
	apply(t, q, take(1))
	step.Add(int64(time.Hour))
	alone, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	r := apply(t, alone, take(5))
	if len(r.Leases) != 1 || r.Leases[0].Key != "ready" {
		t.Errorf("leases %v, want what is ready and not what is held", r.Leases)
	}
	if wait := r.NextDue - r.Now; wait < 19e6 || wait > 20e6 {
		t.Errorf("next due in %d us, want when leases may expire", wait)
	}
	skew.Add(int64(15 * time.Second))
	if r := apply(t, alone, take(5)); len(r.Leases) != 0 {
		t.Errorf("leases %v: they may not have expired", r.Leases)
	}
	skew.Add(int64(5100 * time.Millisecond))
	if r := apply(t, alone, take(5)); len(r.Leases) != 2 {
		t.Errorf("leases %v, want both keys", r.Leases)
	}
}

func TestAStepThatOnlyAnotherServerSawIsNotFollowedBack(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, skew, step := stepping(start(t).URL())
			old := newEngine(t, cfg)
			q := configure(t, old, workqueue.Config{LeaseFor: 20 * time.Second})
			apply(t, q, add("held"))
			other, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
			if err != nil {
				t.Fatal(err)
			}
			apply(t, other, workqueue.Transaction{})
			skew.Add(int64(21 * time.Second))
			apply(t, other, workqueue.Transaction{})
			apply(t, q, take(1))
			step.Add(int64(by))
			apply(t, q, workqueue.Transaction{})
			step.Add(-int64(by)) // both steps passed the other by
			if r := apply(t, other, take(1)); len(r.Leases) != 0 {
				t.Errorf("%s was handed out while it was held", r.Leases[0].Key)
			}
		})
	}
}

func TestServersThatDisagreeAboutTheClockComeToOneTime(t *testing.T) {
	t.Parallel()
	cfg, skew, step := stepping(start(t).URL())
	old := newEngine(t, cfg)
	q := configure(t, old, workqueue.Config{LeaseFor: 20 * time.Second, MaxLease: 20 * time.Second})
	apply(t, q, add("a"))
	step.Add(int64(time.Hour))
	late := newEngine(t, cfg)
	other, err := late.Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, other, workqueue.Transaction{})
	skew.Add(int64(time.Minute)) // the late one takes the time for the right one
	apply(t, other, workqueue.Transaction{})
	for range 10 {
		apply(t, q, workqueue.Transaction{})
		apply(t, other, workqueue.Transaction{})
	}
	if n := old.ClockSteps() + late.ClockSteps(); n < 1 || n > 4 {
		t.Errorf("the clock was set %d times, want few", n)
	}
}

func TestAServerThatHasJustComePutsRightAStepThatItLivedThrough(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, skew, step := stepping(start(t).URL())
			configure(t, newEngine(t, cfg), workqueue.Config{LeaseFor: 20 * time.Second})
			young := newEngine(t, cfg)
			q, err := young.Open(t.Context(), "dev/job")
			if err != nil {
				t.Fatal(err)
			}
			apply(t, q, add("held"))
			skew.Add(int64(15 * time.Second))
			apply(t, q, take(1))
			delayed := add("delayed")
			delayed.Ops[0].Delay = (10 * time.Second).Microseconds()
			apply(t, q, delayed)
			step.Add(int64(by))
			apply(t, q, workqueue.Transaction{})
			if got := young.ClockSteps(); got != 1 {
				t.Errorf("%d steps counted, want 1", got)
			}
			skew.Add(int64(10500 * time.Millisecond)) // it is no longer new
			if r := apply(t, q, take(5)); len(r.Leases) != 1 || r.Leases[0].Key != "delayed" {
				t.Errorf("leases %v, want what was delayed and not what is held", r.Leases)
			}
		})
	}
}

func TestAServerThatMadeAQueueAndDidNotServeItKnowsItsClock(t *testing.T) {
	t.Parallel()
	for name, by := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, _, step := stepping(start(t).URL())
			e := newEngine(t, cfg)
			maker := at(configure(t, e, workqueue.Config{LeaseFor: 20 * time.Second, Partitions: 2}), 1)
			gone := newEngine(t, cfg)
			q, err := gone.Open(t.Context(), "dev/job")
			if err != nil {
				t.Fatal(err)
			}
			q = at(q, 1)
			apply(t, q, add("held"))
			apply(t, q, take(1))
			if err := gone.Close(); err != nil {
				t.Fatal(err)
			}
			step.Add(int64(by))
			if r := apply(t, maker, take(1)); len(r.Leases) != 0 {
				t.Errorf("%s was handed out while it was held", r.Leases[0].Key)
			}
			if r := apply(t, maker, workqueue.Transaction{}); r.NextDue > r.Now+25e6 {
				t.Errorf("next due in %d us, want one lease time at the most", r.NextDue-r.Now)
			}
			if got := e.ClockSteps(); got != 1 {
				t.Errorf("%d steps counted, want 1", got)
			}
		})
	}
}

func TestACorrectionThatAFailoverLostIsDoneAgain(t *testing.T) {
	t.Parallel()
	srv := start(t)
	cfg, _, step := stepping(srv.URL())
	e := newEngine(t, cfg)
	q := configure(t, e, workqueue.Config{LeaseFor: 20 * time.Second})
	apply(t, q, add("held"))
	apply(t, q, take(1))
	c, st := raw(t, srv), "dp:{dev/job/0}:st"
	was, err := c.HGet(t.Context(), st, "").Result()
	if err != nil {
		t.Fatal(err)
	}
	step.Add(int64(time.Hour))
	apply(t, q, workqueue.Transaction{})
	if err := c.HSet(t.Context(), st, "", was).Err(); err != nil { // as a replica had it
		t.Fatal(err)
	}
	if r := apply(t, q, take(1)); len(r.Leases) != 0 {
		t.Errorf("%s was handed out while it was held", r.Leases[0].Key)
	}
	if got := e.ClockSteps(); got != 2 {
		t.Errorf("the clock was set %d times, want 2", got)
	}
}

// wrong is a queue whose clock stepped before a server came that could not know, and
// the server that had lived through the step and has not looked yet.
func wrong(t *testing.T, by time.Duration, c workqueue.Config, keys ...string) (young, old engine.Queue, skew *atomic.Int64) {
	t.Helper()
	cfg, skew, step := stepping(start(t).URL())
	old = configure(t, newEngine(t, cfg), c)
	apply(t, old, add(keys...))
	step.Add(int64(by))
	young, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	return young, old, skew
}

func TestWhatTheDispatchLimiterGaveInAWrongTimeHoldsNothingUp(t *testing.T) {
	t.Parallel()
	young, old, skew := wrong(t, time.Hour, workqueue.Config{Dispatch: &workqueue.Rate{QPS: 1, Burst: 1}}, "a", "b")
	if r := apply(t, young, take(1)); len(r.Leases) != 1 {
		t.Fatal("nothing was handed out")
	}
	apply(t, old, workqueue.Transaction{})
	skew.Add(int64(2 * time.Second))
	if r := apply(t, old, take(1)); len(r.Leases) != 1 {
		t.Error("the limiter waits for the wrong time")
	}
}

func TestAHolderThatCameInAWrongTimeIsStillKnown(t *testing.T) {
	t.Parallel()
	young, old, _ := wrong(t, -time.Hour, workqueue.Config{}, "a", "b", "c", "d")
	by := func(holder string) workqueue.Transaction {
		return workqueue.Transaction{Takes: []workqueue.Take{{Holder: holder, Max: 1}}}
	}
	key := apply(t, young, by("first")).Leases[0].Key
	apply(t, old, workqueue.Transaction{})
	for _, next := range []string{"x", "y", "z"} { // each looks for holders that are not needed
		apply(t, old, by(next))
	}
	r := apply(t, old, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpInspect, Key: key}}})
	if it := r.Replies[0].Item; it == nil || it.Holder != "first" {
		t.Errorf("%s is held by %+v, want first", key, it)
	}
}

func TestAPauseThatBeganInAWrongTimeLasts(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	cfg, _, step := stepping(srv.URL())
	cfg.GiveUp = 20 * time.Second
	old := configure(t, newEngine(t, cfg), workqueue.Config{LeaseFor: time.Minute})
	apply(t, old, add("a"))
	srv.Kill()
	srv.Start()
	step.Add(-int64(time.Hour))
	young, err := newEngine(t, cfg).Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, young, workqueue.Transaction{}) // begins the pause, and does not know the time
	if r := apply(t, old, take(1)); len(r.Leases) != 0 {
		t.Errorf("%s was handed out in the pause", r.Leases[0].Key)
	}
}
