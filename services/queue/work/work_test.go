package work_test

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
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestACompactStreamSaysTheSameInFewerBytes(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.Make(t, &queuev1.QueueConfig{Name: "dev/other"})
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Compact: true, Queues: []string{queuetest.Q, "dev/other", queuetest.Q}})
		if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{
			Key: "a", Priority: 2, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
			Barrier: []*deltav1.CollectionRevision{{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 3, ResourceVersion: "42"}}},
		}}}); err != nil {
			t.Fatal(err)
		}
		w.Give(2)
		l := queuetest.Wait(t, w.Leases)
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
		b := queuetest.Wait(t, w.Leases)
		settle := func(id uint64, all ...*queuev1.Settlement) *queuev1.Settled {
			t.Helper()
			w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: id, Settlements: all}}})
			return queuetest.Wait(t, w.Settled)
		}
		all := []*queuev1.Settlement{
			{Queue: queuetest.Q, Key: "a", Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_RETRY_AFTER, Delay: durationpb.New(time.Hour)},
			{Queue: queuetest.Q, Key: "never", Token: 5, Outcome: queuetest.Done},
			{Queue: "dev/other", Key: "b", Token: b.GetToken(), Outcome: queuetest.Done},
			{Queue: "dev/other", Key: "b", Token: b.GetToken(), Outcome: queuetest.Done},
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
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "a")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(time.Second)})
		w.Give(1)
		l := queuetest.Wait(t, w.Leases)
		r.AddKeys(t, "b")
		c := queuetest.Wait(t, w.Control)
		if c.GetAction() != queuev1.Action_ACTION_CANCEL || len(c.GetLeases()) != 1 || c.GetLeases()[0].GetToken() != l.GetToken() || c.GetLeases()[0].GetQueue() != queuetest.Q {
			t.Fatalf("control %v, want the lease cancelled", c)
		}
		next := queuetest.Wait(t, w.Leases) // the credit is there again
		if got := w.Settle(queuetest.Done, l, next); got[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST || got[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settled %v", got)
		}
		queuetest.Wait(t, w.Leases)
		if n := len(w.Leases); n != 0 {
			t.Errorf("%d more leases than credit", n)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{queuetest.Ref(l)}}}})
		if e := queuetest.Wait(t, w.Extended); e.GetExtended() != 0 || len(e.GetLost()) != 1 {
			t.Errorf("extended after its end: %v", e)
		}
	})
}

func TestALeaseThatIsAskedToBeLongerThanTheQueueAllowsIsCut(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Config(t, &queuev1.QueueConfig{LeaseDuration: queuetest.Seconds(5), MaxLease: queuetest.Seconds(10)})
		r.AddKeys(t, "a")
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "caller", LeaseDuration: queuetest.Seconds(60)})
		if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetRemaining().AsDuration() != 10*time.Second {
			t.Errorf("Get = %v, %v: want a lease of 10 s", res, err)
		}
		r.AddKeys(t, "b")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", LeaseDuration: queuetest.Seconds(60)})
		if got := w.Welcome.GetLeaseDuration().AsDuration(); got != 10*time.Second {
			t.Errorf("welcome says %v, want 10 s", got)
		}
		w.Give(1)
		if got := queuetest.Wait(t, w.Leases).GetRemaining().AsDuration(); got != 10*time.Second {
			t.Errorf("a lease of %v, want 10 s", got)
		}
	})
}

func TestLeasesEndByTheServersClockNoLaterThanInTheStore(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		// check: what is left by the server's clock is no more than the lease's time, and not much less.
		check := func(what string, clock, ends int64, granted time.Duration) {
			t.Helper()
			if left := time.Duration(ends-clock) * time.Microsecond; clock <= 0 || left > granted || left < granted-5*time.Second {
				t.Errorf("%s: ends at %d by a clock that shows %d, after %v; want just below %v", what, ends, clock, left, granted)
			}
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(1)
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Ping{Ping: &queuev1.Ping{Id: 7}}})
		pong := queuetest.Wait(t, w.Pongs)
		if pong.GetId() != 7 || pong.GetClockUs() < w.Welcome.GetClockUs() {
			t.Errorf("pong %v after welcome %v", pong, w.Welcome)
		}
		r.AddKeys(t, "a")
		l := queuetest.Wait(t, w.Leases)
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Ping{Ping: &queuev1.Ping{}}})
		after := queuetest.Wait(t, w.Pongs).GetClockUs()
		check("assigned", after, l.GetEndsUs(), l.GetRemaining().AsDuration())
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		e := queuetest.Wait(t, w.Extended)
		check("extended", after, e.GetEndsUs(), e.GetRemaining().AsDuration()+5*time.Second)
		if e.GetEndsUs() <= l.GetEndsUs() {
			t.Errorf("extended to %d, was %d", e.GetEndsUs(), l.GetEndsUs())
		}
		r.AddKeys(t, "b")
		res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "c"})
		if err != nil || len(res.GetLeases()) != 1 {
			t.Fatal(res, err)
		}
		// The request came before the transaction began, so that a little more is left.
		check("got", res.GetClockUs(), res.GetLeases()[0].GetEndsUs(), res.GetLeases()[0].GetRemaining().AsDuration()+5*time.Second)
	})
}

func TestALeaseThatIsExtendedIsNotCancelled(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	r.AddKeys(t, "a")
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", LeaseDuration: durationpb.New(time.Second)})
	w.Give(1)
	l := queuetest.Wait(t, w.Leases)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for range 6 {
		<-tick.C
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
		if e := queuetest.Wait(t, w.Extended); e.GetExtended() != 1 {
			t.Fatalf("extended %v", e)
		}
	}
	if n := len(w.Control); n != 0 {
		t.Errorf("%d control messages, the first %v", n, <-w.Control)
	}
	if s := w.Settle(queuetest.Done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestAnOperatorTakesAKeyFromItsHolder(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "a", "b", "c")
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(3)
		held := map[string]*queuev1.Lease{}
		for range 3 {
			l := queuetest.Wait(t, w.Leases)
			held[l.GetKey()] = l
		}
		if _, err := r.ReleaseItems(t.Context(), &queuev1.ReleaseItemsRequest{Queue: queuetest.Q, Keys: []string{"a", "b"}}); err != nil {
			t.Fatal(err)
		}
		var lost []string
		for len(lost) < 2 {
			c := queuetest.Wait(t, w.Control)
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
			if l := queuetest.Wait(t, w.Leases); l.GetToken() <= held[l.GetKey()].GetToken() {
				t.Errorf("lease %v after %v", l, held[l.GetKey()])
			}
		}
		if s := w.Settle(queuetest.Done, held["a"], held["c"]); s[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST || s[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Errorf("settled %v", s)
		}
	})
}

func TestAPausedQueueTellsItsWorkers(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(10)
		if _, err := r.PauseQueue(t.Context(), &queuev1.PauseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		if c := queuetest.Wait(t, w.Control); c.GetAction() != queuev1.Action_ACTION_PAUSE || c.GetQueue() != queuetest.Q {
			t.Errorf("control %v", c)
		}
		late := r.OpenWork(t, &queuev1.Hello{SessionId: "late"})
		if c := queuetest.Wait(t, late.Control); c.GetAction() != queuev1.Action_ACTION_PAUSE || c.GetQueue() != queuetest.Q {
			t.Errorf("control of a stream that came later %v", c)
		}
		r.AddKeys(t, queuetest.Jobs(20)...)
		if n := len(w.Leases); n != 0 {
			t.Errorf("%d leases of a paused queue", n)
		}
		if _, err := r.ResumeQueue(t.Context(), &queuev1.ResumeQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			queuetest.Wait(t, w.Leases)
		}
	})
}

func TestALeaseNamedTwiceInHelloCountsOnce(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	r.AddKeys(t, "a")
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	l := queuetest.Wait(t, w.Leases)
	w.Cancel()
	queuetest.Wait(t, w.End)
	w2 := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(l), queuetest.Ref(l), queuetest.Ref(l)}})
	if n := len(w2.Welcome.GetKept()); n != 1 {
		t.Errorf("%d leases kept, want 1", n)
	}
	w2.Settle(queuetest.Done, l)
	w2.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
	if err := queuetest.Wait(t, w2.End); !errors.Is(err, io.EOF) {
		t.Errorf("after goodbye: %v", err)
	}
}

func TestAWorkerIsAskedToMoveBeforeItsConnectionEnds(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{RPC: rpc.ServerConfig{MaxConnectionAge: 500 * time.Millisecond, MaxConnectionGrace: 6 * time.Second}})
	r.Configure(t)
	r.AddKeys(t, "a")
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	l := queuetest.Wait(t, w.Leases)
	began := time.Now()
	for moves := 0; time.Since(began) < 7*time.Second || moves == 0; moves++ { // over at least one connection's end
		c := queuetest.Wait(t, w.Control)
		if c.GetAction() != queuev1.Action_ACTION_RECONNECT {
			t.Fatalf("control %v", c)
		}
		old := w
		w = r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(l)}})
		if len(w.Welcome.GetKept()) != 1 {
			t.Fatalf("the lease was lost on the way: %v", w.Welcome)
		}
		if err := queuetest.Wait(t, old.End); rpc.Reason(err) != "SESSION_MOVED" {
			t.Fatalf("the old stream ended with %v: it was cut before the worker had moved", err)
		}
	}
	w.Request = 10
	if s := w.Settle(queuetest.Done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle: %v", s)
	}
}

func TestAWorkerThatDoesNotReadGetsLittleAndDelaysNobody(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		slow, err := r.Work(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := slow.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "slow", Queues: []string{queuetest.Q}, Compact: true}}}); err != nil {
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
		p := r.OpenProduce(t, "p")
		for i := range n / 50 {
			var ops []*queuev1.ProduceOp
			for k := range 50 {
				ops = append(ops, &queuev1.ProduceOp{Key: "key-" + strconv.Itoa(50*i+k), Barrier: barrier})
			}
			p.Do(ops...)
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(10)
		for range 500 {
			w.Settle(queuev1.Outcome_OUTCOME_FORGET, queuetest.Wait(t, w.Leases))
		}
		if c := r.Counts(t); c.GetProcessing() > 2200 {
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
	one := func() *queuetest.Rig {
		e, err := redis.New(redis.Config{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		return queuetest.Serve(t, queue.Config{CloseGrace: 300 * time.Millisecond, Queues: []queue.QueueConfig{{Name: queuetest.Q}}}, e)
	}
	a, b := one(), one()
	a.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 1})
	a.AddKeys(t, "x", "y")
	w := a.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(2)
	x, y := queuetest.Wait(t, w.Leases), queuetest.Wait(t, w.Leases)
	w.Cancel()
	queuetest.Wait(t, w.End)
	w2 := b.OpenWork(t, &queuev1.Hello{SessionId: "w", Compact: true, Resume: []*queuev1.LeaseRef{queuetest.Ref(x)}})
	if len(w2.Welcome.GetKept()) != 1 || len(w2.Welcome.GetLost()) != 0 {
		t.Fatalf("welcome %v", w2.Welcome)
	}
	w2.Give(1)
	if again := queuetest.Wait(t, w2.Leases); again.GetKey() != y.GetKey() || again.GetToken() <= y.GetToken() || again.GetAttempt() != 2 {
		t.Errorf("the lease that was not resumed came back as %v", again)
	}
	w2.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: 1, Settlements: []*queuev1.Settlement{
		{Queue: queuetest.Q, Key: x.GetKey(), Token: x.GetToken(), Outcome: queuetest.Done},
	}}}})
	if got := queuetest.Wait(t, w2.Settled).GetStatuses(); len(got) != 1 || got[0] != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle elsewhere: %v", got)
	}
}

func TestRequestIDsOutOfOrder(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	keys := queuetest.Jobs(40)
	r.AddKeys(t, keys...)
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Compact: true})
	w.Give(40)
	settle := func(id uint64, l *queuev1.Lease) queuev1.SettleStatus {
		t.Helper()
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: id, Settlements: []*queuev1.Settlement{
			{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done},
		}}}})
		return queuetest.Wait(t, w.Settled).GetStatuses()[0]
	}
	ok := queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	ls := make([]*queuev1.Lease, 40)
	for i := range ls {
		ls[i] = queuetest.Wait(t, w.Leases)
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
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: 129, Settlements: []*queuev1.Settlement{
		{Queue: queuetest.Q, Key: ls[36].GetKey(), Token: ls[36].GetToken(), Outcome: queuetest.Done},
	}}}})
	if err := queuetest.Wait(t, w.End); rpc.Reason(err) != "REQUEST_ID_REUSED" {
		t.Errorf("another batch under a number that was used: %v", err)
	}
}
