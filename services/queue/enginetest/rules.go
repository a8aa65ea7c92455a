package enginetest

import (
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

var addRules = map[string]func(*env){
	"a key waits once however often it is added": func(e *env) {
		e.adds(workqueue.Queued, "foo", "bar")
		e.adds(workqueue.AlreadyQueued, "foo", "foo")
		e.counts(workqueue.Counts{Ready: 2})
		e.keys("foo", "bar")
	},
	"any number of adds while a key is leased make exactly one more run": func(e *env) {
		e.adds(workqueue.Queued, "foo")
		l := e.one("foo")
		e.adds(workqueue.MarkedDirty, "foo", "foo", "foo")
		e.none() // never two holders
		e.counts(workqueue.Counts{Processing: 1, Dirty: 1})
		e.end(l, workqueue.Done, workqueue.Requeued)
		l2 := e.one("foo")
		if l2.Token <= l.Token {
			e.Errorf("token %d after %d, must grow", l2.Token, l.Token)
		}
		e.end(l2, workqueue.Done, workqueue.Settled)
		e.none()
		e.counts(workqueue.Counts{})
	},
	"a key that was added while leased comes back at the tail": func(e *env) {
		e.adds(workqueue.Queued, "foo")
		l := e.one("foo")
		e.adds(workqueue.MarkedDirty, "foo")
		e.adds(workqueue.Queued, "bar")
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.keys("bar", "foo")
	},
	"Len counts neither leased nor dirty keys": func(e *env) {
		e.adds(workqueue.Queued, "a", "b", "c")
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		e.counts(workqueue.Counts{Ready: 2, Processing: 1, Dirty: 1})
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.counts(workqueue.Counts{Ready: 3})
	},
	"a closed queue refuses adds and is worked off": func(e *env) {
		e.adds(workqueue.Queued, "a", "b")
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		e.do(workqueue.Op{Kind: workqueue.OpClose})
		e.adds(workqueue.Closed, "c")
		if got := e.do(addAfter("c", time.Second)); got.Status != workqueue.Closed {
			e.Errorf("AddAfter: status %d, want Closed", got.Status)
		}
		e.end(l, workqueue.Done, workqueue.Requeued) // dirty at shutdown still comes back
		e.keys("b", "a")
		if st, err := e.q.Status(e.Context()); err != nil || !st.Closed {
			e.Errorf("Status = %+v, %v, want closed", st, err)
		}
		e.do(workqueue.Op{Kind: workqueue.OpOpen})
		e.adds(workqueue.Queued, "c")
	},
	"higher priority first, FIFO inside one": func(e *env) {
		for _, op := range []workqueue.Op{addP("low", -4), addP("a", 0), addP("top", 3), addP("b", 0), addP("mid", 1)} {
			e.do(op)
		}
		e.keys("top", "mid", "a", "b", "low")
	},
	"a duplicate keeps the higher priority and goes to its tail": func(e *env) {
		for _, op := range []workqueue.Op{addP("foo", 0), addP("bar", 1), addP("foo", 1), addP("bar", -1)} {
			e.do(op)
		}
		e.keys("bar", "foo")
	},
	"a place given up is skipped once, not twice": func(e *env) {
		e.do(addP("foo", 0))
		e.do(addP("foo", 1)) // leaves a place at 0
		l := e.one("foo")
		e.end(l, workqueue.Forget, workqueue.Settled)
		e.do(addP("other", 0))
		e.do(addP("foo", 0)) // behind other
		e.counts(workqueue.Counts{Ready: 2})
		e.keys("other", "foo")
		e.none()
	},
	"a key raised inside one transaction is not leased twice": func(e *env) {
		r := e.apply(workqueue.Transaction{
			Ops:   []workqueue.Op{addP("foo", 0), addP("foo", 2), addP("bar", 0), addP("foo", 0)},
			Takes: []workqueue.Take{{Holder: "a", Max: 1}, {Holder: "b", Max: 5}},
		})
		if diff := cmp.Diff(names(r.Leases), []string{"foo", "bar"}); diff != "" {
			e.Errorf("leased (-got +want):\n%s", diff)
		}
		if r.Leases[0].Take != 0 || r.Leases[1].Take != 1 {
			e.Errorf("takes %d and %d, want 0 and 1", r.Leases[0].Take, r.Leases[1].Take)
		}
		e.none()
	},
	"a retry keeps its priority, or takes the one given": func(e *env) {
		e.do(addP("a", 2))
		l := e.one("a")
		e.end(l, workqueue.Release, workqueue.Settled)
		l = e.one("a")
		if l.Level != workqueue.Level(2) {
			e.Errorf("level %d, want that of priority 2", l.Level)
		}
		op := settle(l, workqueue.Release)
		op.Relevel, op.Level = true, workqueue.Level(-3)
		e.do(op)
		if l = e.one("a"); l.Level != workqueue.Level(-3) {
			e.Errorf("level %d, want that of priority -3", l.Level)
		}
	},
}

var leaseRules = map[string]func(*env){
	"an expired lease makes the key wait again exactly once": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		e.advance(31 * time.Second)
		r := e.apply(workqueue.Transaction{})
		if !e.fx.Remote && r.Expired != 1 || r.Counts != (workqueue.Counts{Ready: 1}) {
			e.Fatalf("expired %d, counts %+v", r.Expired, r.Counts)
		}
		l2 := e.one("a")
		if l2.Token <= l.Token || l2.Attempt != 2 || l2.Requeues != 0 {
			e.Errorf("lease %+v: want a higher token, attempt 2, no failure counted", l2)
		}
		e.end(l2, workqueue.Done, workqueue.Settled)
		e.none()
	},
	"a stale token changes nothing": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.advance(31 * time.Second)
		e.apply(workqueue.Transaction{})
		e.end(l, workqueue.Done, workqueue.Lost) // waits again
		l2 := e.one("a")
		for _, o := range []workqueue.Outcome{workqueue.Done, workqueue.Forget, workqueue.Retry, workqueue.After, workqueue.Release, workqueue.Dead} {
			e.end(l, o, workqueue.Lost)
		}
		for _, k := range []workqueue.OpKind{workqueue.OpExtend, workqueue.OpSave, workqueue.OpExpect} {
			op := workqueue.Op{Kind: k, Key: "a", Token: l.Token, For: 1e6, More: &workqueue.More{Data: []byte("x"), Owner: "u", Creates: []string{"c"}}}
			if got := e.do(op); got.Status != workqueue.Lost {
				e.Errorf("kind %d: status %d, want Lost", k, got.Status)
			}
		}
		e.end(l2, workqueue.Done, workqueue.Settled)
		e.end(l2, workqueue.Done, workqueue.NotLeased)
	},
	"settling a key that nobody holds is refused and changes nothing": func(e *env) {
		e.adds(workqueue.Queued, "a")
		e.end(workqueue.Lease{Key: "a", Token: 1}, workqueue.Done, workqueue.NotLeased)
		e.end(workqueue.Lease{Key: "never", Token: 1}, workqueue.Retry, workqueue.NotLeased)
		e.keys("a")
	},
	"extending keeps the lease, until it has expired": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		ext := workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: (30 * time.Second).Microseconds()}
		for range 3 {
			e.advance(20 * time.Second)
			if got := e.do(ext); got.Status != workqueue.Settled || got.Deadline <= l.Deadline {
				e.Fatalf("extend = %+v", got)
			}
		}
		e.none()
		e.advance(31 * time.Second)
		e.apply(workqueue.Transaction{})
		if got := e.do(ext); got.Status != workqueue.Lost {
			e.Errorf("extend after expiry: status %d, want Lost", got.Status)
		}
		e.one("a")
	},
	"a worker may ask for its own lease time": func(e *env) {
		e.adds(workqueue.Queued, "a")
		r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: 2e6}}})
		e.after(r, r.Leases[0].Deadline, 2*time.Second)
	},
	"tokens grow although many are given in one microsecond": func(e *env) {
		for i := range 100 {
			e.do(add("k" + string(rune('a'+i%26)) + string(rune('a'+i/26))))
		}
		last := uint64(0)
		for _, l := range e.get(1000) {
			if l.Token <= last {
				e.Fatalf("token %d after %d", l.Token, last)
			}
			last = l.Token
		}
	},
}

var timeRules = map[string]func(*env){
	"a delay of zero or less is an add": func(e *env) {
		if got := e.do(addAfter("a", 0)); got.Status != workqueue.Queued {
			e.Errorf("status %d, want Queued", got.Status)
		}
		if got := e.do(addAfter("b", -time.Second)); got.Status != workqueue.Queued {
			e.Errorf("status %d, want Queued", got.Status)
		}
		e.keys("a", "b")
	},
	"a delayed key is handed out when due, once": func(e *env) {
		if got := e.do(addAfter("foo", 5*time.Second)); got.Status != workqueue.Delayed {
			e.Fatalf("status %d, want Delayed", got.Status)
		}
		e.none()
		e.counts(workqueue.Counts{Delayed: 1})
		e.advance(5100 * time.Millisecond)
		l := e.one("foo")
		e.end(l, workqueue.Done, workqueue.Settled)
		e.advance(20 * time.Second)
		e.none()
	},
	"the earliest due time wins, either way round (TestDeduping)": func(e *env) {
		e.do(addAfter("a", 50*time.Second))
		first := e.do(addAfter("a", 70*time.Second)).ReadyAt
		e.do(addAfter("b", 50*time.Second))
		second := e.do(addAfter("b", 30*time.Second)).ReadyAt
		if first <= second {
			e.Errorf("due %d and %d", first, second)
		}
		e.advance(31 * time.Second)
		e.keys("b")
		e.advance(20 * time.Second)
		e.keys("a")
	},
	"the last due time wins when asked (kubelet)": func(e *env) {
		e.do(addAfter("a", 10*time.Second))
		op := addAfter("a", 60*time.Second)
		op.Last = true
		e.do(op)
		e.advance(30 * time.Second)
		e.none()
		e.advance(31 * time.Second)
		e.keys("a")
	},
	"keys come in the order of their due times (TestCopyShifting)": func(e *env) {
		e.do(addAfter("first", time.Second))
		e.do(addAfter("second", 500*time.Millisecond))
		e.do(addAfter("third", 250*time.Millisecond))
		e.advance(2 * time.Second)
		e.keys("third", "second", "first")
	},
	"a pending delay is not cancelled by an add, a forget or a settlement": func(e *env) {
		e.do(addAfter("a", 5*time.Second))
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.do(workqueue.Op{Kind: workqueue.OpForget, Key: "a"})
		e.end(l, workqueue.Forget, workqueue.Settled)
		e.counts(workqueue.Counts{Delayed: 1})
		e.advance(6 * time.Second)
		e.keys("a")
	},
	"a delay that fires while the key is held makes it dirty": func(e *env) {
		e.do(addAfter("a", 5*time.Second))
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.advance(6 * time.Second)
		e.counts(workqueue.Counts{Processing: 1, Dirty: 1})
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.keys("a")
	},
	"a delayed key survives a shutdown and is handed out when due": func(e *env) {
		e.do(addAfter("a", 5*time.Second))
		e.do(workqueue.Op{Kind: workqueue.OpClose})
		e.counts(workqueue.Counts{Delayed: 1})
		e.advance(6 * time.Second)
		e.keys("a")
	},
	"counts of ready, delayed and leased keys show how far a drain is": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(time.Second, time.Hour)})
		e.adds(workqueue.Queued, "a", "b")
		e.do(addAfter("c", 5*time.Second))
		l := e.one("a")
		e.do(workqueue.Op{Kind: workqueue.OpClose})
		e.counts(workqueue.Counts{Ready: 1, Delayed: 1, Processing: 1})
		e.end(l, workqueue.Done, workqueue.Settled)
		e.end(e.one("b"), workqueue.Retry, workqueue.Settled)
		e.counts(workqueue.Counts{Delayed: 2})
		e.advance(6 * time.Second)
		for _, l := range e.get(10) {
			e.end(l, workqueue.Forget, workqueue.Settled)
		}
		e.counts(workqueue.Counts{})
	},
	"keys that fall due together come in the order of their times, behind what was ready before": func(e *env) {
		e.do(addAfter("late", 2*time.Second))
		e.do(addAfter("early", time.Second))
		e.adds(workqueue.Queued, "a")
		e.advance(3 * time.Second)
		e.keys("a", "early", "late")
	},
	"a duplicate delayed add keeps the higher priority and the earlier time": func(e *env) {
		for _, op := range []workqueue.Op{addP("a", 1), addP("a", 3), addP("a", -2)} {
			op.Delay = 1e6
			e.do(op)
		}
		e.advance(1100 * time.Millisecond)
		e.do(addP("b", 2))
		e.keys("a", "b")
	},
	"a delayed key keeps its priority": func(e *env) {
		op := addP("late", 3)
		op.Delay = 1e6
		e.do(op)
		e.adds(workqueue.Queued, "a")
		e.advance(2 * time.Second)
		e.keys("late", "a")
	},
}

// storeRules need what only a store tells.
var storeRules = map[string]func(*env){
	"transactions without operations tell when what is kept for a time expires, and free it": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 1, "7"))}
		e.do(op)
		e.end(e.one("a"), workqueue.Done, workqueue.Settled)
		e.do(workqueue.Op{Kind: workqueue.OpBackoffNext, Key: "id"})
		about := func(r *workqueue.Result) {
			e.Helper()
			if in := r.NextSweep - r.Now; in < 290e6 || in > 300e6+1 {
				e.Errorf("next sweep in %v, want 5 min", time.Duration(in)*time.Microsecond)
			}
		}
		about(e.apply(workqueue.Transaction{}))
		e.advance(5 * time.Minute)
		about(e.apply(workqueue.Transaction{})) // the barrier's time is over; the entry is left
		e.advance(6 * time.Minute)
		if r := e.apply(workqueue.Transaction{}); r.NextSweep != 0 {
			e.Errorf("next sweep at %d, want none: nothing is kept", r.NextSweep)
		}
	},
	"shortening ends a lease sooner, extending never does": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		ext := workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 1e6}
		if got := e.do(ext); got.Deadline != l.Deadline {
			e.Errorf("extend by 1 s moved the deadline to %d, was %d", got.Deadline, l.Deadline)
		}
		ext.Shorten = true
		if got := e.do(ext); got.Deadline >= l.Deadline {
			e.Errorf("shorten left the deadline at %d, was %d", got.Deadline, l.Deadline)
		}
		e.advance(1100 * time.Millisecond)
		e.one("a")
	},
	"shortening leaves a lease alone that was extended since its deadline was known": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.advance(time.Second)
		later := e.do(workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 30e6}).Deadline
		short := workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 1e6, Shorten: true, Known: l.Deadline}
		if got := e.do(short); got.Status != workqueue.Settled || got.Deadline != later {
			e.Errorf("shorten of an older deadline gave %+v, want deadline %d", got, later)
		}
		short.Known = later
		if got := e.do(short); got.Deadline >= later {
			e.Errorf("shorten left the deadline at %d, was %d", got.Deadline, later)
		}
	},
	"the next due time is the earliest of delays and leases": func(e *env) {
		d := e.do(addAfter("a", 5*time.Second)).ReadyAt
		if got := e.apply(workqueue.Transaction{}).NextDue; got != d {
			e.Errorf("next due %d, want %d", got, d)
		}
		e.adds(workqueue.Queued, "b")
		r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: 2e6}}})
		if r.NextDue != r.Leases[0].Deadline {
			e.Errorf("next due %d, want the deadline %d", r.NextDue, r.Leases[0].Deadline)
		}
	},
	"adds are transitions to waiting, retries are delayed or limited adds": func(e *env) {
		r := e.apply(workqueue.Transaction{
			Ops:   []workqueue.Op{add("a"), add("a"), add("b"), addAfter("c", time.Second), addAfter("c", 2*time.Second)},
			Takes: []workqueue.Take{{Holder: "w", Max: 1}},
		})
		if r.Added != 2 || r.Retried != 2 {
			e.Errorf("added %d, retried %d, want 2 and 2", r.Added, r.Retried)
		}
		r = e.apply(workqueue.Transaction{Ops: []workqueue.Op{add("a"), add("a"), settle(r.Leases[0], workqueue.Retry)}})
		if r.Added != 1 || r.Retried != 1 {
			e.Errorf("added %d, retried %d, want 1 and 1", r.Added, r.Retried)
		}
		e.advance(2 * time.Second)
		if r = e.apply(workqueue.Transaction{}); r.Promoted != 2 || r.Added != 1 { // a was ready already
			e.Errorf("promoted %d, added %d, want 2 and 1", r.Promoted, r.Added)
		}
	},
}
