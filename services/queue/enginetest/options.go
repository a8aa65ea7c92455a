package enginetest

import (
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// with is a fresh queue of another configuration.
func (e *env) with(cfg workqueue.Config) *env {
	e.Helper()
	return newEnv(e.T, e.fx, cfg)
}

func limited(key string, once uint64) workqueue.Op {
	op := add(key)
	op.Limited, op.Once = true, once
	return op
}

// optionRules are what a queue's configuration changes.
var optionRules = map[string]func(*env){
	"where delays are absorbed, an immediate add takes the pending one away": func(e *env) {
		e = e.with(workqueue.Config{AbsorbDelays: true})
		e.do(addAfter("a", 5*time.Second))
		e.adds(workqueue.Queued, "a")
		e.counts(workqueue.Counts{Ready: 1})
		l := e.one("a")
		e.do(addAfter("a", 5*time.Second)) // held, not dirty: it waits
		e.counts(workqueue.Counts{Processing: 1, Delayed: 1})
		e.adds(workqueue.MarkedDirty, "a")
		e.counts(workqueue.Counts{Processing: 1, Dirty: 1})
		e.end(l, workqueue.Done, workqueue.Requeued)
		e.end(e.one("a"), workqueue.Done, workqueue.Settled)
		e.advance(6 * time.Second)
		e.none()
	},
	"where delays are absorbed, a key that waits takes none, only a higher priority": func(e *env) {
		e = e.with(workqueue.Config{AbsorbDelays: true, Limiter: exponential(time.Second, time.Minute)})
		e.adds(workqueue.Queued, "b", "a")
		late := addAfter("a", 5*time.Second)
		late.Level = workqueue.Level(2)
		if got := e.do(late); got.Status != workqueue.AlreadyQueued || got.ReadyAt != 0 {
			e.Errorf("delayed add of a waiting key = %+v", got)
		}
		if got := e.do(limited("a", 0)); got.Status != workqueue.AlreadyQueued || got.Requeues != 1 {
			e.Errorf("limited add of a waiting key = %+v, want it counted", got)
		}
		e.counts(workqueue.Counts{Ready: 2})
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		if got := e.do(addAfter("a", 5*time.Second)); got.Status != workqueue.MarkedDirty {
			e.Errorf("delayed add of a dirty key = %+v", got)
		}
		e.end(l, workqueue.Retry, workqueue.Requeued)
		e.counts(workqueue.Counts{Ready: 2})
	},
	"where delays are absorbed, a key given back at once has no delay left": func(e *env) {
		e = e.with(workqueue.Config{AbsorbDelays: true})
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.do(addAfter("a", 5*time.Second))
		e.end(l, workqueue.Release, workqueue.Settled)
		e.counts(workqueue.Counts{Ready: 1})
	},
	"every limited add is charged, also while a delay is pending": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(time.Second, time.Minute)})
		for i := range 3 {
			if got := e.do(limited("a", 0)); got.Status != workqueue.Delayed || got.Requeues != i+1 {
				e.Errorf("call %d = %+v", i, got)
			}
		}
	},
	"with reserve-once a limited add is free while the limiter's delay is pending": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(10*time.Second, time.Hour), ReserveOnce: true})
		first := e.do(limited("a", 0))
		raised := limited("a", 0)
		raised.Level = workqueue.Level(3)
		if got := e.do(raised); got.Status != workqueue.Delayed || got.Requeues != 1 || got.ReadyAt != first.ReadyAt {
			e.Errorf("second call = %+v, want the first's %+v", got, first)
		}
		e.do(addAfter("a", time.Second)) // an earlier time of somebody else: no longer the limiter's
		if got := e.do(limited("a", 0)); got.Requeues != 2 {
			e.Errorf("beside a plain delay = %+v, want it charged", got)
		}
		e.do(limited("b", 0))
		e.advance(10*time.Second + 100*time.Millisecond)
		for _, l := range e.get(10) {
			if l.Key == "a" && l.Level != workqueue.Level(3) {
				e.Errorf("the free add did not raise the level: %d", l.Level)
			}
			e.end(l, workqueue.Retry, workqueue.Settled)
		}
		if got := e.do(limited("b", 0)); got.Requeues != 2 {
			e.Errorf("while a retry's delay is pending = %+v, want it free", got)
		}
	},
	"a limited add of one name is charged once while its delay is pending": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(10*time.Second, time.Hour)})
		const name = 1<<63 + 12345
		first := e.do(limited("a", name))
		if got := e.do(limited("a", name)); got.Status != workqueue.Delayed || got.Requeues != 1 || got.ReadyAt != first.ReadyAt {
			e.Errorf("sent again = %+v, want the first's %+v", got, first)
		}
		if got := e.do(limited("a", name+1)); got.Requeues != 2 || got.ReadyAt != first.ReadyAt {
			e.Errorf("another name = %+v, want it charged, the earliest time kept", got)
		}
		if got := e.do(limited("a", name)); got.Requeues != 2 {
			e.Errorf("the first name, whose time is still pending = %+v, want it free", got)
		}
		if got := e.do(limited("a", 0)); got.Requeues != 3 {
			e.Errorf("no name = %+v, want it charged", got)
		}
		e.advance(11 * time.Second)
		e.one("a")
		if got := e.do(limited("a", name)); got.Requeues != 4 {
			e.Errorf("after the delay = %+v, want it charged", got)
		}
	},
	"aging: every eighth lease goes to the key that has waited longest": func(e *env) {
		e = e.with(workqueue.Config{Aging: time.Minute})
		e.do(addP("low-1", -4))
		e.advance(time.Second)
		e.do(addP("mid-1", 0))
		e.do(addP("low-2", -4))
		e.advance(90 * time.Second)
		var want []string
		for i := range 20 {
			k := "top-" + strconv.Itoa(i)
			e.do(addP(k, 3))
			want = append(want, k)
		}
		// Leases 8 and 16 are for who waited longest; the third of them finds only young keys.
		want = append(want[:7:7], append([]string{"low-1"}, append(want[7:14:14], append([]string{"mid-1"}, want[14:]...)...)...)...)
		e.keys(append(want, "low-2")...)
	},
	"aging: before its time priority is strict": func(e *env) {
		e = e.with(workqueue.Config{Aging: time.Minute})
		e.do(addP("low", -4))
		e.advance(30 * time.Second)
		var want []string
		for i := range 10 {
			k := "top-" + strconv.Itoa(i)
			e.do(addP(k, 3))
			want = append(want, k)
		}
		e.keys(append(want, "low")...)
	},
	"the dispatch limiter bounds how fast keys are handed out": func(e *env) {
		e = e.with(workqueue.Config{Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 3}})
		for i := range 6 {
			e.adds(workqueue.Queued, "k"+strconv.Itoa(i))
		}
		if diff := cmp.Diff(names(e.get(10)), []string{"k0", "k1", "k2"}); diff != "" {
			e.Fatalf("at once (-got +want):\n%s", diff)
		}
		e.none()
		e.advance(101 * time.Second)
		e.keys("k3")
		e.advance(1000 * time.Second) // 10 tokens, of which the burst is kept; expired leases come back
		if n := len(e.get(10)); n != 3 {
			e.Errorf("%d leases after 1000 s, want the burst of 3", n)
		}
	},
	"MaxProcessing: a lease is not extended past it": func(e *env) {
		e = e.with(workqueue.Config{LeaseFor: 10 * time.Second, MaxProcessing: 25 * time.Second})
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		ext := workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 10e6}
		var deadline int64
		for range 3 {
			e.advance(8 * time.Second)
			deadline = e.do(ext).Deadline
		}
		if got := deadline - l.Deadline; got < 14e6 || got > 16e6 {
			e.Errorf("extended by %d us altogether, want 15 s: 25 s after the start", got)
		}
		if got := e.do(workqueue.Op{Kind: workqueue.OpExtend, Key: "a", Token: l.Token, For: 1e6}); got.Deadline != deadline {
			e.Errorf("a shorter extension moved the deadline by %d us", got.Deadline-deadline)
		}
		e.advance(2 * time.Second)
		e.one("a")
	},
	"MaxLease: a lease that is asked to be longer is cut to it": func(e *env) {
		e = e.with(workqueue.Config{LeaseFor: 2 * time.Second, MaxLease: 5 * time.Second})
		e.adds(workqueue.Queued, "a", "b", "c")
		for _, tc := range []struct{ ask, want time.Duration }{{0, 2 * time.Second}, {4 * time.Second, 4 * time.Second}, {time.Minute, 5 * time.Second}} {
			r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: tc.ask.Microseconds()}}})
			if len(r.Leases) != 1 {
				e.Fatalf("asked for %v: %d leases, want 1", tc.ask, len(r.Leases))
			}
			e.after(r, r.Leases[0].Deadline, tc.want)
			if tc.ask < time.Minute {
				continue
			}
			e.advance(3 * time.Second)
			r = e.apply(workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpExtend, Key: "c", Token: r.Leases[0].Token, For: 60e6}}})
			e.after(r, r.Replies[0].Deadline, 5*time.Second)
		}
	},
	"changing the limiter keeps the failures, and its buckets start full": func(e *env) {
		e = e.with(workqueue.Config{Limiter: exponential(time.Second, time.Hour)})
		for range 3 {
			e.do(limited("a", 0))
		}
		next := workqueue.Config{Limiter: &backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
			{Kind: backoff.Exponential, Base: time.Millisecond, Max: time.Hour},
			{Kind: backoff.Bucket, Rate: 0.001, Burst: 2},
		}}}
		if _, _, err := e.fx.Engine.Configure(e.Context(), e.name, next); err != nil {
			e.Fatal(err)
		}
		op := limited("a", 0)
		op.Last = true
		for i, want := range []time.Duration{8 * time.Millisecond, 16 * time.Millisecond, 1000 * time.Second} {
			r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{op}})
			if got := r.Replies[0]; got.Requeues != 4+i {
				e.Errorf("call %d: %d requeues, want %d", i, got.Requeues, 4+i)
			}
			if got := r.Replies[0].ReadyAt - r.Now; got < want.Microseconds()-5e6 || got > want.Microseconds()+1e6 {
				e.Errorf("call %d waits %d us, want %v", i, got, want)
			}
		}
	},
}

// dispatchRules need what only a store tells.
var dispatchRules = map[string]func(*env){
	"KeepLeases: no lease expires in such a transaction, and keys that are ready and due go on": func(e *env) {
		e.adds(workqueue.Queued, "a")
		e.one("a")
		e.do(addAfter("b", time.Second))
		e.advance(time.Minute)
		r := e.apply(workqueue.Transaction{KeepLeases: true, Takes: []workqueue.Take{{Holder: "w", Max: 5}}})
		if len(r.Leases) != 1 || r.Leases[0].Key != "b" || r.Expired != 0 || r.NextDue != 0 {
			e.Errorf("leases %v, %d expired, next due %d: want b, and nothing due", names(r.Leases), r.Expired, r.NextDue)
		}
		e.one("a")
	},
	"the next due time tells when the dispatch limiter has its next token": func(e *env) {
		e = e.with(workqueue.Config{Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 1}, MaxLease: time.Hour})
		e.adds(workqueue.Queued, "a")
		if got := e.apply(workqueue.Transaction{}).NextDue; got != 0 {
			e.Errorf("next due %d while a token is there, want none", got)
		}
		first := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 1, For: time.Hour.Microseconds()}}})
		if len(first.Leases) != 1 || first.NextDue != first.Leases[0].Deadline {
			e.Fatalf("next due %d with nothing ready, want the deadline", first.NextDue)
		}
		e.adds(workqueue.Queued, "b")
		if r := e.apply(workqueue.Transaction{}); r.NextDue != first.Now+100e6 {
			e.Errorf("next due %d, want the next token 100 s after %d", r.NextDue, first.Now)
		}
		e.do(workqueue.Op{Kind: workqueue.OpPause})
		if r := e.apply(workqueue.Transaction{}); r.NextDue != first.Leases[0].Deadline {
			e.Errorf("next due %d of a paused queue, want the deadline", r.NextDue)
		}
	},
	"a dispatch limiter of the same rate keeps its bucket, whatever else is configured": func(e *env) {
		cfg := workqueue.Config{Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 2}}
		e = e.with(cfg)
		e.adds(workqueue.Queued, "a", "b", "c", "d")
		e.keys("a", "b")
		e.advance(60 * time.Second)
		before := e.apply(workqueue.Transaction{}).NextDue
		for i := range 3 {
			cfg.Dispatch = new(*cfg.Dispatch)
			cfg.LeaseFor = time.Duration(i) * time.Minute // the first one changes nothing at all
			e.configure(cfg)
			if got := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 9}}}); len(got.Leases) != 0 || got.NextDue != before {
				e.Fatalf("configuration %d: leased %v, next token at %d, want none before %d", i, names(got.Leases), got.NextDue, before)
			}
		}
		e.advance(41 * time.Second)
		e.keys("c")
	},
	"a dispatch limiter that was empty starts empty with another rate": func(e *env) {
		cfg := workqueue.Config{Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 1}, LeaseFor: time.Hour}
		e = e.with(cfg)
		e.adds(workqueue.Queued, "a", "b", "c", "d", "e")
		last := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 9}}})
		if diff := cmp.Diff(names(last.Leases), []string{"a"}); diff != "" {
			e.Fatalf("at once (-got +want):\n%s", diff)
		}
		for _, rate := range []workqueue.Rate{{QPS: 0.1, Burst: 1}, {QPS: 0.02, Burst: 2}, {QPS: 0.02, Burst: 3}, {QPS: 0.3, Burst: 1}} {
			e.advance(time.Second)
			cfg.Dispatch = &rate
			from := e.apply(workqueue.Transaction{}).Now
			e.configure(cfg)
			r := e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 9}}})
			interval := int64(1e6 / rate.QPS)
			if len(r.Leases) != 0 || r.NextDue < from+interval || r.NextDue > r.Now+interval+1 {
				e.Fatalf("%+v: leased %v, next token at %d, want it %d after the change at %d to %d", rate, names(r.Leases), r.NextDue, interval, from, r.Now)
			}
		}
		e.advance(4 * time.Second)
		e.keys("b")
	},
	"a dispatch limiter that had a token starts full with another rate": func(e *env) {
		cfg := workqueue.Config{Dispatch: &workqueue.Rate{QPS: 0.01, Burst: 2}, LeaseFor: time.Hour}
		e = e.with(cfg)
		e.adds(workqueue.Queued, "a", "b", "c", "d", "e", "f", "g")
		e.one("a")
		cfg.Dispatch = &workqueue.Rate{QPS: 0.001, Burst: 3}
		e.configure(cfg)
		e.keys("b", "c", "d")
		cfg.Dispatch = nil
		e.configure(cfg)
		e.one("e")
		cfg.Dispatch = &workqueue.Rate{QPS: 0.001, Burst: 1}
		e.configure(cfg)
		e.keys("f")
	},
}
