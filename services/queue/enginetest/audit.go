package enginetest

import (
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// audit walks over all keys once and wants so many to get a deadline.
func (e *env) audit(want int) {
	e.Helper()
	found, at := 0, int64(0)
	for range 10_000 {
		r := e.do(workqueue.Op{Kind: workqueue.OpAudit, Count: int(at)})
		found, at = found+r.Count, r.Next
		if at == 0 {
			if found != want {
				e.Fatalf("an audit found %d keys held without a deadline, want %d", found, want)
			}
			return
		}
	}
	e.Fatal("an audit came to no end")
}

func (e *env) orphan(keys ...string) {
	e.Helper()
	for _, k := range keys {
		e.fx.Orphan(e.T, e.name, k)
	}
}

// auditRules are of keys that are held without a deadline. LeaseFor is shorter
// than MaxLease in them, so that a test can distinguish the two.
var auditRules = map[string]func(*env){
	"an audit finds nothing where nothing is wrong": audited(func(e *env) {
		e.audit(0)
		e.adds(workqueue.Queued, "a", "b", "c")
		e.do(addAfter("later", time.Hour))
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		e.end(e.one("b"), workqueue.Dead, workqueue.Settled)
		e.audit(0)
		if at := e.inspect("a").Deadline; at != l.Deadline {
			e.Errorf("deadline %d, was %d", at, l.Deadline)
		}
		e.counts(workqueue.Counts{Ready: 1, Delayed: 1, Processing: 1, Dirty: 1, Dead: 1})
	}),
	"a key held without a deadline is handed out again after the longest lease, not before": audited(func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.orphan("a")
		e.advance(time.Hour)
		e.none() // for ever, but for the audit
		r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAudit}}})
		if in := time.Duration(r.NextDue-r.Now) * time.Microsecond; r.Replies[0].Count != 1 || in != 20*time.Second {
			e.Errorf("%d found, next due in %v, want the longest lease of 20 s", r.Replies[0].Count, in)
		}
		e.audit(0)
		e.counts(workqueue.Counts{Processing: 1})
		e.advance(19500 * time.Millisecond)
		e.none()
		e.advance(600 * time.Millisecond)
		again := e.one("a")
		if again.Token <= l.Token || again.Attempt != 2 {
			e.Errorf("leased again as %+v, want a higher token and attempt 2", again)
		}
		e.none()
		e.end(l, workqueue.Done, workqueue.Lost)
		e.end(again, workqueue.Done, workqueue.Settled)
		e.counts(workqueue.Counts{})
	}),
	"its holder settles it, before the audit and after": audited(func(e *env) {
		e.adds(workqueue.Queued, "a", "b", "c")
		ls := e.keys("a", "b", "c")
		e.adds(workqueue.MarkedDirty, "c")
		e.orphan("a", "b", "c")
		e.end(ls[0], workqueue.Done, workqueue.Settled)
		e.audit(2)
		e.advance(15 * time.Second)
		e.end(ls[1], workqueue.Forget, workqueue.Settled)
		e.end(ls[2], workqueue.Done, workqueue.Requeued)
		e.end(e.one("c"), workqueue.Done, workqueue.Settled)
		e.advance(time.Minute)
		e.none()
		e.counts(workqueue.Counts{})
		e.audit(0)
	}),
	"its holder extends it: then it has a deadline, and the audit leaves it alone": audited(func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.orphan("a")
		ext := e.do(workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 3e6})
		if ext.Status != workqueue.Settled || ext.Deadline == 0 {
			e.Errorf("extend = %+v", ext)
		}
		e.audit(0)
		e.advance(3100 * time.Millisecond)
		e.one("a")
	}),
	"settled, leased and audited in one transaction": audited(func(e *env) {
		e.adds(workqueue.Queued, "a", "b", "c")
		ls := e.keys("a", "b", "c")
		e.orphan("a", "b", "c")
		r := e.apply(workqueue.Transaction{
			Ops: []workqueue.Op{
				settle(ls[0], workqueue.Done), {Kind: workqueue.OpAudit}, settle(ls[1], workqueue.Done), settle(ls[2], workqueue.Release),
			},
			Takes: []workqueue.Take{{Holder: "w", Max: 5}},
		})
		if r.Counts != (workqueue.Counts{Processing: 1}) || len(r.Leases) != 1 || r.Leases[0].Key != "c" {
			e.Errorf("counts %+v, leases %+v: want c leased again", r.Counts, r.Leases)
		}
		e.advance(5100 * time.Millisecond) // the lease's own time
		e.one("c")
		e.audit(0)
	}),
	"among many": audited(func(e *env) {
		var lost []string
		t := workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1000}}}
		for i := range 3000 {
			t.Ops = append(t.Ops, add("k"+strconv.Itoa(i)))
			if i < 1000 && i%100 == 7 {
				lost = append(lost, "k"+strconv.Itoa(i))
			}
		}
		if n := len(e.apply(t).Leases); n != 1000 {
			e.Fatalf("%d leases, want 1000", n)
		}
		e.orphan(lost...)
		e.advance(6 * time.Second)
		for range 4 { // at most so many in one transaction
			e.apply(workqueue.Transaction{})
		}
		e.counts(workqueue.Counts{Ready: 2990, Processing: 10})
		e.audit(10)
		e.advance(20100 * time.Millisecond)
		e.counts(workqueue.Counts{Ready: 3000})
	}),
}

func audited(rule func(*env)) func(*env) {
	return func(e *env) { rule(e.with(workqueue.Config{LeaseFor: 5 * time.Second, MaxLease: 20 * time.Second})) }
}
