package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// workerConfig is what a worker in a child works on. It takes keys and holds them.
type workerConfig struct {
	Addr  string        `json:"addr"`
	Queue string        `json:"queue"`
	Lease time.Duration `json:"lease"`
	Keys  int           `json:"keys"`
}

// workerChild is the servant that holds leases until it is killed.
func workerChild(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg workerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	p, err := dial(cfg.Addr, 1)
	if err != nil {
		return nil, err
	}
	l := newLoad(p, cfg.Queue)
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
	return &servant{
		ops:  map[string]op{"held": func(context.Context, json.RawMessage) (any, error) { return held.Load(), nil }},
		stop: p.Close,
	}, nil
}

const (
	killKeys  = 10 // of one worker
	killLease = 2 * time.Second
)

// killRecovery measures from the end of a worker process to its keys in the
// hands of another: killed, so that its stream closes, and stopped, so that
// nothing but the lease tells.
func killRecovery(ctx context.Context, b *bench) (err error) {
	r, err := newRig(ctx, b, "kill", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	victims := pick(b, 5, 15)
	killed, err := recoveries(ctx, b, r, victims, "killed", func(c *child) error { return c.kill() })
	if err != nil {
		return err
	}
	stopped, err := recoveries(ctx, b, r, victims, "stopped", func(c *child) error { return c.cmd.Process.Signal(syscall.SIGSTOP) })
	if err != nil {
		return err
	}
	b.note("kill: %d worker processes of %d keys each, one after the other; lease %v, extended every quarter of it; from just before the signal to the key at another worker", victims, killKeys, killLease)
	seconds := func(h *histogram) []float64 { return []float64{h.quantile(.99).Seconds()} }
	b.add(alone("worker SIGKILL -> redelivery, p99", "s", seconds(killed), atMost("ours", 1.5)).with("p50", "s", []float64{killed.quantile(.5).Seconds()}))
	limit := (killLease + 200*time.Millisecond).Seconds()
	b.add(alone("worker SIGSTOP (cut off silently) -> redelivery, p99", "s", seconds(stopped), atMost("ours", limit)).with("p50", "s", []float64{stopped.quantile(.5).Seconds()}))
	return nil
}

// recoveries ends workers one after the other and measures when each of their keys comes again.
func recoveries(ctx context.Context, b *bench, r *rig, victims int, how string, end func(*child) error) (h *histogram, err error) {
	h = &histogram{}
	var queues []string
	var workers []*child
	defer func() {
		for _, c := range workers {
			_ = c.kill() // some are gone already
		}
	}()
	for i := range victims {
		l, err := r.load(ctx, fmt.Sprintf("bench/%s-%d", how, i), &queuev1.QueueConfig{})
		if err != nil {
			return h, err
		}
		queues = append(queues, l.queue)
		c, err := b.spawn(ctx, "worker", place{}, workerConfig{Addr: r.infos[0].Queue, Queue: l.queue, Lease: killLease, Keys: killKeys}, nil)
		if err != nil {
			return h, err
		}
		workers = append(workers, c)
		if err := l.addKeys(ctx, killKeys); err != nil {
			return h, err
		}
		for held := 0; held < killKeys; time.Sleep(5 * time.Millisecond) {
			if err := c.call("held", nil, &held); err != nil {
				return h, err
			}
		}
	}
	rescue := newLoad(r.pools[0], queues[0])
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
			h.record(time.Duration(now - at))
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
func (l *load) addKeys(ctx context.Context, n int) error {
	request := &queuev1.AddRequest{Queue: l.queue}
	for range n {
		request.Items = append(request.Items, &queuev1.AddItem{Key: benchKey(l.next.Add(1))})
	}
	_, err := l.client(0).Add(ctx, request)
	l.adds.Add(int64(n))
	return err
}
