package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	bucketQPS   = 500
	bucketBurst = 10
)

// bucketRate lets three replicas retry keys half as often again as a queue's
// token bucket allows and counts what comes back.
func bucketRate(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "bucket", false, 3)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	window := harness.Pick(b, 10*time.Second, 60*time.Second)
	partitions := []int32{1, 4}
	rates := make([]float64, len(partitions))
	errs := make([]error, len(partitions))
	var group sync.WaitGroup
	for i, n := range partitions {
		group.Go(func() { rates[i], errs[i] = bucketRateOf(ctx, r, n, window) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, n := range partitions {
		f := harness.Compare(fmt.Sprintf("bucket of %d/s over %v, 3 replicas, %d partitions: off by", bucketQPS, window, n), "%",
			[]float64{100 * harness.Abs(rates[i]-bucketQPS) / bucketQPS}, "allowed", []float64{1}, harness.AtMost("ours", 1))
		b.Add(f.With("rate", "/s", []float64{rates[i]}))
	}
	if b.Quick {
		b.LeaveOut("the bucket over 60 s", "--quick: 10 s")
	}
	return nil
}

// bucketRateOf returns the rate at which a queue's rate-limited keys come back over the window.
func bucketRateOf(ctx context.Context, r *rig, partitions int32, window time.Duration) (float64, error) {
	l, err := r.load(ctx, fmt.Sprintf("bench/bucket-%d", partitions), &queuev1.QueueConfig{
		Partitions:  partitions,
		RateLimiter: &queuev1.RateLimiter{Kind: &queuev1.RateLimiter_Bucket{Bucket: &queuev1.BucketLimiter{Qps: bucketQPS, Burst: bucketBurst}}},
	})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	const warm = 2 * time.Second
	from := time.Now().Add(warm)
	to := from.Add(window)
	var came, settled, added atomic.Int64
	var group sync.WaitGroup
	stop := make(chan struct{})
	for i, p := range r.pools {
		one := newDriver(p, l.queue)
		group.Go(func() {
			if err := one.returning(ctx, from, to, &came, &settled, stop); err != nil {
				cancel(err)
			}
		})
		group.Go(func() {
			if err := one.retrying(ctx, i, len(r.pools), to, &added); err != nil {
				cancel(err)
			}
		})
	}
	select {
	case <-time.After(time.Until(to) + 200*time.Millisecond):
	case <-ctx.Done():
	}
	close(stop)
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	n, err := l.left(ctx)
	if err != nil {
		return 0, err
	}
	// A worker that stops may leave a batch whose settlement it has not seen acknowledged.
	if left := n.GetReady() + n.GetDelayed() + n.GetProcessing(); added.Load() < settled.Load()+left || added.Load() > settled.Load()+left+bucketQPS {
		return 0, errors.Join(load.ErrBooks, fmt.Errorf("queue %s: %d adds, %d settled, %d left", l.queue, added.Load(), settled.Load(), left))
	}
	return float64(came.Load()) / window.Seconds(), nil
}

// retrying adds keys rate-limited, half as many again as the bucket has tokens, over all replicas.
func (l *driver) retrying(ctx context.Context, replica, replicas int, until time.Time, added *atomic.Int64) error {
	const every = 20 * time.Millisecond
	p, err := l.openProduce(ctx, 1)
	if err != nil {
		return err
	}
	batch := int(bucketQPS * 3 / 2 * every / time.Second / time.Duration(replicas))
	began := time.Now()
	n := int(time.Until(until) / every)
	ops := newOps(mix{}, batch)
	sent := make(chan error, 1)
	go func() {
		err := load.OnTime(ctx, n, func(i int) time.Time { return began.Add(time.Duration(i) * every) }, func(i int) error {
			for k, op := range ops {
				op.Kind, op.Key = queuev1.ProduceKind_PRODUCE_KIND_ADD_RATE_LIMITED, benchKey(uint64((i*batch+k)*replicas+replica))
			}
			return p.send(l.queue, ops)
		})
		sent <- errors.Join(err, p.s.CloseSend())
	}()
	for {
		got, err := p.recv()
		if isEOF(err) {
			return <-sent
		}
		if err != nil {
			return err
		}
		added.Add(int64(len(got.GetStatuses())))
	}
}

// returning settles keys and counts those that came between two moments.
func (l *driver) returning(ctx context.Context, from, to time.Time, came, settled *atomic.Int64, stop <-chan struct{}) error {
	s, err := l.openWork(ctx, 0, 0)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.credit(1000); err != nil {
		return err
	}
	go func() {
		select {
		case <-stop:
		case <-ctx.Done():
		}
		s.cancel()
	}()
	for {
		err := s.returnBatch(l.queue, from, to, came, settled)
		select {
		case <-stop:
			return nil // the stream was cancelled, whatever it was doing
		default:
		}
		if err != nil {
			return err
		}
	}
}

// returnBatch settles what the stream brings next.
func (w *workStream) returnBatch(queue string, from, to time.Time, came, settled *atomic.Int64) error {
	got, err := w.recv()
	if err != nil {
		return err
	}
	if leases := got.GetAssign().GetLeases(); len(leases) > 0 {
		if now := time.Now(); now.After(from) && now.Before(to) {
			came.Add(int64(len(leases)))
		}
		if err := w.settle(queue, leases, false); err != nil {
			return err
		}
	}
	n, err := acknowledged(got.GetSettled())
	settled.Add(int64(n))
	return err
}
