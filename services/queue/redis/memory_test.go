package redis_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

var barrier = workqueue.NewBarrier(
	workqueue.Mark{Collection: "default/pods", Epoch: 1, RV: "184467440"},
	workqueue.Mark{Collection: "default/jobs", Epoch: 1, RV: "184467441"},
)

// noDelay counts failures and delays nothing.
func noDelay() *backoff.Limiter {
	return &backoff.Limiter{Kind: backoff.Exponential, Base: 0, Max: time.Second}
}

// Bytes per key of 23 bytes: bare, and with a priority, a barrier of two
// collections and a trace.
func TestMemoryOfReadyAndLeasedKeys(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		add           func(*workqueue.Op)
		ready, leased int
	}{
		"bare": {func(*workqueue.Op) {}, 120, 235},
		"with all": {func(op *workqueue.Op) {
			op.Level, op.Trace, op.More = workqueue.Level(2), trace, &workqueue.More{Barrier: barrier}
		}, 215, 300},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t)
			var skew atomic.Int64
			e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
			q := configure(t, e, workqueue.Config{})
			c := raw(t, srv)
			const n, batch = 12_500, 500
			apply(t, q, workqueue.Transaction{})
			before := used(t, c)
			for i := 0; i < n; i += batch {
				var in workqueue.Transaction
				for j := range batch {
					op := workqueue.Op{Kind: workqueue.OpAdd, Key: fmt.Sprintf("default/some-job-%06d", i+j), Level: workqueue.Level(0)}
					tc.add(&op)
					in.Ops = append(in.Ops, op)
				}
				apply(t, q, in)
			}
			ready := (used(t, c) - before) / n
			var held []workqueue.Lease
			for range n / batch {
				held = append(held, apply(t, q, workqueue.Transaction{Takes: []workqueue.Take{{Holder: "session-of-a-worker-0123", Max: batch}}}).Leases...)
			}
			leased := (used(t, c) - before) / n
			t.Logf("%d bytes per ready key, %d per leased key", ready, leased)
			if ready > tc.ready || leased > tc.leased {
				t.Errorf("%d bytes per ready key, %d per leased key: want at most %d and %d", ready, leased, tc.ready, tc.leased)
			}
			for i := 0; i < n; i += batch {
				var in workqueue.Transaction
				for _, l := range held[i : i+batch] {
					in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Forget})
				}
				apply(t, q, in)
			}
			if name != "bare" { // the barriers stay for a while
				skew.Add(int64(6 * time.Minute))
				for range n/workqueue.SweepMax + 1 {
					apply(t, q, workqueue.Transaction{})
				}
			}
			apply(t, q, workqueue.Transaction{}) // its answer takes the place of the last settlements'
			nothingLeft(t, c)
			if left := serialised(t, c); left > 1000 {
				t.Errorf("%d bytes are left of %d keys", left, n)
			}
		})
	}
}

// nothingLeft fails when a partition of dev/job keeps more than its
// configuration, its control record and the last answers.
func nothingLeft(t *testing.T, c *goredis.Client) {
	t.Helper()
	for k := range each(t, c) {
		name := k[strings.LastIndex(k, "}:")+2:]
		switch {
		case name == "meta", strings.HasPrefix(name, "rq:"):
		case name == "st":
			if fields, err := c.HKeys(t.Context(), k).Result(); err != nil || len(fields) != 1 {
				t.Errorf("the state hash holds %.200q, %v", fields, err)
			}
		default:
			t.Errorf("%s is left", k)
		}
	}
}

// serialised is the size of what is stored. Other than the memory that is used it does not depend
// on when Redis shrinks the tables of what has been deleted, which it does bit by bit and as it
// finds time.
func serialised(t *testing.T, c *goredis.Client) int {
	t.Helper()
	n := 0
	for k := range each(t, c) {
		v, err := c.Dump(t.Context(), k).Result()
		if err != nil {
			t.Fatal(err)
		}
		n += len(k) + len(v)
	}
	return n
}

// each is the keys of the queues.
func each(t *testing.T, c *goredis.Client) func(func(string) bool) {
	t.Helper()
	names, err := c.Keys(t.Context(), "*{*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(string) bool) {
		for _, n := range names {
			if !yield(n) {
				return
			}
		}
	}
}

// used is the memory of what is stored. Redis counts it key by key, so that neither its buffers nor
// the heap of its scripts are in it.
func used(t *testing.T, c *goredis.Client) int {
	t.Helper()
	sum := 0
	for k := range each(t, c) {
		n, err := c.MemoryUsage(t.Context(), k, 0).Result()
		if err != nil {
			t.Fatal(err)
		}
		sum += int(n)
	}
	return sum
}

func TestNothingIsLeftWhenEveryKeyIsDeleted(t *testing.T) {
	t.Parallel()
	srv := start(t)
	var skew atomic.Int64
	e := newEngine(t, redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
	q := configure(t, e, workqueue.Config{})
	seed := uint64(time.Now().UnixNano())
	g := enginetest.NewGen(rand.New(rand.NewPCG(seed, 1)), false, q.Config().Limiter.Buckets())
	for range 500 {
		g.Learn(apply(t, q, g.Next()))
		skew.Add(int64(50 * time.Millisecond))
	}
	for cursor := ""; ; {
		items, next, err := q.Partitions()[0].Items(t.Context(), workqueue.Idle, cursor, 100)
		if err != nil {
			t.Fatal(err)
		}
		var in workqueue.Transaction
		for _, it := range items {
			in.Ops = append(in.Ops, workqueue.Op{Kind: workqueue.OpRevoke, Key: it.Key}, workqueue.Op{Kind: workqueue.OpDelete, Key: it.Key})
		}
		apply(t, q, in)
		if cursor = next; cursor == "" {
			break
		}
	}
	skew.Add(int64(time.Hour)) // barriers and back-off entries end by time
	apply(t, q, workqueue.Transaction{})
	if r := apply(t, q, workqueue.Transaction{}); r.Counts != (workqueue.Counts{}) || r.NextDue != 0 {
		t.Errorf("seed %d: counts %+v, next due %d", seed, r.Counts, r.NextDue)
	}
	nothingLeft(t, raw(t, srv))
}
