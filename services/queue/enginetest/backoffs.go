package enginetest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func (e *env) backoff(kind workqueue.OpKind, id string) workqueue.Reply {
	e.Helper()
	return e.do(workqueue.Op{Kind: kind, Key: id})
}

func withBackoff(b workqueue.BackoffConfig) workqueue.Config { return workqueue.Config{Backoff: b} }

// backoffRules are flowcontrol.Backoff's: "back-off entries" and what follows in docs/rules.md.
var backoffRules = map[string]func(*env){
	"the delay doubles up to the maximum (TestSlowBackoff)": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: 50 * time.Second}))
		var got []int64
		for range 10 {
			got = append(got, e.backoff(workqueue.OpBackoffGet, "a").Backoff.Delay/1e6)
			e.backoff(workqueue.OpBackoffNext, "a")
		}
		if diff := cmp.Diff(got, []int64{0, 1, 2, 4, 8, 16, 32, 50, 50, 50}); diff != "" {
			e.Errorf("delays (-got +want):\n%s", diff)
		}
		e.backoff(workqueue.OpBackoffReset, "a")
		if got := e.backoff(workqueue.OpBackoffGet, "a").Backoff; got != (workqueue.BackoffEntry{}) {
			e.Errorf("after Reset %+v, want nothing", got)
		}
	},
	"ids are a name space of their own": func(e *env) {
		e.backoff(workqueue.OpBackoffNext, "a")
		e.counts(workqueue.Counts{})
		e.wants(workqueue.OpDelete, "a", workqueue.Unchanged)
		e.do(of(workqueue.OpForget, "a"))
		if got := e.backoff(workqueue.OpBackoffGet, "a").Backoff.Delay; got != 10e6 {
			e.Errorf("delay %d, want the default of 10 s", got)
		}
		e.adds(workqueue.Queued, "a")
		e.keys("a")
	},
	"the jitter is a share of the delay before": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: time.Minute, Jitter: 0.5}))
		for _, want := range []int64{1_250_000, 2_500_000 + 312_500, 5_625_000 + 703_125} {
			op := of(workqueue.OpBackoffNext, "a")
			op.Random = 0.5
			if got := e.do(op).Backoff.Delay; got != want {
				e.Errorf("delay %d, want %d", got, want)
			}
		}
	},
	"the first delay is not capped by the maximum": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: 10 * time.Second, Max: 5 * time.Second}))
		for _, want := range []int64{10e6, 5e6, 5e6} {
			if got := e.backoff(workqueue.OpBackoffNext, "a").Backoff.Delay; got != want {
				e.Errorf("delay %d, want %d", got, want)
			}
		}
	},
	"an entry starts over when the event is more than twice the maximum after its last change": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: 5 * time.Second}))
		next := func(id string, event int64) int64 {
			return e.do(workqueue.Op{Kind: workqueue.OpBackoffNext, Key: id, Event: event}).Backoff.Delay
		}
		at := e.backoff(workqueue.OpBackoffNext, "a").Backoff.Updated
		if got := next("a", at+10e6); got != 2e6 { // exactly: it still doubles
			e.Errorf("event exactly 10 s later: %d, want 2 s", got)
		}
		at = e.backoff(workqueue.OpBackoffGet, "a").Backoff.Updated
		if got := next("a", at+10e6+1); got != 1e6 {
			e.Errorf("event just over 10 s later: %d, want 1 s", got)
		}
		if got := next("a", at-time.Hour.Microseconds()); got != 2e6 {
			e.Errorf("an event long ago: %d, want 2 s", got)
		}
	},
	"the expiry of an entry can be set separately": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: 5 * time.Second, ExpireAfter: time.Hour}))
		e.backoff(workqueue.OpBackoffNext, "a")
		e.advance(50 * time.Minute)
		if got := e.backoff(workqueue.OpBackoffNext, "a").Backoff.Delay; got != 2e6 {
			e.Errorf("delay %d after 50 min, want 2 s", got)
		}
	},
	"a transaction drops the entries that expired, and only those (TestBackoffGC)": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: 5 * time.Second}))
		delays := func(when string, wantA, wantB int64) {
			e.Helper()
			e.backoff(workqueue.OpBackoffReset, "other") // a transaction that reads neither
			if a, b := e.backoff(workqueue.OpBackoffGet, "a").Backoff.Delay, e.backoff(workqueue.OpBackoffGet, "b").Backoff.Delay; a != wantA || b != wantB {
				e.Errorf("delays %d and %d %s, want %d and %d", a, b, when, wantA, wantB)
			}
		}
		e.backoff(workqueue.OpBackoffNext, "a")
		e.advance(6 * time.Second)
		e.backoff(workqueue.OpBackoffNext, "b")
		delays("after 6 s", 1e6, 1e6)
		e.advance(5 * time.Second)
		delays("after 11 s", 0, 1e6)
		e.backoff(workqueue.OpBackoffReset, "b") // DeleteEntry is the same
		delays("after the reset", 0, 0)
	},
	"every transaction sweeps, so that ids that nobody asks for cost nothing": func(e *env) {
		e = e.with(withBackoff(workqueue.BackoffConfig{Initial: time.Second, Max: 5 * time.Second}))
		e.backoff(workqueue.OpBackoffNext, "a")
		e.advance(11 * time.Second)
		if got := e.backoff(workqueue.OpBackoffGet, "a").Backoff.Delay; got != 1e6 {
			e.Errorf("delay %d, want 1 s: reading knows no expiry", got)
		}
		if got := e.backoff(workqueue.OpBackoffGet, "a").Backoff.Delay; got != 0 {
			e.Errorf("delay %d after a transaction, want it swept", got)
		}
	},
}
