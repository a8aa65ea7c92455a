package enginetest

import (
	"slices"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// deadRules are when a queue gives a key up by itself.
var deadRules = map[string]func(*env){
	"a rate-limited add beyond the retries makes a key dead that nobody holds": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{Limiter: exponential(time.Second, time.Second), MaxRetries: 2})
		for n := range 2 {
			if r := e.do(limited("a", 0)); r.Status != workqueue.Delayed || r.Requeues != n+1 {
				e.Fatalf("retry %d: %+v", n, r)
			}
		}
		if r := e.do(limited("a", 0)); r.Status != workqueue.Delayed || r.ReadyAt == 0 || r.Requeues != 2 {
			e.Errorf("a retry beside the delay of the last one: %+v", r)
		}
		e.advance(1100 * time.Millisecond)
		e.apply(workqueue.Transaction{})
		if r := e.do(limited("a", 0)); r.Status != workqueue.AlreadyQueued {
			e.Errorf("a retry of a key that waits: %+v", r)
		}
		e.end(e.one("a"), workqueue.Done, workqueue.Settled)
		e.counts(workqueue.Counts{})
		for range 2 {
			if r := e.do(limited("a", 0)); r.Status != workqueue.Died || r.ReadyAt != 0 {
				e.Errorf("a retry too many: %+v", r)
			}
			e.counts(workqueue.Counts{Dead: 1})
		}
		e.advance(time.Minute)
		e.none()
		if it := e.inspect("a"); it.State != workqueue.StateDead || it.Reason != "retried 2 times (max_retries)" {
			e.Errorf("item %+v", it)
		}
		e.adds(workqueue.Queued, "a")
		if l := e.one("a"); l.Requeues != 0 {
			e.Errorf("a key brought back has %d requeues, want 0", l.Requeues)
		}
	},
	"a rate-limited add beyond the retries makes a held key dead once it is done": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{Limiter: exponential(time.Second, time.Second), MaxRetries: 1})
		retry := func(want workqueue.Status) workqueue.Lease {
			e.Helper()
			l := e.one("a")
			if r := e.do(limited("a", 0)); r.Status != want {
				e.Fatalf("a retry of the held key: %+v, want status %d", r, want)
			}
			return l
		}
		e.adds(workqueue.Queued, "a")
		e.end(retry(workqueue.Delayed), workqueue.Done, workqueue.Settled) // client-go: AddRateLimited, then Done
		e.advance(1100 * time.Millisecond)
		l := retry(workqueue.Died)
		e.counts(workqueue.Counts{Processing: 1})
		e.end(l, workqueue.Done, workqueue.Settled)
		e.counts(workqueue.Counts{Dead: 1})

		e.adds(workqueue.Queued, "a")
		e.end(retry(workqueue.Delayed), workqueue.Done, workqueue.Settled)
		e.advance(1100 * time.Millisecond)
		e.end(retry(workqueue.Died), workqueue.Forget, workqueue.Settled) // it went well after all
		e.counts(workqueue.Counts{})

		e.adds(workqueue.Queued, "a")
		e.end(retry(workqueue.Delayed), workqueue.Done, workqueue.Settled)
		e.advance(1100 * time.Millisecond)
		l = retry(workqueue.Died)
		e.adds(workqueue.MarkedDirty, "a")
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.counts(workqueue.Counts{Ready: 1})
	},
	"a key whose leases end without a settlement too often is dead": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{LeaseFor: 2 * time.Second, MaxDeliveries: 4})
		e.adds(workqueue.Queued, "a", "b")
		e.end(e.one("a"), workqueue.Release, workqueue.Settled) // a settlement, which does not count
		e.end(e.one("b"), workqueue.Done, workqueue.Settled)
		for n := range 4 {
			holder := "w" + strconv.Itoa(n)
			r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: holder, Max: 1}}})
			if len(r.Leases) != 1 || r.Leases[0].Attempt != n+1 {
				e.Fatalf("delivery %d: %+v", n+1, r.Leases)
			}
			e.advance(2100 * time.Millisecond)
		}
		r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1}}})
		if len(r.Leases) != 0 || r.Expired != 1 || r.Died != 1 || r.Counts.Dead != 1 {
			e.Errorf("after the last delivery: %+v", r)
		}
		it := e.inspect("a")
		if it.State != workqueue.StateDead || it.Reason != "handed out 4 times and never settled (max_deliveries 4)" ||
			!slices.Equal(it.Holders, []string{"w1", "w2", "w3"}) {
			e.Errorf("item %+v", it)
		}
		e.adds(workqueue.Queued, "a")
		if it := e.inspect("a"); it.Attempt != 0 || it.Holders != nil {
			e.Errorf("a key brought back: %+v", it)
		}
		e.end(e.one("a"), workqueue.Forget, workqueue.Settled)
		if it := e.inspect("a"); it.State != workqueue.Idle || it.Reason != "" {
			e.Errorf("after it was settled: %+v", it)
		}
	},
	"a settlement forgets who held the key before": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{LeaseFor: 2 * time.Second, MaxDeliveries: 2})
		e.adds(workqueue.Queued, "a")
		for range 3 {
			e.one("a")
			e.advance(2100 * time.Millisecond)
			e.apply(workqueue.Transaction{})
			if it := e.inspect("a"); it.State != workqueue.Ready || len(it.Holders) != 1 {
				e.Fatalf("after a lease that was not settled: %+v", it)
			}
			e.end(e.one("a"), workqueue.Release, workqueue.Settled)
			if it := e.inspect("a"); it.Holders != nil {
				e.Fatalf("after a settlement: %+v", it)
			}
		}
	},
	"an add or a delay during the last delivery is not lost": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{LeaseFor: 2 * time.Second, MaxDeliveries: 1})
		e.adds(workqueue.Queued, "a", "b")
		if r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 2}}}); len(r.Leases) != 2 {
			e.Fatalf("leases %+v", r.Leases)
		}
		e.adds(workqueue.MarkedDirty, "a")
		e.do(workqueue.Op{Kind: workqueue.OpAdd, Key: "b", Level: workqueue.Level(0), Delay: 3e6})
		e.advance(2100 * time.Millisecond)
		e.one("a")
		e.advance(2100 * time.Millisecond)
		e.one("b")
		e.counts(workqueue.Counts{Processing: 1, Dead: 1})
	},
}
