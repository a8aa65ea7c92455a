package queue

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

// apart is an engine of which one partition goes away when told so: its turns
// hang for as long as their context lasts, or until it is told to refuse.
type apart struct {
	engine.Engine
	part int

	mu     sync.Mutex
	gone   bool
	refuse chan struct{} // closed when what hangs is refused
}

type apartQueue struct {
	engine.Queue
	a *apart
}

type apartPart struct {
	engine.Partition
	a *apart
}

func (a *apart) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := a.Engine.Configure(ctx, name, cfg)
	return apartQueue{q, a}, created, err
}

func (q apartQueue) Partitions() []engine.Partition {
	parts := append([]engine.Partition(nil), q.Queue.Partitions()...)
	parts[q.a.part] = apartPart{parts[q.a.part], q.a}
	return parts
}

func (p apartPart) Turn(ctx context.Context, t *workqueue.Turn) (*workqueue.Result, error) {
	p.a.mu.Lock()
	gone, refuse := p.a.gone, p.a.refuse
	p.a.mu.Unlock()
	if gone {
		select {
		case <-refuse:
		case <-ctx.Done():
		}
		return nil, engine.ErrUnavailable
	}
	return p.Partition.Turn(ctx, t)
}

// away makes the partition hang; back refuses what hung and lets it go on.
func (a *apart) away() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone, a.refuse = true, make(chan struct{})
}

// deny refuses what hangs, and whatever comes.
func (a *apart) deny() { close(a.refuse) }

func (a *apart) back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = false
	select {
	case <-a.refuse:
	default:
		close(a.refuse)
	}
}

// twoParts is a service with a queue of two partitions, of which one can go away,
// and a stream that holds a key of each.
func twoParts(t *testing.T, part int, hello *queuev1.Hello) (r *rig, a *apart, w *worker, held [2]*queuev1.Lease) {
	t.Helper()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	a = &apart{Engine: e, part: part}
	r = serve(t, Config{}, a)
	t.Cleanup(func() {
		if a.refuse != nil {
			a.back()
		}
	})
	r.make(t, &queuev1.QueueConfig{Name: q, Partitions: 2})
	w = r.work(t, hello)
	w.give(2)
	for i, want := 0, 0; want < 2; i++ {
		if key := jobs(i + 1)[i]; engine.PartitionOf(key, 2) == want {
			r.add(t, key)
			held[want] = wait(t, w.leases)
			want++
		}
	}
	return r, a, w, held
}

// sendSettle settles leases under a number and does not wait.
func (w *worker) sendSettle(id uint64, ls ...*queuev1.Lease) {
	b := &queuev1.SettleBatch{RequestId: id}
	for _, l := range ls {
		b.Settlements = append(b.Settlements, &queuev1.Settlement{Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: done})
	}
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
}

const (
	settledOK   = queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	unavailable = queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE
	under       = queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
)

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
		a.away()
		if compact {
			held[0].Queue, held[1].Queue = q, q
		}
		w.sendSettle(1, held[0], held[1])
		first := wait(t, w.settled)
		if got := statuses(first); !first.GetMore() || got[held[0].GetKey()] != settledOK || got[held[1].GetKey()] != under {
			t.Fatalf("first answer %v", first)
		}
		w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{ref(held[1])}}}})
		if e := wait(t, w.extended); len(e.GetUnreachable()) != 1 || len(e.GetLost()) != 0 || e.GetExtended() != 0 {
			t.Errorf("extended %v", e)
		}
		// The other partition goes on meanwhile.
		for i := 100; i < 110; i++ {
			key := jobs(i + 1)[i]
			if engine.PartitionOf(key, 2) != 0 {
				continue
			}
			r.add(t, key)
			l := wait(t, w.leases)
			w.sendSettle(uint64(i), l)
			wait(t, w.settled)
		}
		a.deny()
		last := wait(t, w.settled)
		if got := statuses(last); last.GetRequestId() != 1 || last.GetMore() || got[held[0].GetKey()] != under || got[held[1].GetKey()] != unavailable {
			t.Errorf("last answer %v", last)
		}
		// A stream that names its lease is opened, and goes on when it is back.
		again := r.work(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{ref(held[1])}})
		if g := again.welcome; len(g.GetUnreachable()) != 1 || len(g.GetKept())+len(g.GetLost()) != 0 {
			t.Errorf("welcome %v", g)
		}
		a.back()
		for id := uint64(1000); ; id++ { // the dispatcher pauses after a failure
			again.sendSettle(id, held[1])
			st := wait(t, again.settled).GetResults()[0].GetStatus()
			if st == settledOK {
				break
			}
			if st != unavailable || id > 1100 {
				t.Fatalf("settled when it is back: %v", st)
			}
		}
	}
}

func TestAResumedLeaseThatIsNotReachedIsTheNewStreams(t *testing.T) {
	t.Parallel()
	r, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
	a.away() // and silent: hello is answered all the same
	again := r.work(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{ref(held[1])}})
	if g := again.welcome; len(g.GetUnreachable()) != 1 {
		t.Fatalf("welcome %v", g)
	}
	again.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
	again.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	// The stream waits for its lease, and extends it.
	if u := wait(t, again.extended).GetUnreachable(); !slices.ContainsFunc(u, func(l *queuev1.LeaseRef) bool { return l.GetKey() == held[1].GetKey() }) {
		t.Fatalf("not reached: %v", u)
	}
	a.back()
	for id := uint64(1); ; id++ { // the dispatcher pauses after a failure
		again.sendSettle(id, held[1])
		st := wait(t, again.settled)
		for st.GetMore() {
			st = wait(t, again.settled)
		}
		if st.GetResults()[0].GetStatus() == settledOK {
			break
		}
		if id > 100 {
			t.Fatalf("settled %v", st)
		}
	}
	if err := wait(t, again.end); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
}

func TestALeaseOfAnotherServerThatIsNotReachedCountsAsHeld(t *testing.T) {
	t.Parallel()
	_, a, _, held := twoParts(t, 1, &queuev1.Hello{SessionId: "w", Partial: true})
	b := serve(t, Config{}, a)
	b.make(t, &queuev1.QueueConfig{Name: q, Partitions: 2})
	a.away()
	again := b.work(t, &queuev1.Hello{SessionId: "w", Partial: true, Resume: []*queuev1.LeaseRef{ref(held[1])}})
	if g := again.welcome; len(g.GetUnreachable()) != 1 {
		t.Fatalf("welcome %v", g)
	}
	families, err := b.tel.Registry.Gather()
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
	a.away()
	a.deny()
	w.sendSettle(1, held[0], held[1])
	got := wait(t, w.settled)
	if got.GetMore() || got.GetResults()[0].GetStatus() != settledOK || got.GetResults()[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_LOST {
		t.Errorf("settled %v", got)
	}
	w.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{Leases: []*queuev1.LeaseRef{ref(held[1])}}}})
	if e := wait(t, w.extended); len(e.GetUnreachable()) != 0 || len(e.GetLost()) != 1 {
		t.Errorf("extended %v", e)
	}
	again := r.work(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{ref(held[1])}})
	if g := again.welcome; len(g.GetLost()) != 1 || len(g.GetUnreachable()) != 0 {
		t.Errorf("welcome %v", g)
	}
	again.send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Extend{Extend: &queuev1.ExtendBatch{}}})
	if e := wait(t, again.extended); e.GetExtended() != 0 || len(e.GetLost()) != 0 {
		t.Errorf("a lease that was told lost is extended: %v", e)
	}
	// One call settles or says that nobody knows, as before.
	_, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{
		{Queue: q, Key: held[0].GetKey(), Token: held[0].GetToken(), Outcome: done}, {Queue: q, Key: held[1].GetKey(), Token: held[1].GetToken(), Outcome: done},
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
	r := serve(t, Config{}, e)
	r.configure(t)
	names := []string{"dev/missing", q}
	if _, err := r.tryWork(t, &queuev1.Hello{SessionId: "old", Queues: names}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("without partial: %v", err)
	}
	if _, err := r.tryWork(t, &queuev1.Hello{SessionId: "w", Queues: names[:1], Partial: true}); rpc.Reason(err) != "QUEUE_NOT_FOUND" {
		t.Errorf("of one queue that is missing: %v", err)
	}
	w := r.work(t, &queuev1.Hello{SessionId: "w", Queues: names, Partial: true, Resume: []*queuev1.LeaseRef{{Queue: "dev/missing", Key: "k", Token: 1}}})
	if f := w.welcome.GetRefused(); len(f) != 1 || f[0].GetQueue() != "dev/missing" || f[0].GetReason() != "QUEUE_NOT_FOUND" || len(w.welcome.GetLost()) != 1 {
		t.Fatalf("welcome %v", w.welcome)
	}
	w.give(1)
	r.add(t, "k")
	l := wait(t, w.leases)
	other := &queuev1.Lease{Queue: "dev/missing", Key: "k", Token: 1}
	got := w.settle(done, l, other)
	if got[0].GetStatus() != settledOK || got[1].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED {
		t.Errorf("settled %v", got)
	}
	r.make(t, &queuev1.QueueConfig{Name: "dev/missing", LeaseDuration: durationpb.New(time.Minute)})
	if c := wait(t, w.control); c.GetAction() != queuev1.Action_ACTION_RECONNECT {
		t.Errorf("control %v", c)
	}
	if w := r.work(t, &queuev1.Hello{SessionId: "w", Queues: names, Partial: true}); len(w.welcome.GetRefused()) != 0 {
		t.Errorf("welcome %v", w.welcome)
	}
}

func TestWithoutItsFirstPartitionAQueueKeepsToItsRates(t *testing.T) {
	t.Parallel()
	r, a, w, held := twoParts(t, 0, &queuev1.Hello{SessionId: "w", Partial: true})
	r.make(t, &queuev1.QueueConfig{
		Name: q, Partitions: 2,
		RateLimiter:     &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: .02, Burst: 4}}},
		DispatchLimiter: &queuev1.BucketLimiter{Qps: 20, Burst: 10},
	})
	a.away()
	a.deny()
	var keys []string
	for i := 200; len(keys) < 10; i++ {
		if key := jobs(i + 1)[i]; engine.PartitionOf(key, 2) == 1 {
			keys = append(keys, key)
		}
	}
	// Two of the burst's four at once, then one every 100 s: half of the rate.
	due := func(keys ...string) time.Duration {
		items := make([]*queuev1.AddItem, len(keys))
		for i, key := range keys {
			items[i] = &queuev1.AddItem{Key: key}
		}
		got, err := r.AddRateLimited(t.Context(), &queuev1.AddRateLimitedRequest{Queue: q, Items: items})
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
	w.sendSettle(1, held[1])
	if s := wait(t, w.settled); s.GetResults()[0].GetStatus() != settledOK {
		t.Errorf("settled %v", s)
	}
	w.give(20)
	r.add(t, keys[6:]...)
	began, last := time.Now(), time.Time{}
	for range 6 { // the two of the burst and the four that were added
		wait(t, w.leases)
		last = time.Now()
	}
	if took := last.Sub(began); took < 400*time.Millisecond { // the first may be there already
		t.Errorf("6 keys, 10 a second, were handed out in %v", took)
	}
}
