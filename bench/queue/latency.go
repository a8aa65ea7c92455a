package queue

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const latencyRate = 500 // adds a second

// addLatency measures from the moment an add was due to be sent until a worker
// has the key, on an idle queue; and what workers that wait cost Redis.
func addLatency(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "latency", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l, err := r.load(ctx, load.BenchQueue, &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	t, err := harness.Interleave(ctx, b, b.Plan("latency", 2, 5, 2*time.Second, 4*time.Second), harness.Side{Name: "ours", Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		h, err := l.latency(ctx, d)
		return map[string]float64{"p50": harness.Ms(h.Quantile(.5)), "p99": harness.Ms(h.Quantile(.99)), "p999": harness.Ms(h.Quantile(.999)), "max": harness.Ms(h.Quantile(1))}, err
	}})
	if err != nil {
		return err
	}
	b.Note("latency: open loop, %d adds a second at fixed times, one Produce and one Work stream, lease 30 s, no polling; sender and worker in one process with one clock", latencyRate)
	b.Add(harness.Alone("Add -> worker, idle, open loop, p50", "ms", t.Of("ours", "p50"), harness.AtMost("ours", .6)))
	b.Add(harness.Alone("Add -> worker, idle, open loop, p99", "ms", t.Of("ours", "p99"), harness.AtMost("ours", 2)).With("p99.9", "ms", t.Of("ours", "p999")).With("max", "ms", t.Of("ours", "max")))
	if err := l.balance(ctx, 0); err != nil {
		return err
	}
	return l.parked(ctx, b, r)
}

// latency adds keys at fixed times for d and returns how long each took to reach the worker.
func (l *driver) latency(ctx context.Context, d time.Duration) (*harness.Histogram, error) {
	h := &harness.Histogram{}
	n := int(d.Seconds() * latencyRate)
	first := l.next.Load()
	l.next.Add(uint64(n))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := l.openWork(ctx, 0, 0)
	if err != nil {
		return h, err
	}
	if err := s.credit(1000); err != nil {
		return h, err
	}
	p, err := l.openProduce(ctx, 1)
	if err != nil {
		return h, err
	}
	began := time.Now().Add(20 * time.Millisecond)
	at := func(i int) time.Time { return began.Add(time.Duration(i) * time.Second / latencyRate) }
	var group sync.WaitGroup
	var sending, answers error
	group.Go(func() {
		ops := newOps(mix{}, 1)
		sending = load.OnTime(ctx, n, at, func(i int) error {
			ops[0].Key = benchKey(first + uint64(i))
			return p.send(l.queue, ops)
		})
	})
	group.Go(func() {
		for range n {
			got, err := p.recv()
			if err != nil {
				answers = err
				cancel()
				return
			}
			l.adds.Add(int64(len(got.GetStatuses())))
		}
	})
	for done := 0; done < n; {
		got, err := s.recv()
		now := time.Now()
		if err != nil {
			group.Wait()
			return h, errors.Join(sending, answers, err)
		}
		if leases := got.GetAssign().GetLeases(); len(leases) > 0 {
			for _, lease := range leases {
				h.Record(now.Sub(at(int(sequence(lease.GetKey()) - first))))
			}
			if err := s.settle(l.queue, leases, false); err != nil {
				return h, err
			}
		}
		k, err := acknowledged(got.GetSettled())
		if err != nil {
			return h, err
		}
		l.settled.Add(int64(k))
		done += k
	}
	group.Wait()
	return h, errors.Join(sending, answers)
}

// sequence is the number a key was made of.
func sequence(key string) uint64 {
	n, _ := strconv.ParseUint(strings.TrimPrefix(key, "bench/"), 10, 64) // our own keys
	return n
}

// parked measures what Redis does while 1,000 workers wait on a queue without keys.
func (l *driver) parked(ctx context.Context, b *harness.Bench, r *rig) error {
	const workers = 1000
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range workers {
		s, err := l.openWork(ctx, i, 0)
		if err != nil {
			return err
		}
		if err := s.credit(10); err != nil {
			return err
		}
	}
	t, err := harness.Interleave(ctx, b, harness.Plan{What: "parked", Rounds: harness.Pick(b, 1, 3), Turn: harness.Pick(b, 3*time.Second, 5*time.Second)}, harness.Side{Name: "parked", Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
		began := time.Now()
		server, err := r.servers[0].Usage()
		if err != nil {
			return nil, err
		}
		before, err := system.RedisCPU(ctx, r.store.admin)
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		after, err := system.RedisCPU(ctx, r.store.admin)
		if err != nil {
			return nil, err
		}
		serverAfter, err := r.servers[0].Usage()
		elapsed := time.Since(began).Seconds()
		return map[string]float64{"redis": 100 * (after - before) / elapsed, "server": 100 * (serverAfter.CPU - server.CPU).Seconds() / elapsed}, err
	}})
	if err != nil {
		return err
	}
	b.Add(harness.Alone("idle Redis CPU, 1,000 parked workers", "% of a core", t.Of("parked", "redis"), harness.AtMost("ours", .5)).With("server", "% of a core", t.Of("parked", "server")))
	return nil
}
