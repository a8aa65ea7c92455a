package enginetest

import (
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

func of(kind workqueue.OpKind, key string) workqueue.Op { return workqueue.Op{Kind: kind, Key: key} }

// wants does one operation on a key and wants a status.
func (e *env) wants(kind workqueue.OpKind, key string, want workqueue.Status) {
	e.Helper()
	if got := e.do(of(kind, key)); got.Status != want {
		e.Fatalf("operation %d on %q: status %d, want %d", kind, key, got.Status, want)
	}
}

// operatorRules are what people do to queues and keys.
var operatorRules = map[string]func(*env){
	"a paused queue takes keys and settlements but hands out nothing": func(e *env) {
		e.adds(workqueue.Queued, "a", "b")
		l := e.one("a")
		e.do(of(workqueue.OpPause, ""))
		e.do(of(workqueue.OpPause, ""))
		if st, err := e.q.Status(e.Context()); err != nil || !st.Paused {
			e.Errorf("Status = %+v, %v, want paused", st, err)
		}
		e.none()
		e.adds(workqueue.Queued, "c")
		e.end(l, workqueue.Release, workqueue.Settled)
		e.do(addAfter("d", time.Second))
		e.advance(2 * time.Second)
		e.counts(workqueue.Counts{Ready: 4})
		e.do(of(workqueue.OpResume, ""))
		if st, err := e.q.Status(e.Context()); err != nil || st.Paused {
			e.Errorf("Status = %+v, %v, want resumed", st, err)
		}
		e.keys("b", "c", "a", "d")
	},
	"RetryNow: a delayed key waits now, at its priority": func(e *env) {
		op := addP("late", 2)
		op.Delay = time.Hour.Microseconds()
		e.do(op)
		e.adds(workqueue.Queued, "a")
		e.wants(workqueue.OpRetryNow, "late", workqueue.OK)
		e.counts(workqueue.Counts{Ready: 2})
		e.wants(workqueue.OpRetryNow, "late", workqueue.Unchanged)
		e.keys("late", "a")
		e.advance(2 * time.Hour)
		e.apply(workqueue.Transaction{})
		e.counts(workqueue.Counts{Ready: 2}) // expired leases, no second run
	},
	"RetryNow: a dead key comes back without its failures": func(e *env) {
		e = e.with(workqueue.Config{MaxRetries: 1, Limiter: exponential(time.Second, time.Second)})
		e.do(addP("a", 3))
		e.end(e.one("a"), workqueue.Retry, workqueue.Settled)
		e.advance(1100 * time.Millisecond)
		e.end(e.one("a"), workqueue.Retry, workqueue.Settled)
		e.counts(workqueue.Counts{Dead: 1})
		e.wants(workqueue.OpRetryNow, "a", workqueue.OK)
		e.counts(workqueue.Counts{Ready: 1})
		if l := e.one("a"); l.Requeues != 0 || l.Attempt != 1 || l.Level != workqueue.Level(0) {
			e.Errorf("lease %+v, want no failures, attempt 1, the default priority", l)
		}
	},
	"RetryNow: a delay beside a place in line or a lease is brought forward": func(e *env) {
		e.do(addAfter("a", time.Hour))
		e.adds(workqueue.Queued, "a")
		e.wants(workqueue.OpRetryNow, "a", workqueue.OK)
		e.counts(workqueue.Counts{Ready: 1})
		l := e.one("a")
		e.wants(workqueue.OpRetryNow, "a", workqueue.Unchanged)
		e.do(addAfter("a", time.Hour))
		e.wants(workqueue.OpRetryNow, "a", workqueue.OK)
		e.counts(workqueue.Counts{Processing: 1, Dirty: 1})
		e.wants(workqueue.OpRetryNow, "a", workqueue.Unchanged)
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.wants(workqueue.OpRetryNow, "never", workqueue.Unchanged)
	},
	"RetryNow: a closed queue is still worked off": func(e *env) {
		e.do(addAfter("a", time.Hour))
		e.do(of(workqueue.OpClose, ""))
		e.wants(workqueue.OpRetryNow, "a", workqueue.OK)
		e.keys("a")
	},
	"Revoke: the lease ends, the key waits again uncounted, the old token is lost": func(e *env) {
		e.adds(workqueue.Queued, "a", "b")
		l := e.one("a")
		e.do(addP("a", 1))
		e.wants(workqueue.OpRevoke, "a", workqueue.OK)
		e.counts(workqueue.Counts{Ready: 2})
		e.wants(workqueue.OpRevoke, "a", workqueue.Unchanged)
		e.wants(workqueue.OpRevoke, "never", workqueue.Unchanged)
		e.end(l, workqueue.Done, workqueue.Lost)
		ls := e.keys("a", "b") // the dirty key had been raised
		if ls[0].Attempt != 2 || ls[0].Requeues != 0 || ls[0].Token <= l.Token {
			e.Errorf("lease %+v, want attempt 2 without a failure", ls[0])
		}
		e.end(l, workqueue.Done, workqueue.Lost)
	},
	"Delete: everything of a key that is not held goes": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(time.Hour, time.Hour)})
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.wants(workqueue.OpDelete, "a", workqueue.Held)
		op := add("a")
		op.Trace = "00-x"
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 1, "50"))}
		e.apply(workqueue.Transaction{Ops: []workqueue.Op{
			op, limited("a", 0),
			{Kind: workqueue.OpSave, Key: "a", Token: l.Token, More: &workqueue.More{Data: []byte("data")}},
			{Kind: workqueue.OpExpect, Key: "a", Token: l.Token, More: &workqueue.More{Owner: "u", Creates: []string{"c"}}},
		}})
		e.wants(workqueue.OpDelete, "a", workqueue.Held)
		s := settle(l, workqueue.Done)
		s.More = &workqueue.More{Reason: "because"}
		e.do(s)
		e.counts(workqueue.Counts{Ready: 1, Delayed: 1})
		e.wants(workqueue.OpDelete, "a", workqueue.OK)
		e.counts(workqueue.Counts{})
		e.none()
		if it := e.inspect("a"); it.State != workqueue.Idle || it.Requeues != 0 || it.Barrier != nil || it.StateBytes != 0 || it.Expect != nil || it.Reason != "" || it.DelayedUntil != 0 {
			e.Errorf("left over: %+v", it)
		}
		e.wants(workqueue.OpDelete, "a", workqueue.Unchanged)
		e.adds(workqueue.Queued, "b", "a") // the old place in line is gone
		ls := e.keys("b", "a")
		if ls[1].Barrier != nil || ls[1].Traces != nil || ls[1].State != nil || ls[1].Expect != nil {
			e.Errorf("lease %+v after a deletion", ls[1])
		}
		e.advance(2 * time.Hour)
		e.apply(workqueue.Transaction{})
		e.counts(workqueue.Counts{Ready: 2})
	},
	"PutBack: a key has again what a backup has of it": func(e *env) {
		barrier := workqueue.NewBarrier(mark("p", 1, "50"))
		back := func(key string, o workqueue.Outcome, delay time.Duration) workqueue.Op {
			return workqueue.Op{
				Kind: workqueue.OpPutBack, Key: key, Outcome: o, Level: workqueue.Level(2), Delay: delay.Microseconds(), Count: 3,
				More: &workqueue.More{Barrier: barrier, Data: []byte("data"), Reason: "because", Owner: "u", Creates: []string{"c"}},
			}
		}
		e.apply(workqueue.Transaction{Ops: []workqueue.Op{
			back("ready", workqueue.Release, 0), back("late", workqueue.Done, time.Second), back("dead", workqueue.Dead, 0), back("idle", workqueue.Done, 0),
			of(workqueue.OpClose, ""), back("closed", workqueue.Release, 0), of(workqueue.OpOpen, ""),
		}})
		e.counts(workqueue.Counts{Ready: 2, Delayed: 1, Dead: 1})
		for _, key := range []string{"ready", "late", "dead", "idle"} {
			it := e.inspect(key)
			if it.Requeues != 3 || it.StateBytes != len("data") || it.Reason != "because" || len(it.Barrier) != 1 || it.Expect == nil || it.Expect.Owner != "u" {
				e.Errorf("%s came back as %+v", key, it)
			}
		}
		e.adds(workqueue.Queued, "plain")
		ls := e.keys("ready", "closed", "plain") // by their priority
		if l := ls[0]; string(l.State) != "data" || l.Requeues != 3 || l.Attempt != 1 || len(l.Barrier) != 1 || l.Level != workqueue.Level(2) {
			e.Errorf("lease %+v", l)
		}
		if got := e.do(back("ready", workqueue.Release, 0)); got.Status != workqueue.Held {
			e.Errorf("a key that is held: status %d, want held", got.Status)
		}
		e.advance(1100 * time.Millisecond)
		e.keys("late")
	},
	"PutBack: what a key has by now stays": func(e *env) {
		e = e.with(workqueue.Config{MaxRetries: 2, Limiter: exponential(time.Hour, time.Hour)})
		e.adds(workqueue.Queued, "a", "b")
		ls := e.keys("a", "b")
		s := settle(ls[1], workqueue.Dead)
		s.More = &workqueue.More{Reason: "now"}
		e.apply(workqueue.Transaction{Ops: []workqueue.Op{
			{Kind: workqueue.OpSave, Key: "a", Token: ls[0].Token, More: &workqueue.More{Data: []byte("newer")}}, settle(ls[0], workqueue.Done), s, addAfter("a", time.Hour),
		}})
		for range 2 { // again it changes nothing
			e.apply(workqueue.Transaction{Ops: []workqueue.Op{
				{Kind: workqueue.OpPutBack, Key: "a", Outcome: workqueue.Dead, Count: 9, More: &workqueue.More{Data: []byte("old"), Reason: "old"}},
				{Kind: workqueue.OpPutBack, Key: "b", Outcome: workqueue.Release, More: &workqueue.More{Data: []byte("old"), Reason: "old"}},
			}})
			e.counts(workqueue.Counts{Delayed: 1, Dead: 1})
			if it := e.inspect("a"); it.StateBytes != len("newer") || it.Reason != "old" || it.Requeues != 2 { // more failures would make it dead
				e.Errorf("a is %+v", it)
			}
			if it := e.inspect("b"); it.StateBytes != len("old") || it.Reason != "now" {
				e.Errorf("b is %+v", it)
			}
		}
		e.apply(workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpPutBack, Key: "a", Outcome: workqueue.Done, Delay: time.Second.Microseconds()}}})
		e.advance(1100 * time.Millisecond)
		e.keys("a")
	},
	"Delete: dead and delayed keys go, and what is only remembered": func(e *env) {
		e.adds(workqueue.Queued, "dead", "idle")
		ls := e.keys("dead", "idle")
		e.end(ls[0], workqueue.Dead, workqueue.Settled)
		e.do(workqueue.Op{Kind: workqueue.OpSave, Key: "idle", Token: ls[1].Token, More: &workqueue.More{Data: []byte("x")}})
		e.end(ls[1], workqueue.Forget, workqueue.Settled)
		e.do(addAfter("late", time.Hour))
		for _, k := range []string{"dead", "late", "idle"} {
			e.wants(workqueue.OpDelete, k, workqueue.OK)
			e.wants(workqueue.OpDelete, k, workqueue.Unchanged)
		}
		e.counts(workqueue.Counts{})
	},
	"Delete: one key of several in line": func(e *env) {
		e.adds(workqueue.Queued, "a", "b", "c")
		r := e.apply(workqueue.Transaction{
			Ops:   []workqueue.Op{of(workqueue.OpDelete, "b"), add("d"), of(workqueue.OpDelete, "d"), add("b")},
			Takes: []workqueue.Take{{Holder: "w", Max: 10}},
		})
		if got := names(r.Leases); !slices.Equal(got, []string{"a", "c", "b"}) {
			e.Errorf("leased %v, want a, c, b", got)
		}
	},
}
