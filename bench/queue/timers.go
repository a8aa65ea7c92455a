package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const timerRate = 10_000 // keys that fall due each second

// timerError measures how far from its due time a delayed key reaches a worker.
func timerError(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "timers", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l, err := r.load(ctx, load.BenchQueue, &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	var early atomic.Int64
	t, err := harness.Interleave(ctx, b, b.Plan("timers", 1, 3, 3*time.Second, 4*time.Second), harness.Side{Name: "timers", Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		h, n, err := l.timers(ctx, d)
		early.Add(n)
		return map[string]float64{"p50": harness.Ms(h.Quantile(.5)), "p99": harness.Ms(h.Quantile(.99)), "max": harness.Ms(h.Quantile(1))}, err
	}})
	if err != nil {
		return err
	}
	b.Note("timers: AddAfter of 0.5 to 2.5 s at random, %d keys fall due a second; late is from the due time that was answered to the worker's hands, by the clock that Redis and the worker share", timerRate)
	b.Add(harness.Alone("AddAfter at 10 k timers/s, late, p99", "ms", t.Of("timers", "p99"), harness.AtMost("ours", 10)).With("p50", "ms", t.Of("timers", "p50")).With("max", "ms", t.Of("timers", "max")))
	b.Add(harness.Alone("AddAfter, keys that came early", "keys", []float64{float64(early.Load())}, harness.AtMost("ours", 0)))
	return l.balance(ctx, 0)
}

// timers lets keys fall due for d and returns how late they came and how many came early.
func (l *driver) timers(ctx context.Context, d time.Duration) (late *harness.Histogram, early int64, err error) {
	const every = 10 * time.Millisecond
	const batch = int(timerRate * every / time.Second)
	late = &harness.Histogram{}
	batches := int(d / every)
	n := batches * batch
	first := l.next.Load()
	l.next.Add(uint64(n))
	due := make([]atomic.Int64, n) // microseconds, as answered
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := l.openWork(ctx, 0, 0)
	if err != nil {
		return late, 0, err
	}
	if err := s.credit(10_000); err != nil {
		return late, 0, err
	}
	p, err := l.openProduce(ctx, 1)
	if err != nil {
		return late, 0, err
	}
	began := time.Now()
	var group sync.WaitGroup
	var sending, answers error
	var wrong atomic.Int64             // due before the delay asked for
	earliest := make([]time.Time, n)   // written before the batch is sent, read after its answer
	ready := make(chan int, batches+1) // batches sent
	group.Go(func() {
		ops := newOps(mix{}, batch)
		sending = load.OnTime(ctx, batches, func(i int) time.Time { return began.Add(time.Duration(i) * every) }, func(i int) error {
			now := time.Now()
			for k, op := range ops {
				after := 500*time.Millisecond + rand.N(2*time.Second)
				op.Key, op.Kind, op.Delay = benchKey(first+uint64(i*batch+k)), queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, durationpb.New(after)
				earliest[i*batch+k] = now.Add(after)
			}
			ready <- i
			return p.send(l.queue, ops)
		})
	})
	group.Go(func() {
		for range batches {
			i := <-ready
			got, err := p.recv()
			if err == nil && len(got.GetDetails()) != batch {
				err = fmt.Errorf("%d of %d delayed adds were answered with their due times", len(got.GetDetails()), batch)
			}
			if err != nil {
				answers = err
				cancel()
				return
			}
			l.adds.Add(int64(len(got.GetStatuses())))
			for _, detail := range got.GetDetails() {
				at := detail.GetReadyAt().AsTime()
				if at.Before(earliest[i*batch+int(detail.GetIndex())].Truncate(time.Microsecond)) {
					wrong.Add(1)
				}
				due[i*batch+int(detail.GetIndex())].Store(at.UnixMicro())
			}
		}
	})
	for done := 0; done < n; {
		got, err := s.recv()
		now := time.Now()
		if err != nil {
			group.Wait()
			return late, early, errors.Join(sending, answers, err)
		}
		if leases := got.GetAssign().GetLeases(); len(leases) > 0 {
			for _, lease := range leases {
				at := due[sequence(lease.GetKey())-first].Load()
				if at == 0 || now.UnixMicro() < at {
					early++
				}
				late.Record(now.Sub(time.UnixMicro(at)))
			}
			if err := s.settle(l.queue, leases, false); err != nil {
				return late, early, err
			}
		}
		k, err := acknowledged(got.GetSettled())
		if err != nil {
			return late, early, err
		}
		l.settled.Add(int64(k))
		done += k
	}
	group.Wait()
	return late, early + wrong.Load(), errors.Join(sending, answers)
}
