package queue_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestAWorkerGetsTheKeysOfAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		const n = 200
		r.AddKeys(t, queuetest.Jobs(n)...)
		if c := r.Counts(t); c.GetReady() != n {
			t.Errorf("%v, want %d ready", c, n)
		}
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(3)
		seen := map[string]bool{}
		for range n {
			l := queuetest.Wait(t, w.Leases)
			if seen[l.GetKey()] {
				t.Fatalf("%s came twice", l.GetKey())
			}
			seen[l.GetKey()] = true
			if s := w.Settle(queuetest.Done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Fatalf("settle: %v", s)
			}
		}
		if c := r.Counts(t); c.GetReady()+c.GetProcessing() != 0 {
			t.Errorf("%v, want nothing left", c)
		}
		r.AddKeys(t, "later") // whichever partition it is in, somebody waits there
		queuetest.Wait(t, w.Leases)
	})
}

func TestAGetFindsKeysInEveryPartition(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		ctx := t.Context()
		for _, key := range queuetest.Jobs(20) {
			got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w"})
			if err != nil || len(got.GetLeases()) != 0 {
				t.Fatalf("Get of nothing = %v, %v", got, err)
			}
			r.AddKeys(t, key)
			if got, err = r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: 5}); err != nil || len(got.GetLeases()) != 1 || got.GetLeases()[0].GetKey() != key {
				t.Fatalf("Get = %v, %v, want %s", got, err, key)
			}
		}
		for i := range 20 {
			got := make(chan *queuev1.GetResponse, 1)
			go func() {
				res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(30 * time.Second)})
				if err != nil {
					t.Error(err)
				}
				got <- res
			}()
			key := "waited-for-" + strconv.Itoa(i)
			r.AddKeys(t, key)
			if l := queuetest.Wait(t, got).GetLeases(); len(l) != 1 || l[0].GetKey() != key {
				t.Fatalf("Get that waited = %v, want %s", l, key)
			}
		}
		began := time.Now()
		got, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(50 * time.Millisecond)})
		if err != nil || len(got.GetLeases()) != 0 || time.Since(began) > 20*time.Second {
			t.Errorf("Get in vain = %v, %v after %v", got, err, time.Since(began))
		}
		if c := r.Counts(t); c.GetReady() != 0 || c.GetProcessing() != 40 {
			t.Errorf("%v, want 40 held", c)
		}
	})
}

func TestAGetBringsWhatIsReadyInAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		const n = 40
		r.AddKeys(t, queuetest.Jobs(n)...)
		got, gets := 0, 0
		for got < n {
			res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", MaxItems: n, Wait: durationpb.New(10 * time.Second)})
			if err != nil || len(res.GetLeases()) == 0 {
				t.Fatalf("Get after %d keys = %v, %v", got, res, err)
			}
			got += len(res.GetLeases())
			gets++
		}
		if got != n || gets > 3 {
			t.Errorf("%d keys by %d calls, want %d by one, or a few", got, gets, n)
		}
		if c := r.Counts(t); c.GetProcessing() != n || c.GetReady() != 0 {
			t.Errorf("%v, want all held", c)
		}
	})
}

func TestNoPartitionStarvesAnother(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 4})
		r.AddKeys(t, queuetest.Jobs(800)...)
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(2)
		share := make([]int, 4)
		for range 200 {
			l := queuetest.Wait(t, w.Leases)
			share[engine.PartitionOf(l.GetKey(), 4)]++
			w.Settle(queuetest.Done, l)
		}
		for p, n := range share {
			if n < 10 {
				t.Errorf("partition %d had %d of 200 leases, all of them %v", p, n, share)
			}
		}
	})
}

func TestOneBucketServesAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		const burst = 10
		r.Make(t, r.Changed(t, func(c *queuev1.QueueConfig) {
			c.RateLimiter = &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: .01, Burst: burst}}}
		}))
		p := r.OpenProduce(t, "p")
		now, last := 0, time.Time{}
		for i := range 10 {
			var ops []*queuev1.ProduceOp
			for k := range 4 {
				ops = append(ops, &queuev1.ProduceOp{Key: strconv.Itoa(4*i + k), Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED})
			}
			got := p.Do(ops...)
			for _, s := range got.GetStatuses() {
				if s == queuetest.Queued {
					now++
				}
			}
			for _, d := range got.GetDetails() {
				if at := d.GetReadyAt().AsTime(); at.After(last) {
					last = at
				}
			}
		}
		if now != burst {
			t.Errorf("%d keys waited at once, want the burst of %d", now, burst)
		}
		if in := time.Until(last); in < 2900*time.Second || in > 3100*time.Second {
			t.Errorf("the last of 30 more is due in %v, want 30 times 100 s", in)
		}
	})
}

func TestTheDispatchLimiterHoldsOverAllPartitions(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		limit := func(qps float64) {
			r.Make(t, r.Changed(t, func(c *queuev1.QueueConfig) { c.DispatchLimiter = &queuev1.BucketLimiter{Qps: qps, Burst: 5} }))
		}
		limit(.001)
		r.AddKeys(t, queuetest.Jobs(40)...)
		w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
		w.Give(100)
		for range 5 {
			queuetest.Wait(t, w.Leases)
		}
		r.AddKeys(t, "one", "two", "three", "four") // transactions in which nothing may be leased
		if n := len(w.Leases); n != 0 {
			t.Errorf("%d leases beyond the burst", n)
		}
		began := time.Now()
		limit(50)
		for range 25 {
			queuetest.Wait(t, w.Leases)
		}
		if took := time.Since(began); took < 500*time.Millisecond || took > 20*time.Second {
			t.Errorf("25 leases, 50 a second from a bucket that stays empty, took %v", took)
		}
	})
}

// deadEngine has queues of which one partition does nothing.
type deadEngine struct {
	engine.Engine
	part int
}

type deadQueue struct {
	engine.Queue
	part int
}

type deadPart struct{ engine.Partition }

func (d deadEngine) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := d.Engine.Configure(ctx, name, cfg)
	return deadQueue{q, d.part}, created, err
}

func (q deadQueue) Partitions() []engine.Partition {
	parts := append([]engine.Partition(nil), q.Queue.Partitions()...)
	parts[q.part] = deadPart{parts[q.part]}
	return parts
}

func (deadPart) Apply(context.Context, *workqueue.Transaction) (*workqueue.Result, error) {
	return nil, engine.ErrUnavailable
}

func TestAPartitionThatFailsFailsItsKeysOnly(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, deadEngine{e, 1})
	r.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 2})
	p := r.OpenProduce(t, "p")
	keys := queuetest.Jobs(10)
	got := p.Do(queuetest.PlainAdds(keys...)...)
	failed := map[int32]string{}
	for _, d := range got.GetDetails() {
		failed[d.GetIndex()] = d.GetError().GetReason()
	}
	var deadKeys []string
	for i, key := range keys {
		want, reason := queuetest.Queued, ""
		if engine.PartitionOf(key, 2) == 1 {
			want, reason = queuetest.Nothing, "STORE_UNAVAILABLE"
			deadKeys = append(deadKeys, key)
		}
		if got.GetStatuses()[i] != want || failed[int32(i)] != reason {
			t.Errorf("%s: %v, %q, want %v, %q", key, got.GetStatuses()[i], failed[int32(i)], want, reason)
		}
	}
	if e := p.Do(queuetest.PlainAdds(deadKeys...)...).GetError(); e.GetReason() != "STORE_UNAVAILABLE" || e.GetRetryAfter() == nil {
		t.Errorf("a batch of which nothing was done: %v", e)
	}
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	alive := len(keys) - len(deadKeys)
	w.Give(alive)
	for range alive {
		queuetest.Wait(t, w.Leases)
	}
	r.AddKeys(t, "default/job-"+strconv.Itoa(aliveKey(t)))
	// What the other partition has.
	if got, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "x"}); err != nil || len(got.GetLeases()) != 1 {
		t.Errorf("Get = %v, %v", got, err)
	}
}

func aliveKey(t *testing.T) int {
	t.Helper()
	for i := 1000; ; i++ {
		if engine.PartitionOf("default/job-"+strconv.Itoa(i), 2) == 0 {
			return i
		}
	}
}

func TestAGetEndsWithTheStoresErrorWhileItFails(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, deadEngine{e, 0})
	r.Make(t, &queuev1.QueueConfig{Name: queuetest.Q})
	for range 5 { // also when the transaction before has failed already
		for _, wait := range []time.Duration{0, 30 * time.Second} {
			if got, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(wait)}); rpc.Reason(err) != "STORE_UNAVAILABLE" {
				t.Fatalf("Get that waits %v = %v, %v", wait, got, err)
			}
		}
	}
}

// late is an engine that loses the reply to a transaction that closes a queue, and
// applies that transaction after the next one.
type late struct{ engine.Engine }

type lateQueue struct {
	engine.Queue
	parts []engine.Partition
}

type latePart struct {
	engine.Partition
	lost *workqueue.Transaction
	done bool
}

func (l late) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := l.Engine.Configure(ctx, name, cfg)
	if err != nil {
		return nil, false, err
	}
	out := &lateQueue{Queue: q}
	for _, p := range q.Partitions() {
		out.parts = append(out.parts, &latePart{Partition: p})
	}
	return out, created, nil
}

func (q *lateQueue) Partitions() []engine.Partition { return q.parts }

func (p *latePart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	for _, op := range t.Ops {
		if op.Kind == workqueue.OpClose && !p.done {
			p.done, p.lost = true, &workqueue.Transaction{Ops: []workqueue.Op{op}}
			return nil, engine.ErrUnknown
		}
	}
	r, err := p.Partition.Apply(ctx, t)
	if p.lost != nil && err == nil && len(t.Ops) > 0 {
		_, err = p.Partition.Apply(ctx, p.lost)
		p.lost = nil
	}
	return r, err
}

func TestATransactionThatIsLateDoesNotUndoALaterCall(t *testing.T) {
	t.Parallel()
	for _, n := range []int32{1, 3} {
		e, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := queuetest.Serve(t, queue.Config{}, late{e})
		r.Make(t, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: n})
		ctx := t.Context()
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: queuetest.Q}); err == nil {
			t.Fatal("CloseQueue was answered, want its outcome unknown")
		}
		if _, err := r.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		r.AddKeys(t, queuetest.Jobs(20)...)
		if c := r.Counts(t); c.GetReady() != 20 {
			t.Errorf("%d partitions: %v, want 20 keys in a queue that was opened last", n, c)
		}
		if _, err := r.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: queuetest.Q}); err != nil {
			t.Fatal(err)
		}
		if st, err := r.ListQueues(ctx, &queuev1.ListQueuesRequest{}); err != nil || !st.GetQueues()[0].GetClosed() {
			t.Errorf("closed at last: %v, %v", st, err)
		}
	}
}
