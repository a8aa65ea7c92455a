package work_test

import (
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// twoParts is a service with a queue of two partitions, of which one can go away,
// and a stream that holds a key of each.
func twoParts(t *testing.T, part int, hello *queuev1.Hello) (r *queuetest.Rig, a *queuetest.Apart, w *queuetest.Worker, held [2]*queuev1.Lease) {
	t.Helper()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a = &queuetest.Apart{Engine: e, Part: part}
	r = queuetest.Serve(t, queue.Config{}, a)
	t.Cleanup(func() {
		if a.Refuse != nil {
			a.Back()
		}
	})
	r.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 2})
	w = r.OpenWork(t, hello)
	w.Give(2)
	for i, want := 0, 0; want < 2; i++ {
		if key := queuetest.Jobs(i + 1)[i]; engine.PartitionOf(key, 2) == want {
			r.AddKeys(t, key)
			held[want] = queuetest.Wait(t, w.Leases)
			want++
		}
	}
	return r, a, w, held
}

func TestAPartitionThatIsAwayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for _, compact := range []bool{true, false} {
		r, a, w, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true, Compact: compact})
		statuses := func(s *queuev1.Settled) map[string]queuev1.SettleStatus {
			out := map[string]queuev1.SettleStatus{}
			for i, st := range s.GetStatuses() {
				out[held[i].GetKey()] = st
			}
			for _, r := range s.GetResults() {
				out[r.GetKey()] = r.GetStatus()
			}
			return out
		}
		a.Away()
		if compact {
			held[0].Queue, held[1].Queue = queuetest.Q, queuetest.Q
		}
		w.SendSettle(1, held[0], held[1])
		first := queuetest.Wait(t, w.Settled)
		if got := statuses(first); !first.GetMore() || got[held[0].GetKey()] != queuetest.SettledOK || got[held[1].GetKey()] != queuetest.Under {
			t.Fatalf("first answer %v", first)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{queuetest.Ref(held[1])}}}})
		if e := queuetest.Wait(t, w.Extended); len(e.GetUnreachable()) != 1 || len(e.GetLost()) != 0 || e.GetExtended() != 0 {
			t.Errorf("extended %v", e)
		}
		// The other partition goes on meanwhile.
		for i := 100; i < 110; i++ {
			key := queuetest.Jobs(i + 1)[i]
			if engine.PartitionOf(key, 2) != 0 {
				continue
			}
			r.AddKeys(t, key)
			l := queuetest.Wait(t, w.Leases)
			w.SendSettle(uint64(i), l)
			queuetest.Wait(t, w.Settled)
		}
		a.Deny()
		last := queuetest.Wait(t, w.Settled)
		if got := statuses(last); last.GetRequestId() != 1 || last.GetMore() || got[held[0].GetKey()] != queuetest.Under || got[held[1].GetKey()] != queuetest.Unavailable {
			t.Errorf("last answer %v", last)
		}
		// A stream that names its lease is opened, and goes on when it is back.
		again := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{queuetest.Ref(held[1])}})
		if g := again.Welcome; len(g.GetUnreachable()) != 1 || len(g.GetKept())+len(g.GetLost()) != 0 {
			t.Errorf("welcome %v", g)
		}
		a.Back()
		for id := uint64(1000); ; id++ { // the dispatcher pauses after a failure
			again.SendSettle(id, held[1])
			st := queuetest.Wait(t, again.Settled).GetResults()[0].GetStatus()
			if st == queuetest.SettledOK {
				break
			}
			if st != queuetest.Unavailable || id > 1100 {
				t.Fatalf("settled when it is back: %v", st)
			}
		}
	}
}

func TestAResumedLeaseThatIsNotReachedIsTheNewStreams(t *testing.T) {
	t.Parallel()
	r, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
	a.Away() // and silent: hello is answered all the same
	again := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{queuetest.Ref(held[1])}})
	if g := again.Welcome; len(g.GetUnreachable()) != 1 {
		t.Fatalf("welcome %v", g)
	}
	again.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
	again.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	// The stream waits for its lease, and extends it.
	if u := queuetest.Wait(t, again.Extended).GetUnreachable(); !slices.ContainsFunc(u, func(l *queuev1.LeaseRef) bool { return l.GetKey() == held[1].GetKey() }) {
		t.Fatalf("not reached: %v", u)
	}
	a.Back()
	for id := uint64(1); ; id++ { // the dispatcher pauses after a failure
		again.SendSettle(id, held[1])
		st := queuetest.Wait(t, again.Settled)
		for st.GetMore() {
			st = queuetest.Wait(t, again.Settled)
		}
		if st.GetResults()[0].GetStatus() == queuetest.SettledOK {
			break
		}
		if id > 100 {
			t.Fatalf("settled %v", st)
		}
	}
	if err := queuetest.Wait(t, again.End); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestALeaseOfAnotherServerThatIsNotReachedCountsAsHeld(t *testing.T) {
	t.Parallel()
	_, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
	b := queuetest.Serve(t, queue.Config{}, a)
	b.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 2})
	a.Away()
	again := b.OpenWork(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{queuetest.Ref(held[1])}})
	if g := again.Welcome; len(g.GetUnreachable()) != 1 {
		t.Fatalf("welcome %v", g)
	}
	families, err := b.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "workqueue_longest_running_processor_seconds" {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got <= 0 {
				t.Errorf("the longest has run for %v s, as if the lease had ended", got)
			}
			return
		}
	}
	t.Error("the metric is missing")
}

func TestAWorkerThatDoesNotKnowOfPartsIsToldTheyAreLost(t *testing.T) {
	t.Parallel()
	r, a, w, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w"})
	a.Away()
	a.Deny()
	w.SendSettle(1, held[0], held[1])
	got := queuetest.Wait(t, w.Settled)
	if got.GetMore() || got.GetResults()[0].GetStatus() != queuetest.SettledOK || got.GetResults()[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST {
		t.Errorf("settled %v", got)
	}
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{queuetest.Ref(held[1])}}}})
	if e := queuetest.Wait(t, w.Extended); len(e.GetUnreachable()) != 0 || len(e.GetLost()) != 1 {
		t.Errorf("extended %v", e)
	}
	again := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(held[1])}})
	if g := again.Welcome; len(g.GetLost()) != 1 || len(g.GetUnreachable()) != 0 {
		t.Errorf("welcome %v", g)
	}
	again.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	if e := queuetest.Wait(t, again.Extended); e.GetExtended() != 0 || len(e.GetLost()) != 0 {
		t.Errorf("a lease that was reported lost is extended: %v", e)
	}
	// One call settles or says that nobody knows, as before.
	_, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{
		{Queue: queuetest.Q, Key: held[0].GetKey(), Token: held[0].GetToken(), Outcome: queuetest.Done}, {Queue: queuetest.Q, Key: held[1].GetKey(), Token: held[1].GetToken(), Outcome: queuetest.Done},
	}})
	if rpc.Reason(err) != "STORE_OUTCOME_UNKNOWN" {
		t.Errorf("Settle = %v", err)
	}
}

func TestAQueueThatIsRefusedConcernsNoOtherOfTheStream(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, e)
	r.Configure(t)
	names := []string{"dev/missing", queuetest.Q}
	if _, err := r.TryWork(t, &queuev1.Hello{SessionId: "old", Queues: names}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("without partial: %v", err)
	}
	if _, err := r.TryWork(t, &queuev1.Hello{SessionId: "w", Queues: names[:1], Partial: true}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("of one queue that is missing: %v", err)
	}
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: names, Partial: true, Resume: []*queuev1.LeaseRef{{Queue: "dev/missing", Key: "k", Token: 1}}})
	if f := w.Welcome.GetRefused(); len(f) != 1 || f[0].GetQueue() != "dev/missing" || f[0].GetReason() != "QUEUE_NOT_FOUND" || len(w.Welcome.GetLost()) != 1 {
		t.Fatalf("welcome %v", w.Welcome)
	}
	w.Give(1)
	r.AddKeys(t, "k")
	l := queuetest.Wait(t, w.Leases)
	other := &queuev1.Lease{Queue: "dev/missing", Key: "k", Token: 1}
	got := w.Settle(queuetest.Done, l, other)
	if got[0].GetStatus() != queuetest.SettledOK || got[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED {
		t.Errorf("settled %v", got)
	}
	r.Make(t, &queuev1.QueueConfig{Name: "dev/missing", LeaseDuration: durationpb.New(time.Minute)})
	if c := queuetest.Wait(t, w.Control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
		t.Errorf("control %v", c)
	}
	if w := r.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: names, Partial: true}); len(w.Welcome.GetRefused()) != 0 {
		t.Errorf("welcome %v", w.Welcome)
	}
}

func TestWithoutItsFirstPartitionAQueueKeepsToItsRates(t *testing.T) {
	t.Parallel()
	r, a, w, held := twoParts(t, 0, &queuev1.Hello{SessionId: "w", Partial: true})
	r.Make(t, &queuev1.QueueConfig{
		Name: queuetest.Q, Partitions: 2,
		RateLimiter:     &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: .02, Burst: 4}}},
		DispatchLimiter: &queuev1.BucketLimiter{Qps: 20, Burst: 10},
	})
	a.Away()
	a.Deny()
	var keys []string
	for i := 200; len(keys) < 10; i++ {
		if key := queuetest.Jobs(i + 1)[i]; engine.PartitionOf(key, 2) == 1 {
			keys = append(keys, key)
		}
	}
	// Two of the burst's four at once, then one every 100 s: half of the rate.
	due := func(keys ...string) time.Duration {
		items := make([]*queuev1.AddItem, len(keys))
		for i, key := range keys {
			items[i] = &queuev1.AddItem{Key: key}
		}
		got, err := r.AddRateLimited(t.Context(), &queuev1.AddRateLimitedRequest{Queue: queuetest.Q, Items: items})
		if err != nil {
			t.Fatal(err)
		}
		if at := got.GetResults()[len(keys)-1].GetReadyAt(); at != nil {
			return time.Until(at.AsTime())
		}
		return 0
	}
	for i, want := range []time.Duration{0, 0, 100 * time.Second, 200 * time.Second} {
		if in := due(keys[i]); in < want-30*time.Second || in > want+30*time.Second {
			t.Errorf("retry %d is due in %v, want %v", i, in, want)
		}
	}
	if in := due(keys[4], keys[5]); in < 370*time.Second || in > 430*time.Second {
		t.Errorf("the last of two together is due in %v, want 400 s", in)
	}
	w.SendSettle(1, held[1])
	if s := queuetest.Wait(t, w.Settled); s.GetResults()[0].GetStatus() != queuetest.SettledOK {
		t.Errorf("settled %v", s)
	}
	w.Give(20)
	r.AddKeys(t, keys[6:]...)
	began, last := time.Now(), time.Time{}
	for range 6 { // the two of the burst and the four that were added
		queuetest.Wait(t, w.Leases)
		last = time.Now()
	}
	if took := last.Sub(began); took < 400*time.Millisecond { // the first may be there already
		t.Errorf("6 keys, 10 a second, were handed out in %v", took)
	}
}
