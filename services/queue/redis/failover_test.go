package redis_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestAFailoverLosesNothingAcknowledgedAndPausesLeases(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 2)
	var skew atomic.Int64
	cfg := redis.Config{URL: s.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }, GiveUp: 30 * time.Second}
	e, other := newEngine(t, cfg), newEngine(t, redis.Config{URL: s.URL()})
	q := configure(t, e, workqueue.Config{LeaseFor: time.Minute, Durability: workqueue.Replicated})
	woken := wakes(t, other)
	was := e.Generation()
	for i := range 100 {
		apply(t, q, add(fmt.Sprintf("key-%d", i)))
	}
	held := apply(t, q, take(1)).Leases[0]
	for len(woken) > 0 {
		<-woken
	}

	s.Kill()
	r := apply(t, q, workqueue.Transaction{Ops: add("during").Ops, Takes: take(200).Takes})
	if len(r.Leases) != 0 || r.Counts.Ready != 100 || r.Counts.Processing != 1 {
		t.Errorf("right after the failover: %d leases, counts %+v; want none, 100 ready, 1 held", len(r.Leases), r.Counts)
	}
	if e.Generation() == was || e.Generation() == "" {
		t.Errorf("generation %q did not change", e.Generation())
	}
	st, err := q.Partitions()[0].Status(t.Context())
	if err != nil || st.HeldUntil <= st.Now {
		t.Errorf("status %+v, %v: want it held", st, err)
	}
	got := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: held.Key, Token: held.Token, Outcome: workqueue.Done}}})
	if got.Replies[0].Status != workqueue.Settled {
		t.Errorf("settle across the failover: status %d", got.Replies[0].Status)
	}
	skew.Add(int64(61 * time.Second))
	leases := apply(t, q, take(200)).Leases
	if len(leases) != 100 {
		t.Errorf("after one lease time: %d leases, want 100", len(leases))
	}
	for _, l := range leases {
		if l.Token <= held.Token {
			t.Errorf("token %d of %s is not above %d of before the failover", l.Token, l.Key, held.Token)
		}
	}
	// The other server's subscription stands again, on the new master.
	deadline := time.After(30 * time.Second)
	for heard := false; !heard; {
		for _, l := range leases[:1] {
			apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Done}}})
		}
		apply(t, q, add("wake"))
		select {
		case name := <-woken:
			heard = name == "dev/job"
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("not woken after the failover")
		}
		if ls := apply(t, q, take(5)).Leases; len(ls) > 0 {
			leases = ls
		}
	}
}

func TestAFailoverToARedisWithAnotherClockMovesNothing(t *testing.T) {
	t.Parallel()
	for name, by := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := embeddedtest.Sentinel(t, 2)
			cfg, skew, step := stepping(s.URL())
			cfg.GiveUp = 30 * time.Second
			e := newEngine(t, cfg)
			q := configure(t, e, workqueue.Config{LeaseFor: time.Minute, Durability: workqueue.Replicated})
			apply(t, q, add("held"))
			held := apply(t, q, take(1)).Leases[0]
			delayed := add("delayed")
			delayed.Ops[0].Delay = (2 * time.Minute).Microseconds()
			apply(t, q, delayed)

			s.Kill()
			step.Add(int64(by)) // of whatever is promoted: nothing else answers any more
			apply(t, q, workqueue.Transaction{})
			if got := e.ClockSteps(); got != 1 {
				t.Errorf("%d steps counted, want 1", got)
			}
			extend := workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpExtend, Key: held.Key, Token: held.Token, For: time.Minute.Microseconds()}}}
			extended := apply(t, q, extend).Replies[0]
			if extended.Status != workqueue.Settled {
				t.Fatalf("extend: status %d, want the lease held", extended.Status)
			}
			// The extension was answered when the other replica had it, which may have taken long.
			left := time.Duration(extended.Deadline-apply(t, q, workqueue.Transaction{}).Now) * time.Microsecond
			skew.Add(int64(left - 10*time.Second))
			if r := apply(t, q, take(5)); len(r.Leases) != 0 {
				t.Errorf("%s was handed out", r.Leases[0].Key)
			}
			skew.Add(int64(71 * time.Second)) // the longest lease, and the delay
			if r := apply(t, q, take(5)); len(r.Leases) != 2 {
				t.Errorf("leases %v, want what a dead worker held and what was delayed", r.Leases)
			}
		})
	}
}

func TestAKilledRedisThatSyncsAlwaysComesBackWithEverything(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	e := newEngine(t, redis.Config{URL: srv.URL(), GiveUp: 20 * time.Second})
	q := configure(t, e, workqueue.Config{Durability: workqueue.Fsync})
	was := e.Generation()
	acknowledged := 0
	for round := range 3 {
		for i := range 50 {
			apply(t, q, add(fmt.Sprintf("key-%d-%d", round, i)))
			acknowledged++
		}
		srv.Kill()
		srv.Start()
	}
	if r := apply(t, q, workqueue.Transaction{}); r.Counts.Ready != acknowledged {
		t.Errorf("%d keys are there, %d were acknowledged", r.Counts.Ready, acknowledged)
	}
	if e.Generation() == was {
		t.Error("the generation did not change")
	}
}

func TestWhatWasLeasedBeforeAFailoverIsNotHandedOutAfterIt(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	p := newProxy(t, srv.Addr())
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr(), GiveUp: 20 * time.Second})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a"))
	p.dropReply.Store(true)
	p.dropped.Store(0)
	p.onDrop.Store(new(func() { srv.Kill(); srv.Start() })) // the transaction is done and on disk, and its answer comes from the next run
	r := apply(t, q, take(5))
	if p.dropped.Load() == 0 {
		t.Fatal("no reply was dropped")
	}
	if len(r.Leases) != 0 || r.Counts.Ready != 1 || r.Counts.Processing != 0 {
		t.Errorf("leases %v, counts %+v: want nothing leased", r.Leases, r.Counts)
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 0 {
		t.Errorf("leases %v in the pause", r.Leases)
	}
}
