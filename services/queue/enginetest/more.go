package enginetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// limiters checks that an engine's delays are core/backoff's, for each kind of limiter.
func limiters(t *testing.T, fx Fixture) {
	exp := backoff.Limiter{Kind: backoff.Exponential, Base: time.Second, Max: 100 * time.Second}
	fast := backoff.Limiter{Kind: backoff.FastSlow, Fast: time.Second, Slow: 10 * time.Second, MaxFast: 3}
	bucket := backoff.Limiter{Kind: backoff.Bucket, Rate: 0.7, Burst: 3}
	for name, l := range map[string]backoff.Limiter{
		"exponential":               exp,
		"exponential without delay": {Kind: backoff.Exponential},
		"fast and slow":             fast,
		"bucket":                    bucket,
		"the longest of several":    {Kind: backoff.MaxOf, Of: []backoff.Limiter{exp, bucket, fast}},
		"capped":                    {Kind: backoff.MaxWait, Max: 5 * time.Second, Of: []backoff.Limiter{{Kind: backoff.MaxOf, Of: []backoff.Limiter{bucket, exp, bucket}}}},
		"controller default":        backoff.Controller(),
		"item-based default":        backoff.ItemBased(),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, fx, workqueue.Config{Limiter: &l})
			tats := make([]float64, l.Buckets())
			for i := range 30 {
				op := add("k")
				op.Limited, op.Last = true, true
				r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{op}})
				want := l.When(i, r.Now, tats)
				got := time.Duration(0)
				if r.Replies[0].Status == workqueue.Delayed {
					got = time.Duration(r.Replies[0].ReadyAt-r.Now) * time.Microsecond
				}
				if got != want || r.Replies[0].Requeues != i+1 {
					t.Fatalf("call %d: %v, requeues %d, want %v", i+1, got, r.Replies[0].Requeues, want)
				}
				e.advance(300 * time.Millisecond)
			}
		})
	}
}

func administration(t *testing.T, fx Fixture) {
	ctx := t.Context()
	t.Run("an unknown queue is refused", func(t *testing.T) {
		if _, err := fx.Engine.Open(ctx, "test/none"); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Open = %v, want ErrNoQueue", err)
		}
	})
	t.Run("a queue is found again and keeps its keys when it is changed", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{Limiter: exponential(time.Second, time.Minute)})
		e.adds(workqueue.Queued, "a")
		q, created, err := fx.Engine.Configure(ctx, e.name, workqueue.Config{LeaseFor: 3 * time.Second, Limiter: exponential(7*time.Second, time.Minute)})
		if err != nil || created {
			t.Fatalf("Configure = created %v, %v", created, err)
		}
		if got := q.Config().LeaseFor; got != 3*time.Second {
			t.Errorf("lease time %v, want 3s", got)
		}
		// The value from before follows.
		r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		e.after(r, r.Leases[0].Deadline, 3*time.Second)
		r = e.apply(workqueue.Transaction{Ops: []workqueue.Op{settle(r.Leases[0], workqueue.Retry)}})
		e.after(r, r.Replies[0].ReadyAt, 7*time.Second)
		names, err := fx.Engine.Names(ctx)
		if err != nil || !slices.Contains(names, e.name) || !slices.IsSorted(names) {
			t.Errorf("Names = %v, %v", names, err)
		}
	})
	t.Run("the partition count is fixed", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		if _, _, err := fx.Engine.Configure(ctx, e.name, workqueue.Config{Partitions: 2}); !errors.Is(err, engine.ErrPartitions) {
			t.Errorf("Configure = %v, want ErrPartitions", err)
		}
	})
	t.Run("it has a generation and is fit", func(t *testing.T) {
		if err := fx.Engine.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if fx.Engine.Generation() == "" {
			t.Error("no generation")
		}
	})
	t.Run("waiting for wake-ups ends with its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		if err := fx.Engine.Wakes(ctx, func(string) {}); err != nil {
			t.Errorf("Wakes = %v, want nil", err)
		}
	})
	t.Run("the oldest ready key is known", func(t *testing.T) {
		e := newEnv(t, fx, workqueue.Config{})
		e.adds(workqueue.Queued, "a")
		e.advance(10 * time.Second)
		e.adds(workqueue.Queued, "b")
		st, err := e.q.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if age := st.Now - st.OldestReady; age < 10e6 || age > 20e6 {
			t.Errorf("oldest is %d us old, want about 10 s", age)
		}
	})
}

func items(t *testing.T, fx Fixture) {
	e := newEnv(t, fx, workqueue.Config{LeaseFor: time.Hour})
	want := map[workqueue.State][]string{}
	for i := range 120 {
		k := "k" + strconv.Itoa(i)
		e.do(add(k))
	}
	for i, l := range e.get(60) {
		switch i % 3 {
		case 0:
			e.end(l, workqueue.Dead, workqueue.Settled)
			want[workqueue.StateDead] = append(want[workqueue.StateDead], l.Key)
		case 1:
			e.adds(workqueue.MarkedDirty, l.Key)
			want[workqueue.Dirty] = append(want[workqueue.Dirty], l.Key)
		default:
			want[workqueue.Processing] = append(want[workqueue.Processing], l.Key)
		}
	}
	for i := 60; i < 120; i++ {
		want[workqueue.Ready] = append(want[workqueue.Ready], "k"+strconv.Itoa(i))
	}
	for i := range 30 {
		e.do(addAfter("d"+strconv.Itoa(i), time.Hour))
		want[workqueue.Waiting] = append(want[workqueue.Waiting], "d"+strconv.Itoa(i))
	}
	var anywhere []string
	for _, keys := range want {
		anywhere = append(anywhere, keys...)
	}
	want[workqueue.Idle] = anywhere // in a request: any state
	for state, keys := range want {
		t.Run("state "+strconv.Itoa(int(state)), func(t *testing.T) {
			var got []string
			cursor := ""
			for range 1000 {
				page, next, err := e.q.Items(t.Context(), state, cursor, 7)
				if err != nil {
					t.Fatal(err)
				}
				for _, it := range page {
					got = append(got, it.Key)
				}
				if cursor = next; cursor == "" {
					break
				}
			}
			slices.Sort(got)
			slices.Sort(keys)
			if diff := cmp.Diff(slices.Compact(got), keys); diff != "" {
				t.Errorf("keys (-got +want):\n%s", diff)
			}
		})
	}
}
