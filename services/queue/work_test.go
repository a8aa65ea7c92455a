package queue

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestACompactStreamSaysTheSameInFewerBytes(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.make(t, &queuev1.QueueConfig{Name: "dev/other"})
		w := r.work(t, &queuev1.Hello{SessionId: "w", Compact: true, Queues: []string{q, "dev/other", q}})
		if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{
			Key: "a", Priority: 2, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Barrier: []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "42"}}},
		}}}); err != nil {
			t.Fatal(err)
		}
		w.give(2)
		l := wait(t, w.leases)
		if l.GetKey() != "a" || l.GetQueue() != "" || l.GetPriority() != 2 || len(l.GetTraceparents()) != 1 || l.GetBarrier()[0].GetRevision().GetResourceVersion() != "42" ||
			l.GetAttempt() != 1 || l.GetDeadline() != nil || l.GetRemaining() != nil || l.GetAddedAt() != nil {
			t.Errorf("lease %v", l)
		}
		for name, got := range map[string]time.Duration{
			"deadline": time.Until(time.UnixMicro(l.GetDeadlineUs())), "remaining": time.Duration(l.GetRemainingUs()) * time.Microsecond,
		} {
			if got < 20*time.Second || got > 31*time.Second {
				t.Errorf("%s in %v, want in about 30 s", name, got)
			}
		}
		for name, us := range map[string]int64{"added": l.GetAddedUs(), "ready": l.GetReadyUs()} {
			if ago := time.Since(time.UnixMicro(us)); ago < -time.Second || ago > 10*time.Second {
				t.Errorf("%s %v ago", name, ago)
			}
		}
		if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: "dev/other", Items: []*queuev1.AddItem{{Key: "b"}}}); err != nil {
			t.Fatal(err)
		}
		b := wait(t, w.leases)
		settle := func(id uint64, all ...*queuev1.Settlement) *queuev1.Settled {
			t.Helper()
			w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: id, Settlements: all}}})
			return wait(t, w.settled)
		}
		all := []*queuev1.Settlement{
			{Queue: q, Key: "a", Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_RETRY_AFTER, Delay: durationpb.New(time.Hour)},
			{Queue: q, Key: "never", Token: 5, Outcome: done},
			{Queue: "dev/other", Key: "b", Token: b.GetToken(), Outcome: done},
			{Queue: "dev/other", Key: "b", Token: b.GetToken(), Outcome: done},
		}
		want := []queuev1.SettleStatus{
			queuev1.SettleStatus_SETTLE_STATUS_SETTLED, queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED,
			queuev1.SettleStatus_SETTLE_STATUS_SETTLED, queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED,
		}
		for range 2 { // the same request again is answered the same
			got := settle(7, all...)
			if got.GetRequestId() != 7 || !slices.Equal(got.GetStatuses(), want) {
				t.Errorf("settled %v, want %v", got, want)
			}
			if len(got.GetResults()) != 1 || got.GetResults()[0].GetKey() != "a" || got.GetResults()[0].GetReadyAt() == nil {
				t.Errorf("results %v, want the retried key's alone", got.GetResults())
			}
		}
	})
}

func TestALeaseThatRunsOutIsCancelledAndGivesItsCreditBack(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.add(t, "a")
		w := r.work(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(time.Second)})
		w.give(1)
		l := wait(t, w.leases)
		r.add(t, "b")
		c := wait(t, w.control)
		if c.GetAction() != queuev1.Action_ACTION_CANCEL || len(c.GetLeases()) != 1 || c.GetLeases()[0].GetToken() != l.GetToken() || c.GetLeases()[0].GetQueue() != q {
			t.Fatalf("control %v, want the lease cancelled", c)
		}
		next := wait(t, w.leases) // the credit is there again
		if got := w.settle(done, l, next); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST || got[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settled %v", got)
		}
		wait(t, w.leases)
		if n := len(w.leases); n != 0 {
			t.Errorf("%d more leases than credit", n)
		}
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{ref(l)}}}})
		if e := wait(t, w.extended); e.GetExtended() != 0 || len(e.GetLost()) != 1 {
			t.Errorf("extended after its end: %v", e)
		}
	})
}

func TestALeaseThatIsAskedToBeLongerThanTheQueueAllowsIsCut(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.config(t, &queuev1.QueueConfig{LeaseDuration: seconds(5), MaxLease: seconds(10)})
		r.add(t, "a")
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: q, SessionId: "caller", LeaseDuration: seconds(60)})
		if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetRemaining().AsDuration() != 10*time.Second {
			t.Errorf("Get = %v, %v: want a lease of 10 s", res, err)
		}
		r.add(t, "b")
		w := r.work(t, &queuev1.Hello{SessionId: "w", LeaseDuration: seconds(60)})
		if got := w.welcome.GetLeaseDuration().AsDuration(); got != 10*time.Second {
			t.Errorf("welcome says %v, want 10 s", got)
		}
		w.give(1)
		if got := wait(t, w.leases).GetRemaining().AsDuration(); got != 10*time.Second {
			t.Errorf("a lease of %v, want 10 s", got)
		}
	})
}

func TestLeasesEndByTheServersClockNoLaterThanInTheStore(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		// check: what is left by the server's clock is no more than the lease's time, and not much less.
		check := func(what string, clock, ends int64, granted time.Duration) {
			t.Helper()
			if left := time.Duration(ends-clock) * time.Microsecond; clock <= 0 || left > granted || left < granted-5*time.Second {
				t.Errorf("%s: ends at %d by a clock that shows %d, after %v; want just below %v", what, ends, clock, left, granted)
			}
		}
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(1)
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Ping{Ping: &queuev1.Ping{Id: 7}}})
		pong := wait(t, w.pongs)
		if pong.GetId() != 7 || pong.GetClockUs() < w.welcome.GetClockUs() {
			t.Errorf("pong %v after welcome %v", pong, w.welcome)
		}
		r.add(t, "a")
		l := wait(t, w.leases)
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Ping{Ping: &queuev1.Ping{}}})
		after := wait(t, w.pongs).GetClockUs()
		check("assigned", after, l.GetEndsUs(), l.GetRemaining().AsDuration())
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		e := wait(t, w.extended)
		check("extended", after, e.GetEndsUs(), e.GetRemaining().AsDuration()+5*time.Second)
		if e.GetEndsUs() <= l.GetEndsUs() {
			t.Errorf("extended to %d, was %d", e.GetEndsUs(), l.GetEndsUs())
		}
		r.add(t, "b")
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: q, SessionId: "c"})
		if err != nil || len(res.GetLeases()) != 1 {
			t.Fatal(res, err)
		}
		// The request came before the turn began, so that a little more is left.
		check("got", res.GetClockUs(), res.GetLeases()[0].GetEndsUs(), res.GetLeases()[0].GetRemaining().AsDuration()+5*time.Second)
	})
}

func TestALeaseThatIsExtendedIsNotCancelled(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	r.add(t, "a")
	w := r.work(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(time.Second)})
	w.give(1)
	l := wait(t, w.leases)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for range 6 {
		<-tick.C
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		if e := wait(t, w.extended); e.GetExtended() != 1 {
			t.Fatalf("extended %v", e)
		}
	}
	if n := len(w.control); n != 0 {
		t.Errorf("%d control messages, the first %v", n, <-w.control)
	}
	if s := w.settle(done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestAnOperatorTakesAKeyFromItsHolder(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		r.add(t, "a", "b", "c")
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(3)
		held := map[string]*queuev1.Lease{}
		for range 3 {
			l := wait(t, w.leases)
			held[l.GetKey()] = l
		}
		if _, err := r.ReleaseItems(t.Context(), &queuev1.ReleaseItemsRequest{Queue: q, Keys: []string{"a", "b"}}); err != nil {
			t.Fatal(err)
		}
		var lost []string
		for len(lost) < 2 {
			c := wait(t, w.control)
			if c.GetAction() != queuev1.Action_ACTION_CANCEL {
				t.Fatalf("control %v", c)
			}
			for _, l := range c.GetLeases() {
				lost = append(lost, l.GetKey())
			}
		}
		slices.Sort(lost)
		if !slices.Equal(lost, []string{"a", "b"}) {
			t.Errorf("cancelled %q", lost)
		}
		for range 2 { // with the credit that came back
			if l := wait(t, w.leases); l.GetToken() <= held[l.GetKey()].GetToken() {
				t.Errorf("lease %v after %v", l, held[l.GetKey()])
			}
		}
		if s := w.settle(done, held["a"], held["c"]); s[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST || s[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settled %v", s)
		}
	})
}

func TestAPausedQueueTellsItsWorkers(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(10)
		if _, err := r.PauseQueue(t.Context(), &queuev1.PauseQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		if c := wait(t, w.control); c.GetAction() != queuev1.Action_ACTION_PAUSE || c.GetQueue() != q {
			t.Errorf("control %v", c)
		}
		late := r.work(t, &queuev1.Hello{SessionId: "late"})
		if c := wait(t, late.control); c.GetAction() != queuev1.Action_ACTION_PAUSE || c.GetQueue() != q {
			t.Errorf("control of a stream that came later %v", c)
		}
		r.add(t, jobs(20)...)
		if n := len(w.leases); n != 0 {
			t.Errorf("%d leases of a paused queue", n)
		}
		if _, err := r.ResumeQueue(t.Context(), &queuev1.ResumeQueueRequest{Queue: q}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			wait(t, w.leases)
		}
	})
}

func TestALeaseNamedTwiceInHelloCountsOnce(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	r.add(t, "a")
	w := r.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(1)
	l := wait(t, w.leases)
	w.cancel()
	wait(t, w.end)
	w2 := r.work(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{ref(l), ref(l), ref(l)}})
	if n := len(w2.welcome.GetKept()); n != 1 {
		t.Errorf("%d leases kept, want 1", n)
	}
	w2.settle(done, l)
	w2.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
	if err := wait(t, w2.end); !errors.Is(err, io.EOF) {
		t.Errorf("after goodbye: %v", err)
	}
}

func TestAWorkerIsAskedToMoveBeforeItsConnectionEnds(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{RPC: rpc.ServerConfig{MaxConnectionAge: 500 * time.Millisecond, MaxConnectionGrace: 6 * time.Second}})
	r.configure(t)
	r.add(t, "a")
	w := r.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(1)
	l := wait(t, w.leases)
	began := time.Now()
	for moves := 0; time.Since(began) < 7*time.Second || moves == 0; moves++ { // over at least one connection's end
		c := wait(t, w.control)
		if c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Fatalf("control %v", c)
		}
		old := w
		w = r.work(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{ref(l)}})
		if len(w.welcome.GetKept()) != 1 {
			t.Fatalf("the lease was lost on the way: %v", w.welcome)
		}
		if err := wait(t, old.end); rpc.Reason(err) != "SESSION_MOVED" {
			t.Fatalf("the old stream ended with %v: it was cut before the worker had moved", err)
		}
	}
	w.request = 10
	if s := w.settle(done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestAWorkerThatDoesNotReadGetsLittleAndDelaysNobody(t *testing.T) {
	t.Parallel()
	partitioned(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		slow, err := r.Work(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := slow.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "slow", Queues: []string{q}, Compact: true}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := slow.Recv(); err != nil { // and never again
			t.Fatal(err)
		}
		for range 3 {
			if err := slow.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: 10_000}}}); err != nil {
				t.Fatal(err)
			}
		}
		barrier := make([]*deltav1.CollectionRevision, 16)
		for i := range barrier {
			barrier[i] = &deltav1.CollectionRevision{
				Collection: "dev/" + strings.Repeat("p", 240) + strconv.Itoa(i) + ".v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "1"},
			}
		}
		const n = 3000 // about 13 MB of leases
		p := r.produce(t, "p")
		for i := range n / 50 {
			var ops []*queuev1.ProduceOp
			for k := range 50 {
				ops = append(ops, &queuev1.ProduceOp{Key: "key-" + strconv.Itoa(50*i+k), Barrier: barrier})
			}
			p.do(ops...)
		}
		w := r.work(t, &queuev1.Hello{SessionId: "w"})
		w.give(10)
		for range 500 {
			w.settle(queuev1.Outcome_OUTCOME_FORGET, wait(t, w.leases))
		}
		if c := r.counts(t); c.GetProcessing() > 2200 {
			t.Errorf("%v: more is held than a worker that does not read may have", c)
		}
	})
}

func TestASessionMovesToAnotherServer(t *testing.T) {
	t.Parallel()
	srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	one := func() *rig {
		e, err := redis.New(redis.Config{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		return serve(t, Config{CloseGrace: 300 * time.Millisecond, Queues: []QueueConfig{{Name: q}}}, e)
	}
	a, b := one(), one()
	a.make(t, &queuev1.QueueConfig{Name: q, Partitions: 1})
	a.add(t, "x", "y")
	w := a.work(t, &queuev1.Hello{SessionId: "w"})
	w.give(2)
	x, y := wait(t, w.leases), wait(t, w.leases)
	w.cancel()
	wait(t, w.end)
	w2 := b.work(t, &queuev1.Hello{SessionId: "w", Compact: true, Resume: []*queuev1.LeaseRef{ref(x)}})
	if len(w2.welcome.GetKept()) != 1 || len(w2.welcome.GetLost()) != 0 {
		t.Fatalf("welcome %v", w2.welcome)
	}
	w2.give(1)
	if again := wait(t, w2.leases); again.GetKey() != y.GetKey() || again.GetToken() <= y.GetToken() || again.GetAttempt() != 2 {
		t.Errorf("the lease that was not resumed came back as %v", again)
	}
	w2.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: 1, Settlements: []*queuev1.Settlement{
		{Queue: q, Key: x.GetKey(), Token: x.GetToken(), Outcome: done},
	}}}})
	if got := wait(t, w2.settled).GetStatuses(); len(got) != 1 || got[0] != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle elsewhere: %v", got)
	}
}

func TestRequestIDsOutOfOrder(t *testing.T) {
	t.Parallel()
	r := start(t, "memory", Config{})
	r.configure(t)
	keys := jobs(40)
	r.add(t, keys...)
	w := r.work(t, &queuev1.Hello{SessionId: "w", Compact: true})
	w.give(40)
	settle := func(id uint64, l *queuev1.Lease) queuev1.SettleStatus {
		t.Helper()
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: id, Settlements: []*queuev1.Settlement{
			{Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: done},
		}}}})
		return wait(t, w.settled).GetStatuses()[0]
	}
	ok := queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	ls := make([]*queuev1.Lease, 40)
	for i := range ls {
		ls[i] = wait(t, w.leases)
	}
	for i, id := range []uint64{5, 3, 4, 1 << 60, 2} {
		if s := settle(id, ls[i]); s != ok {
			t.Errorf("request %d: %v", id, s)
		}
	}
	if s := settle(3, ls[1]); s != ok {
		t.Errorf("request 3 again: %v, want the first answer", s)
	}
	for i := range 30 {
		settle(uint64(100+i), ls[5+i])
	}
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: 129, Settlements: []*queuev1.Settlement{
		{Queue: q, Key: ls[36].GetKey(), Token: ls[36].GetToken(), Outcome: done},
	}}}})
	if err := wait(t, w.end); rpc.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another batch under a number that was used: %v", err)
	}
}
