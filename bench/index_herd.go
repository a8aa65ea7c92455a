package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// probeRate is how many lookups a second are made while watchers come.
const probeRate = 200

// indexHerd lets watchers that have lost their connections all come back at once,
// each on a connection of its own for the pods of one node, and measures how soon
// each has its initial state again, and what becomes of other reads meanwhile.
func indexHerd(ctx context.Context, b *bench) (err error) {
	r, err := b.publishInto(ctx, "herd", sourceConfig{Objects: pick(b, 3000, 9990), Templates: pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	x, err := b.syncedReplica(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.close()) }()
	n := pick(b, 400, 2000)
	probe := &prober{x: x, info: r.info}
	quiet, err := probe.during(ctx, func(ctx context.Context) error { return sleep(ctx, pick(b, 500*time.Millisecond, 3*time.Second)) })
	if err != nil {
		return err
	}
	var ready, refused, busy []float64
	turn := func() error {
		h := &herd{x: x, info: r.info}
		before, err := x.usage()
		if err != nil {
			return err
		}
		meanwhile, err := probe.during(ctx, func(ctx context.Context) error { return h.come(ctx, n) })
		if err != nil {
			return err
		}
		after, err := x.usage()
		ready = append(ready, h.ready.quantile(.99).Seconds())
		refused = append(refused, float64(h.refused.Load()))
		busy = append(busy, meanwhile.quantile(.99).Seconds()*1e3)
		b.say("  herd: %d watchers, ready p50 %s, p99 %s, last %s, %d refusals, server CPU %s", n, h.ready.quantile(.5), h.ready.quantile(.99), h.ready.quantile(1), h.refused.Load(), after.CPU-before.CPU)
		return err
	}
	for range pick(b, 1, 3) {
		if err := turn(); err != nil {
			return err
		}
	}
	b.note("herd: each of %d watchers has a connection of its own and asks for the initial state of one node, 30 pods of 5 KB; driver and server share the cores", n)
	b.add(alone(fmt.Sprintf("%d watchers reconnect at once, until ready, p99, raw tier", n), "s", ready, atMost("ours", 10)).with("refused and came again", "", refused))
	quietP99 := quiet.quantile(.99).Seconds() * 1e3
	b.add(compare("ByIndex, 30 hits, keys only, while they reconnect, raw tier, p99", "ms", busy, "before", repeated(quietP99, len(busy)), nil))
	return r.verify(ctx, x)
}

func repeated(v float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// herd is watchers that come at once.
type herd struct {
	x       *replica
	info    sourceInfo
	ready   histogram
	refused atomic.Int64
}

// come returns when every watcher is ready; then they go.
func (h *herd) come(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	var group sync.WaitGroup
	errs := make([]error, n)
	conns, err := dial(h.x.addr, n) // nothing is connected before the first call
	if err != nil {
		return err
	}
	began := time.Now()
	for i := range n {
		group.Go(func() {
			for errs[i] = h.watch(ctx, conns[i:i+1], i); errs[i] != nil; errs[i] = h.watch(ctx, conns[i:i+1], i) {
				wait, again := retryAfter(errs[i])
				if !again {
					return
				}
				h.refused.Add(1)
				if sleep(ctx, wait) != nil {
					return
				}
			}
			h.ready.record(time.Since(began))
		})
	}
	group.Wait()
	return errors.Join(errors.Join(errs...), conns.Close())
}

// watch returns when a watcher has its initial state; the stream stays open until ctx ends.
func (h *herd) watch(ctx context.Context, conn pool, i int) error {
	node := h.info.Values[i%len(h.info.Values)]
	s, err := indexv1.NewIndexServiceClient(conn[0]).Watch(ctx, &indexv1.WatchRequest{Collection: h.x.collection, Index: "node", IndexValue: node})
	if err != nil {
		return err
	}
	for objects := 0; ; {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		objects += len(m.GetEvents().GetEvents())
		if m.GetInitialStateEnd() == nil {
			continue
		}
		if objects != podsPerNode {
			return fmt.Errorf("the initial state of %s has %d pods, want %d", node, objects, podsPerNode)
		}
		return nil
	}
}

// retryAfter is when a refused watcher may come again, spread a little.
func retryAfter(err error) (time.Duration, bool) {
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted && s.Code() != codes.Unavailable {
		return 0, false
	}
	wait := 100 * time.Millisecond
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.RetryInfo); ok {
			wait = info.GetRetryDelay().AsDuration()
		}
	}
	return wait + rand.N(wait/10+1), true //nolint:gosec // to spread, not to hide
}

// prober looks nodes up at a fixed rate, an open loop.
type prober struct {
	x    *replica
	info sourceInfo
}

// during probes while work is done, and returns how long lookups took from when they were due.
func (p *prober) during(ctx context.Context, work func(context.Context) error) (*histogram, error) {
	h := &histogram{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	var group sync.WaitGroup
	var failed atomic.Pointer[error]
	client := indexv1.NewIndexServiceClient(p.x.conns[0])
	began := time.Now()
	for i := 0; ; i++ {
		due := time.Duration(i) * time.Second / probeRate
		select {
		case err := <-done:
			group.Wait()
			if e := failed.Load(); e != nil {
				err = errors.Join(err, *e)
			}
			return h, err
		case <-time.After(due - time.Since(began)):
		}
		group.Go(func() {
			if _, err := client.ByIndex(ctx, byIndexRequest(p.info.Values[i%len(p.info.Values)])); err != nil {
				failed.Store(&err)
			}
			h.record(time.Since(began) - due)
		})
	}
}
