package index

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// probeRate is how many lookups a second are made while watchers come.
const probeRate = 200

// indexHerd lets watchers that have lost their connections all come back at once,
// each on a connection of its own for the pods of one node, and measures how soon
// each has its initial state again, and what becomes of other reads meanwhile.
func indexHerd(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "herd", system.SourceConfig{Objects: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	x, err := syncedReplica(ctx, b, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	n := harness.Pick(b, 400, 2000)
	prober, err := b.Spawn(ctx, "prober", harness.Place{}, proberConfig{Addr: x.Addr, Values: r.info.Values}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, prober.Stop()) }()
	quiet, err := probedDuring(ctx, prober, func(ctx context.Context) error {
		return harness.Sleep(ctx, harness.Pick(b, 500*time.Millisecond, 3*time.Second))
	})
	if err != nil {
		return err
	}
	var bare harness.Heap
	if err := x.Call("heap", nil, &bare); err != nil {
		return err
	}
	var ready, refused, busy []float64
	turn := func() error {
		h := &herd{x: x, info: r.info}
		before, err := x.Usage()
		if err != nil {
			return err
		}
		meanwhile, err := probedDuring(ctx, prober, func(ctx context.Context) error { return h.come(ctx, n) })
		if err = errors.Join(err, h.leave()); err != nil {
			return err
		}
		after, err := x.Usage()
		ready = append(ready, h.ready.Quantile(.99).Seconds())
		refused = append(refused, float64(h.refused.Load()))
		busy = append(busy, meanwhile.P99.Seconds()*1e3)
		b.Say("  herd: %d watchers, ready p50 %s, p99 %s, last %s, %d refusals, server CPU %s", n, h.ready.Quantile(.5), h.ready.Quantile(.99), h.ready.Quantile(1), h.refused.Load(), after.CPU-before.CPU)
		return err
	}
	for range harness.Pick(b, 1, 3) {
		if err := turn(); err != nil {
			return err
		}
	}
	b.Note("herd: each of %d watchers has a connection of its own and asks for the initial state of one node, 30 pods of 5 KB; driver and server share the cores", n)
	b.Add(harness.Alone(fmt.Sprintf("%d watchers reconnect at once, until ready, p99, raw tier", n), "s", ready, harness.AtMost("ours", 10)).With("refused and came again", "", refused))
	quietP99 := quiet.P99.Seconds() * 1e3
	b.Add(harness.Compare("ByIndex, 30 hits, keys only, while they reconnect, raw tier, p99", "ms", busy, "before", repeated(quietP99, len(busy)), nil))
	return errors.Join(idleWatchers(ctx, b, x, r.info, n, bare), r.verify(ctx, x))
}

// idleWatchers measures what watchers that receive nothing take of the server:
// each has its initial state, and a connection of its own.
func idleWatchers(ctx context.Context, b *harness.Bench, x *system.Replica, info system.SourceInfo, n int, before harness.Heap) (err error) {
	h := &herd{x: x, info: info}
	if err := h.come(ctx, n); err != nil {
		return errors.Join(err, h.leave())
	}
	defer func() { err = errors.Join(err, h.leave()) }()
	if err := harness.Sleep(ctx, harness.Pick(b, 500*time.Millisecond, 3*time.Second)); err != nil {
		return err
	}
	var with harness.Heap
	if err := x.Call("heap", nil, &with); err != nil {
		return err
	}
	each := func(after, before int64) []float64 { return []float64{float64(after-before) / float64(n)} }
	f := harness.Alone(fmt.Sprintf("RSS per idle watcher, %d of them on a connection each, raw tier", n), "B", each(with.RSS, before.RSS), nil)
	f = f.With("live heap", "B", each(with.Live, before.Live)).With("stacks", "B", each(with.Stacks, before.Stacks))
	b.Add(f.With("heap objects", "", each(with.Objects, before.Objects)))
	b.Note("idle watchers: RSS after collections and with free memory given back, less that of the same process before the first herd came (%d MB)", before.RSS>>20)
	return nil
}

func repeated(v float64, n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// herd is watchers that come at once.
type herd struct {
	x       *system.Replica
	info    system.SourceInfo
	ready   harness.Histogram
	refused atomic.Int64
	conns   load.Pool
	cancel  context.CancelFunc
}

// come returns when every watcher is ready; they stay until leave.
func (h *herd) come(ctx context.Context, n int) (err error) {
	ctx, h.cancel = context.WithTimeout(ctx, 2*time.Minute)
	var group sync.WaitGroup
	errs := make([]error, n)
	if h.conns, err = load.Dial(h.x.Addr, n); err != nil { // nothing is connected before the first call
		return err
	}
	began := time.Now()
	for i := range n {
		group.Go(func() {
			for errs[i] = h.watch(ctx, h.conns[i:i+1], i); errs[i] != nil; errs[i] = h.watch(ctx, h.conns[i:i+1], i) {
				wait, again := retryAfter(errs[i])
				if !again {
					return
				}
				h.refused.Add(1)
				if harness.Sleep(ctx, wait) != nil {
					return
				}
			}
			h.ready.Record(time.Since(began))
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// leave ends the watches and their connections.
func (h *herd) leave() error {
	h.cancel()
	return h.conns.Close()
}

// watch returns when a watcher has its initial state; the stream stays open until ctx ends.
func (h *herd) watch(ctx context.Context, conn load.Pool, i int) error {
	node := h.info.Values[i%len(h.info.Values)]
	s, err := indexv1.NewIndexServiceClient(conn[0]).Watch(ctx, &indexv1.WatchRequest{Collection: h.x.Collection, Index: "node", IndexValue: node})
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
		if objects != population.PodsPerNode {
			return fmt.Errorf("the initial state of %s has %d pods, want %d", node, objects, population.PodsPerNode)
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

// proberConfig says where and for what a prober asks.
type proberConfig struct {
	Addr   string   `json:"addr"`
	Values []string `json:"values"`
	Token  string   `json:"token"` // a file; empty for none
}

// probed is how long lookups took from when they were due.
type probed struct {
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
}

// ProberServer is a servant that looks nodes up at a fixed rate, an open loop,
// while it is instructed to: in a process of its own, so that it does not wait for the
// watchers' side of the herd.
func ProberServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg proberConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	conns, err := load.DialAs(cfg.Addr, 1, cfg.Token)
	if err != nil {
		return nil, err
	}
	var stop context.CancelFunc
	done := make(chan error, 1)
	var took *harness.Histogram
	begin := func(ctx context.Context, _ json.RawMessage) (any, error) {
		probing, cancel := context.WithCancel(ctx)
		stop, took = cancel, &harness.Histogram{}
		go func() { done <- cfg.probe(probing, conns, took) }()
		return nil, nil
	}
	end := func(context.Context, json.RawMessage) (any, error) {
		stop()
		err := <-done
		return probed{took.Quantile(.5), took.Quantile(.99)}, err
	}
	return &harness.Servant{Ops: map[string]harness.Op{"begin": begin, "end": end}, Stop: conns.Close}, nil
}

// probe looks up until ctx ends, and returns when the last answer has come.
func (c proberConfig) probe(ctx context.Context, conns load.Pool, took *harness.Histogram) error {
	client := indexv1.NewIndexServiceClient(conns[0])
	asking := context.WithoutCancel(ctx)
	var g errgroup.Group
	began := time.Now()
	for i := 0; ; i++ {
		due := time.Duration(i) * time.Second / probeRate
		if harness.Sleep(ctx, due-time.Since(began)) != nil {
			return g.Wait()
		}
		g.Go(func() error {
			_, err := client.ByIndex(asking, system.ByIndexRequest(c.Values[i%len(c.Values)]))
			took.Record(time.Since(began) - due)
			return err
		})
	}
}

// probedDuring is what the prober saw while work was done.
func probedDuring(ctx context.Context, prober *harness.Child, work func(context.Context) error) (got probed, err error) {
	if err := prober.Call("begin", nil, nil); err != nil {
		return got, err
	}
	err = work(ctx)
	return got, errors.Join(err, prober.Call("end", nil, &got))
}
