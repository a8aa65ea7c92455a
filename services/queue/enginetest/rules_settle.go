package enginetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

var settleRules = map[string]func(*env){
	"a retry waits as the limiter says, forget starts over": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{Limiter: exponential(time.Second, time.Minute)})
		e.adds(workqueue.Queued, "a")
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			l := e.one("a")
			if l.Requeues != i {
				e.Errorf("lease says %d requeues, want %d", l.Requeues, i)
			}
			r := e.apply(workqueue.Transaction{Ops: []workqueue.Op{settle(l, workqueue.Retry)}})
			if got := r.Replies[0]; got.Status != workqueue.Settled || got.Requeues != i+1 {
				e.Fatalf("retry %d = %+v", i, got)
			}
			e.after(r, r.Replies[0].ReadyAt, want)
			e.none()
			e.advance(want + 100*time.Millisecond)
		}
		l := e.one("a")
		e.end(l, workqueue.Forget, workqueue.Settled)
		if got := e.do(workqueue.Op{Kind: workqueue.OpRequeues, Key: "a"}).Requeues; got != 0 {
			e.Errorf("requeues after forget = %d, want 0", got)
		}
	},
	"done keeps the limiter's memory, Forget clears it without settling": func(e *env) {
		limited := add("a")
		limited.Limited = true
		e.do(limited)
		e.advance(time.Second)
		l := e.one("a")
		e.end(l, workqueue.Done, workqueue.Settled)
		if got := e.do(workqueue.Op{Kind: workqueue.OpRequeues, Key: "a"}).Requeues; got != 1 {
			e.Errorf("requeues after done = %d, want 1", got)
		}
		e.do(workqueue.Op{Kind: workqueue.OpForget, Key: "a"})
		if got := e.do(workqueue.Op{Kind: workqueue.OpRequeues, Key: "a"}).Requeues; got != 0 {
			e.Errorf("requeues after Forget = %d, want 0", got)
		}
	},
	"After forgets the failures and waits": func(e *env) {
		limited := add("a")
		limited.Limited = true
		e.do(limited)
		e.advance(time.Second)
		op := settle(e.one("a"), workqueue.After)
		op.Delay = 10e6
		if got := e.do(op); got.Status != workqueue.Settled || got.Requeues != 0 || got.ReadyAt == 0 {
			e.Fatalf("reply %+v", got)
		}
		e.none()
		e.advance(11 * time.Second)
		e.one("a")
	},
	"a retry of a dirty key runs at once and keeps its delay": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		op := settle(l, workqueue.After)
		op.Delay = 10e6
		if got := e.do(op); got.Status != workqueue.Requeued {
			e.Fatalf("reply %+v", got)
		}
		l = e.one("a")
		e.end(l, workqueue.Done, workqueue.Settled)
		e.advance(11 * time.Second)
		e.one("a")
	},
	"release gives back uncounted": func(e *env) {
		e.adds(workqueue.Queued, "a", "b")
		l := e.one("a")
		added := l.AddedAt
		e.advance(time.Second)
		e.end(l, workqueue.Release, workqueue.Settled)
		ls := e.keys("b", "a")
		if ls[1].Requeues != 0 || ls[1].Attempt != 1 || ls[1].AddedAt != added || ls[1].ReadyAt <= added {
			e.Errorf("lease %+v: want no failure, attempt 1, added at %d", ls[1], added)
		}
		op := settle(ls[1], workqueue.Release)
		op.Delay = 5e6
		e.do(op)
		e.none()
		e.advance(6 * time.Second)
		e.one("a")
	},
	"a dead key stays aside until it is added": func(e *env) {
		e.do(addAfter("a", time.Minute))
		e.adds(workqueue.Queued, "a")
		op := settle(e.one("a"), workqueue.Dead)
		op.More = &workqueue.More{Reason: "cannot be parsed"}
		e.do(op)
		e.counts(workqueue.Counts{Dead: 1})
		e.advance(2 * time.Minute)
		e.none()
		if it := e.inspect("a"); it.State != workqueue.StateDead || it.Reason != "cannot be parsed" {
			e.Errorf("item %+v", it)
		}
		e.adds(workqueue.Queued, "a")
		e.counts(workqueue.Counts{Ready: 1})
		e.one("a")
	},
	"a key that was added while leased does not become dead": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.adds(workqueue.MarkedDirty, "a")
		e.end(l, workqueue.Dead, workqueue.Requeued)
		e.counts(workqueue.Counts{Ready: 1})
	},
	"retried too often is dead": func(e *env) {
		e = newEnv(e.T, e.fx, workqueue.Config{Limiter: exponential(time.Second, time.Second), MaxRetries: 2})
		e.adds(workqueue.Queued, "a")
		for range 2 {
			e.end(e.one("a"), workqueue.Retry, workqueue.Settled)
			e.advance(1100 * time.Millisecond)
		}
		e.end(e.one("a"), workqueue.Retry, workqueue.Settled)
		e.counts(workqueue.Counts{Dead: 1})
		e.adds(workqueue.Queued, "a")
		if l := e.one("a"); l.Requeues != 0 {
			e.Errorf("a key brought back has %d requeues, want 0", l.Requeues)
		}
	},
	"barriers merge by the greater revision, with decimals of any length": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("dev/pods.v1", 1, "99"), mark("dev/jobs.v1.batch", 1, "7"))}
		e.do(op)
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("dev/pods.v1", 1, "100"), mark("dev/nodes.v1", 1, "123456789012345678901234567890"))}
		e.do(op)
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("dev/jobs.v1.batch", 2, "1"), mark("dev/nodes.v1", 1, "123456789012345678901234567889"))}
		e.do(op)
		want := workqueue.NewBarrier(mark("dev/pods.v1", 1, "100"), mark("dev/jobs.v1.batch", 2, "1"), mark("dev/nodes.v1", 1, "123456789012345678901234567890"))
		if diff := cmp.Diff(e.one("a").Barrier, want); diff != "" {
			e.Errorf("barrier (-got +want):\n%s", diff)
		}
	},
	"what lies above read_at is the next barrier, also after done, for the retention": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 1, "50"), mark("j", 1, "50"))}
		e.do(op)
		s := settle(e.one("a"), workqueue.Forget)
		s.More = &workqueue.More{
			Barrier: workqueue.NewBarrier(mark("p", 1, "60"), mark("j", 1, "40")),
			Wrote:   workqueue.NewBarrier(mark("p", 1, "70")),
		}
		e.do(s)
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		want := workqueue.NewBarrier(mark("j", 1, "50"), mark("p", 1, "70"))
		if diff := cmp.Diff(l.Barrier, want); diff != "" {
			e.Errorf("barrier (-got +want):\n%s", diff)
		}
		e.end(l, workqueue.Done, workqueue.Settled)
		e.advance(4 * time.Minute)
		if diff := cmp.Diff(e.inspect("a").Barrier, want); diff != "" {
			e.Errorf("after 4 min (-got +want):\n%s", diff)
		}
		e.advance(61 * time.Second)
		if b := e.inspect("a").Barrier; b != nil {
			e.Errorf("after the retention the barrier is %v", b)
		}
		e.adds(workqueue.Queued, "a")
		if b := e.one("a").Barrier; b != nil {
			e.Errorf("a new lease has the expired barrier %v", b)
		}
	},
	"what was written is part of the next barrier, also when the worker read that far": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("j", 1, "40"), mark("p", 1, "50"))}
		e.do(op)
		s := settle(e.one("a"), workqueue.Forget)
		s.More = &workqueue.More{
			Barrier: workqueue.NewBarrier(mark("j", 1, "45"), mark("p", 1, "60"), mark("q", 1, "9")),
			Wrote:   workqueue.NewBarrier(mark("p", 1, "60"), mark("q", 0, "7")),
		}
		e.do(s)
		e.adds(workqueue.Queued, "a")
		want := workqueue.NewBarrier(mark("p", 1, "60"), mark("q", 0, "7"))
		if diff := cmp.Diff(e.one("a").Barrier, want); diff != "" {
			e.Errorf("barrier (-got +want):\n%s", diff)
		}
	},
	"a barrier does not expire while its key waits": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 1, "50"))}
		e.do(op)
		op.Key, op.Delay = "b", time.Hour.Microseconds()
		e.do(op)
		e.advance(61 * time.Minute)
		for _, l := range e.keys("a", "b") {
			if len(l.Barrier) != 1 {
				e.Errorf("%s lost its barrier", l.Key)
			}
		}
	},
	"an epoch of zero means the current one": func(e *env) {
		op := add("a")
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 7, "50"))}
		e.do(op)
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("p", 0, "60"))}
		e.do(op)
		if diff := cmp.Diff(e.one("a").Barrier, workqueue.NewBarrier(mark("p", 7, "60"))); diff != "" {
			e.Errorf("barrier (-got +want):\n%s", diff)
		}
	},
	"a barrier of too many collections is refused": func(e *env) {
		op := add("a")
		for i := range workqueue.MaxMarks {
			op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("c"+strconv.Itoa(i), 1, "1"))}
			if got := e.do(op); got.Status == workqueue.BarrierFull {
				e.Fatalf("collection %d: status %d", i, got.Status)
			}
		}
		op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("toomany", 1, "1"))}
		if got := e.do(op); got.Status != workqueue.BarrierFull {
			e.Errorf("status %d, want BarrierFull", got.Status)
		}
		if n := len(e.one("a").Barrier); n != workqueue.MaxMarks {
			e.Errorf("barrier of %d collections, want %d", n, workqueue.MaxMarks)
		}
	},
	"a barrier that a settlement overfills is cut behind the first by name": func(e *env) {
		for i := range workqueue.MaxMarks {
			op := add("a")
			op.More = &workqueue.More{Barrier: workqueue.NewBarrier(mark("c"+strconv.Itoa(i), 1, "1"))}
			e.do(op)
		}
		op := settle(e.one("a"), workqueue.Done)
		op.More = &workqueue.More{Wrote: workqueue.NewBarrier(mark("b", 1, "1"))}
		if got := e.do(op); got.Status != workqueue.Settled {
			e.Errorf("status %d, want Settled", got.Status)
		}
		e.adds(workqueue.Queued, "a")
		b := e.one("a").Barrier
		if len(b) != workqueue.MaxMarks || b[0].Collection != mark("b", 1, "1").Collection {
			e.Errorf("barrier %v, want %d collections, the written one first", b, workqueue.MaxMarks)
		}
	},
}

func mark(c string, epoch uint64, rv string) workqueue.Mark {
	if !strings.Contains(c, "/") {
		c = "dev/" + c + ".v1"
	}
	return workqueue.Mark{Collection: c, Epoch: epoch, RV: rv}
}

var dataRules = map[string]func(*env){
	"the last eight traces are handed out, once": func(e *env) {
		var want []string
		for i := range 11 {
			op := add("a")
			op.Trace = fmt.Sprintf("00-%032d-%016d-01", i, i)
			want = append(want, op.Trace)
			e.do(op)
		}
		l := e.one("a")
		if diff := cmp.Diff(l.Traces, want[3:]); diff != "" {
			e.Errorf("traces (-got +want):\n%s", diff)
		}
		e.end(l, workqueue.Release, workqueue.Settled)
		if l := e.one("a"); l.Traces != nil {
			e.Errorf("traces again: %v", l.Traces)
		}
	},
	"saved state outlives done and forget, and is cleared by nothing": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		big := []byte(strings.Repeat("x\x00\xff", 1000))
		save := workqueue.Op{Kind: workqueue.OpSave, Key: "a", Token: l.Token, More: &workqueue.More{Data: big}}
		if got := e.do(save); got.Status != workqueue.Settled {
			e.Fatalf("status %d", got.Status)
		}
		e.end(l, workqueue.Forget, workqueue.Settled)
		e.do(workqueue.Op{Kind: workqueue.OpForget, Key: "a"})
		e.adds(workqueue.Queued, "a")
		l = e.one("a")
		if !slices.Equal(l.State, big) {
			e.Errorf("state of %d bytes, want %d", len(l.State), len(big))
		}
		if n := e.inspect("a").StateBytes; n != len(big) {
			e.Errorf("Inspect says %d bytes, want %d", n, len(big))
		}
		save.Token, save.More = l.Token, nil
		e.do(save)
		e.end(l, workqueue.Release, workqueue.Settled)
		if l = e.one("a"); l.State != nil {
			e.Errorf("state %q after it was cleared", l.State)
		}
	},
	"expectations come with the lease, are met by name, replaced, and expire": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		expect := workqueue.Op{Kind: workqueue.OpExpect, Key: "a", Token: l.Token, More: &workqueue.More{
			Owner: "u1", Creates: []string{"p-0", "p-1"}, Deletes: []string{"old"},
		}}
		if got := e.do(expect); got.Status != workqueue.Settled {
			e.Fatalf("status %d", got.Status)
		}
		observe := func(owner string, creates, deletes []string) workqueue.Reply {
			return e.do(workqueue.Op{Kind: workqueue.OpObserve, Key: "a", More: &workqueue.More{Owner: owner, Creates: creates, Deletes: deletes}})
		}
		observe("other", []string{"p-0"}, nil)
		observe("u1", []string{"p-0", "unknown"}, nil)
		observe("u1", []string{"p-0"}, nil)
		e.end(l, workqueue.Forget, workqueue.Settled)
		e.adds(workqueue.Queued, "a")
		l = e.one("a")
		if l.Expect == nil || !slices.Equal(l.Expect.Creates, []string{"p-1"}) || !slices.Equal(l.Expect.Deletes, []string{"old"}) || l.Expect.Owner != "u1" {
			e.Fatalf("lease expects %+v", l.Expect)
		}
		expect.Token, expect.More = l.Token, &workqueue.More{Owner: "u1", Creates: []string{"p-2"}}
		e.do(expect)
		if got := observe("", nil, nil).Expect; got == nil || !slices.Equal(got.Creates, []string{"p-2"}) || got.Deletes != nil || got.Token != l.Token {
			e.Fatalf("after replacing: %+v", got)
		}
		if got := observe("", []string{"p-2"}, nil).Expect; got != nil {
			e.Fatalf("after all was seen: %+v", got)
		}
		e.do(expect)
		e.advance(5*time.Minute + time.Second)
		if got := observe("", nil, nil).Expect; got != nil {
			e.Errorf("after 5 min: %+v", got)
		}
	},
	"expectations can be dropped": func(e *env) {
		e.adds(workqueue.Queued, "a")
		l := e.one("a")
		e.do(workqueue.Op{Kind: workqueue.OpExpect, Key: "a", Token: l.Token, More: &workqueue.More{Owner: "u", Creates: []string{"x"}}})
		e.do(workqueue.Op{Kind: workqueue.OpUnexpect, Key: "a"})
		if got := e.inspect("a").Expect; got != nil {
			e.Errorf("still expects %+v", got)
		}
	},
	"Inspect tells where a key stands": func(e *env) {
		if it := e.inspect("nothing"); it.State != workqueue.Idle || it.Key != "nothing" {
			e.Errorf("idle: %+v", it)
		}
		d := e.do(addAfter("a", time.Hour)).ReadyAt
		if it := e.inspect("a"); it.State != workqueue.Waiting || it.DelayedUntil != d || it.ReadyAt != d {
			e.Errorf("delayed: %+v", it)
		}
		e.do(addP("a", 2))
		if it := e.inspect("a"); it.State != workqueue.Ready || it.DelayedUntil != d || it.Level != workqueue.Level(2) {
			e.Errorf("ready: %+v", it)
		}
		l := e.one("a")
		if it := e.inspect("a"); it.State != workqueue.Processing || it.Token != l.Token || it.Holder != "w" || it.Deadline != l.Deadline || it.Attempt != 1 {
			e.Errorf("held: %+v", it)
		}
		e.adds(workqueue.MarkedDirty, "a")
		if it := e.inspect("a"); it.State != workqueue.Dirty {
			e.Errorf("dirty: %+v", it)
		}
	},
	"keys of any bytes are kept apart": func(e *env) {
		all := []string{"a", "a ", "a\n", "ä", "日本語", "{x}", "a\x00b", strings.Repeat("k", workqueue.MaxKeyLen), "1", "0"}
		e.adds(workqueue.Queued, all...)
		e.keys(all...)
	},
}
