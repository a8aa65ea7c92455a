package redis_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestEngineOverSentinel(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 1)
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture {
		_, fx := open(t, s.URL())
		return fx
	})
	_, fx := open(t, s.URL())
	enginetest.Model(t, fx, uint64(time.Now().UnixNano()), 4000)
}

func TestEngineOverCluster(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	enginetest.Run(t, func(t *testing.T) enginetest.Fixture {
		_, fx := open(t, c.URL())
		return fx
	})
	_, fx := open(t, c.URL())
	enginetest.Model(t, fx, uint64(time.Now().UnixNano()), 4000)
}

// spread is a queue of eight partitions with a key in each.
func spread(t *testing.T, e *redis.Engine, cfg workqueue.Config) engine.Queue {
	t.Helper()
	cfg.Partitions = 8
	q, created, err := e.Configure(t.Context(), "dev/wide", cfg)
	if err != nil || !created {
		t.Fatalf("Configure = created %v, %v", created, err)
	}
	for i, p := range q.Partitions() {
		in := add("key-" + strconv.Itoa(i))
		if _, err := p.Apply(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
	}
	return q
}

func TestPartitionsOfAClusterAreOnEveryNodeAndKeepTheirNumber(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	e := newEngine(t, redis.Config{URL: c.URL()})
	q := spread(t, e, workqueue.Config{})
	nodes := map[string]int{}
	for i := range q.Partitions() {
		nodes[c.Of(fmt.Sprintf("dp:{dev/wide/%d}:st", i)).Addr()]++
	}
	if len(nodes) != 3 {
		t.Errorf("partitions are on %v, want all three nodes", nodes)
	}
	for i, p := range q.Partitions() {
		in := take(5)
		r, err := p.Apply(t.Context(), &in)
		if err != nil || len(r.Leases) != 1 || r.Leases[0].Key != "key-"+strconv.Itoa(i) {
			t.Fatalf("partition %d: leases %v, %v", i, r, err)
		}
		st, err := p.Status(t.Context())
		if err != nil || st.Counts.Processing != 1 || st.HeldUntil != 0 {
			t.Errorf("partition %d: status %+v, %v", i, st, err)
		}
		items, _, err := p.Items(t.Context(), workqueue.Idle, "", 10)
		if err != nil || len(items) != 1 || items[0].Key != r.Leases[0].Key {
			t.Errorf("partition %d: items %+v, %v", i, items, err)
		}
	}
	if _, _, err := e.Configure(t.Context(), "dev/wide", workqueue.Config{Partitions: 4}); !errors.Is(err, engine.ErrPartitions) {
		t.Errorf("with another number: %v", err)
	}
	other := newEngine(t, redis.Config{URL: c.URL()})
	got, err := other.Open(t.Context(), "dev/wide")
	if err != nil || len(got.Partitions()) != 8 {
		t.Fatalf("another server opens it with %v, %v", got, err)
	}
	if other.Generation() != e.Generation() || e.Generation() == "" {
		t.Errorf("generations %q and %q of the same data", e.Generation(), other.Generation())
	}
	if names, err := other.Names(t.Context()); err != nil || !cmp.Equal(names, []string{"dev/wide"}) {
		t.Errorf("Names = %v, %v", names, err)
	}
}

func TestAConfigurationThatWasHalfWrittenIsFinishedByTheNextLoad(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	e := newEngine(t, redis.Config{URL: c.URL()})
	q := spread(t, e, workqueue.Config{})
	// Another server ends after the first partition: as if it had written that only.
	later := newEngine(t, redis.Config{URL: c.URL()})
	if err := redis.ConfigureFirst(t.Context(), later, "dev/wide", workqueue.Config{Partitions: 8, MaxRetries: 7}); err != nil {
		t.Fatal(err)
	}
	was := e.Generation()
	apply(t, q, add("x")) // the first partition: meets the change
	for i, p := range q.Partitions() {
		in := take(1)
		if r, err := p.Apply(t.Context(), &in); err != nil || len(r.Leases) != 1 {
			t.Fatalf("partition %d: %v, %v", i, r, err)
		}
		if got := redis.Stored(t.Context(), e, "dev/wide", i); got.MaxRetries != 7 {
			t.Errorf("partition %d has %+v", i, got)
		}
	}
	if q.Config().MaxRetries != 7 {
		t.Errorf("in force: %+v", q.Config())
	}
	if e.Generation() != was {
		t.Error("nothing was lost, and the generation changed")
	}
}

func TestAPartitionWhoseNodeLostItsDataIsMadeAgain(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	e := newEngine(t, redis.Config{URL: c.URL()})
	q := spread(t, e, workqueue.Config{})
	was := e.Generation()
	lost := 1
	first := c.Of("dp:{dev/wide/0}:st")
	for c.Of(fmt.Sprintf("dp:{dev/wide/%d}:st", lost)) == first {
		lost++
	}
	c.Of(fmt.Sprintf("dp:{dev/wide/%d}:st", lost)).Do("FLUSHALL")
	in := take(5)
	if _, err := q.Partitions()[lost].Apply(t.Context(), &in); !errors.Is(err, engine.ErrNoQueue) {
		t.Fatalf("Apply = %v, want ErrNoQueue", err)
	}
	q, err := e.Open(t.Context(), "dev/wide")
	if err != nil {
		t.Fatal(err)
	}
	if e.Generation() == was {
		t.Error("keys were lost, and the generation did not change")
	}
	p := q.Partitions()[lost]
	in = add("again")
	if _, err := p.Apply(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	in = take(5)
	r, err := p.Apply(t.Context(), &in)
	if err != nil || len(r.Leases) != 0 || r.Counts.Ready != 1 {
		t.Errorf("leases %v, %v: old leases of the partition may still be worked on", r, err)
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 1 {
		t.Errorf("the first partition, on another node, leases %v", r.Leases)
	}
}

func TestAClusterNodeThatRestartsHoldsItsPartitionsOnly(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: c.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }, GiveUp: 20 * time.Second})
	q := spread(t, e, workqueue.Config{LeaseFor: 5 * time.Second})
	was := e.Generation()
	down := c.Of("dp:{dev/wide/0}:st")
	down.Kill()
	down.Start()
	c.Wait()
	if err := e.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st, err := q.Partitions()[0].Status(t.Context()); err != nil || st.HeldUntil <= st.Now {
		t.Errorf("before any transaction: status %+v, %v", st, err)
	}
	for i, p := range q.Partitions() {
		in := take(5)
		r, err := p.Apply(t.Context(), &in)
		if err != nil {
			t.Fatal(err)
		}
		restarted := c.Of(fmt.Sprintf("dp:{dev/wide/%d}:st", i)) == down
		if got := len(r.Leases) == 0; got != restarted {
			t.Errorf("partition %d on a restarted node %v: leases %v", i, restarted, r.Leases)
		}
		st, err := p.Status(t.Context())
		if err != nil || (st.HeldUntil > st.Now) != restarted {
			t.Errorf("partition %d on a restarted node %v: status %+v, %v", i, restarted, st, err)
		}
	}
	if e.Generation() == was {
		t.Error("the generation did not change")
	}
	skew.Add(int64(5100 * time.Millisecond))
	if r := apply(t, q, take(5)); len(r.Leases) != 1 {
		t.Errorf("after one lease time: %v", r.Leases)
	}
}

func TestAPartitionThatMovesToAnotherNodeIsFollowed(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	e := newEngine(t, redis.Config{URL: c.URL()})
	q := spread(t, e, workqueue.Config{})
	key := "dp:{dev/wide/0}:st"
	from := c.Of(key)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	slot, _ := from.Do("CLUSTER", "KEYSLOT", key).(int64)
	c.Move(int(slot), from, to)
	r := apply(t, q, workqueue.Transaction{Ops: add("another").Ops, Takes: take(5).Takes})
	if len(r.Leases) != 0 || r.Counts.Ready != 2 {
		t.Errorf("leases %v, counts %+v: the new node is another run, so a pause", r.Leases, r.Counts)
	}
}

func TestAPartitionInTheMiddleOfAMoveWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	e := newEngine(t, redis.Config{URL: c.URL(), GiveUp: 4 * time.Second}) // a reply that takes as long is no answer
	longer := newEngine(t, redis.Config{URL: c.URL(), GiveUp: 20 * time.Second})
	q := spread(t, e, workqueue.Config{})
	lq, err := longer.Open(t.Context(), "dev/wide")
	if err != nil {
		t.Fatal(err)
	}
	key := "dp:{dev/wide/0}:st"
	from := c.Of(key)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	slot, _ := from.Do("CLUSTER", "KEYSLOT", key).(int64)
	finish := c.BeginMove(int(slot), from, to, 1) // one key has moved, the others have not
	in := add("another")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Apply = %v, want ErrUnavailable: it was not applied", err)
	}
	finished := make(chan struct{})
	timer := time.AfterFunc(300*time.Millisecond, func() {
		defer close(finished)
		finish()
	})
	r, err := lq.Partitions()[0].Apply(t.Context(), &in)
	if !timer.Stop() {
		<-finished // its commands end with the test
	}
	if err != nil || r.Counts.Ready != 2 {
		t.Errorf("Apply = %v, %v: want two keys ready", r, err)
	}
}

func TestAReplicaOfAClusterIsWokenForEveryPartition(t *testing.T) {
	t.Parallel()
	c := embeddedtest.Cluster(t, 3)
	a, b := newEngine(t, redis.Config{URL: c.URL()}), newEngine(t, redis.Config{URL: c.URL()})
	q := spread(t, a, workqueue.Config{})
	woken := wakes(t, b)
	for i, p := range q.Partitions() {
		in := take(5)
		if _, err := p.Apply(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		in = add("more")
		if _, err := p.Apply(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-woken:
			if got != "dev/wide" {
				t.Errorf("woken for %q", got)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("not woken for partition %d", i)
		}
	}
}

// wakes has an engine listen, and returns once it does.
func wakes(t *testing.T, e *redis.Engine) <-chan string {
	t.Helper()
	woken := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Wakes(ctx, func(q string) { woken <- q })
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-woken:
	case <-time.After(30 * time.Second):
		t.Fatal("no subscription")
	}
	return woken
}
