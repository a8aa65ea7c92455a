package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// workerConfig is what a worker in a child works on. It takes keys and holds them.
type workerConfig struct {
	Addr  string        `json:"addr"`
	Queue string        `json:"queue"`
	Lease time.Duration `json:"lease"`
	Keys  int           `json:"keys"`
}

// WorkerChild is the servant that holds leases until it is killed.
func WorkerChild(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg workerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	p, err := load.Dial(cfg.Addr, 1)
	if err != nil {
		return nil, err
	}
	l := newDriver(p, cfg.Queue)
	s, err := l.openWork(ctx, 0, cfg.Lease)
	if err != nil {
		return nil, err
	}
	if err := s.credit(int32(cfg.Keys)); err != nil {
		return nil, err
	}
	var held atomic.Int64
	go func() { // until the stream ends, with the process
		for {
			got, err := s.recv()
			if err != nil {
				return
			}
			held.Add(int64(len(got.GetAssign().GetLeases())))
		}
	}()
	go func() {
		for tick := time.NewTicker(cfg.Lease / 4); ; {
			select {
			case <-tick.C:
				if s.extend() != nil {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return &harness.Servant{
		Ops:  map[string]harness.Op{"held": func(context.Context, json.RawMessage) (any, error) { return held.Load(), nil }},
		Stop: p.Close,
	}, nil
}

const (
	killKeys  = 10 // of one worker
	killLease = 2 * time.Second
)

// killRecovery measures from the end of a worker process to its keys in the
// hands of another: killed, so that its stream closes, and stopped, so that
// nothing but the lease tells.
func killRecovery(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "kill", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	victims := harness.Pick(b, 5, 15)
	killed, err := recoveries(ctx, b, r, victims, "killed", func(c *harness.Child) error { return c.Kill() })
	if err != nil {
		return err
	}
	stopped, err := recoveries(ctx, b, r, victims, "stopped", func(c *harness.Child) error { return c.Cmd.Process.Signal(syscall.SIGSTOP) })
	if err != nil {
		return err
	}
	b.Note("kill: %d worker processes of %d keys each, one after the other; lease %v, extended every quarter of it; from just before the signal to the key at another worker", victims, killKeys, killLease)
	seconds := func(h *harness.Histogram) []float64 { return []float64{h.Quantile(.99).Seconds()} }
	b.Add(harness.Alone("worker SIGKILL -> redelivery, p99", "s", seconds(killed), harness.AtMost("ours", 1.5)).With("p50", "s", []float64{killed.Quantile(.5).Seconds()}))
	limit := (killLease + 200*time.Millisecond).Seconds()
	b.Add(harness.Alone("worker SIGSTOP (cut off silently) -> redelivery, p99", "s", seconds(stopped), harness.AtMost("ours", limit)).With("p50", "s", []float64{stopped.Quantile(.5).Seconds()}))
	return nil
}

// recoveries ends workers one after the other and measures when each of their keys comes again.
func recoveries(ctx context.Context, b *harness.Bench, r *rig, victims int, how string, end func(*harness.Child) error) (h *harness.Histogram, err error) {
	h = &harness.Histogram{}
	var queues []string
	var workers []*harness.Child
	defer func() {
		for _, c := range workers {
			_ = c.Kill() // some are gone already
		}
	}()
	for i := range victims {
		l, err := r.load(ctx, fmt.Sprintf("bench/%s-%d", how, i), &queuev1.QueueConfig{})
		if err != nil {
			return h, err
		}
		queues = append(queues, l.queue)
		c, err := b.Spawn(ctx, "worker", harness.Place{}, workerConfig{Addr: r.infos[0].Queue, Queue: l.queue, Lease: killLease, Keys: killKeys}, nil)
		if err != nil {
			return h, err
		}
		workers = append(workers, c)
		if err := l.addKeys(ctx, killKeys); err != nil {
			return h, err
		}
		for held := 0; held < killKeys; time.Sleep(5 * time.Millisecond) {
			if err := c.Call("held", nil, &held); err != nil {
				return h, err
			}
		}
	}
	rescue := newDriver(r.pools[0], queues[0])
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s, err := rescue.openWork(ctx, 0, 0, queues...)
	if err != nil {
		return h, err
	}
	defer s.close()
	if err := s.credit(10_000); err != nil {
		return h, err
	}
	ended := make([]atomic.Int64, victims)
	failed := make(chan error, 1)
	go func() {
		for i, c := range workers {
			ended[i].Store(time.Now().UnixNano())
			if err := end(c); err != nil {
				failed <- err
				cancel()
				return
			}
			time.Sleep(50 * time.Millisecond) // the next one ends at another moment of its lease
		}
		failed <- nil
	}()
	for n := 0; n < victims*killKeys; {
		got, err := s.recv()
		if err != nil {
			return h, err
		}
		now := time.Now().UnixNano()
		for _, lease := range got.GetAssign().GetLeases() {
			queue := lease.GetQueue()
			if queue == "" {
				queue = got.GetAssign().GetQueue()
			}
			var i int
			if _, err := fmt.Sscanf(queue, "bench/"+how+"-%d", &i); err != nil {
				return h, fmt.Errorf("a lease of queue %q: %w", queue, err)
			}
			at := ended[i].Load()
			if at == 0 || lease.GetAttempt() < 2 {
				return h, fmt.Errorf("key %s of a living worker came again, attempt %d", lease.GetKey(), lease.GetAttempt())
			}
			h.Record(time.Duration(now - at))
			n++
			one := &queuev1.SettleRequest{SessionId: s.session, Settlements: []*queuev1.Settlement{{Queue: queue, Key: lease.GetKey(), Token: lease.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET}}}
			if _, err := rescue.client(0).Settle(ctx, one); err != nil {
				return h, err
			}
		}
	}
	return h, <-failed
}

// addKeys adds keys by one call.
func (l *driver) addKeys(ctx context.Context, n int) error {
	request := &queuev1.AddRequest{Queue: l.queue}
	for range n {
		request.Items = append(request.Items, &queuev1.AddItem{Key: benchKey(l.next.Add(1))})
	}
	_, err := l.client(0).Add(ctx, request)
	l.adds.Add(int64(n))
	return err
}
