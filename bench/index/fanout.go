package index

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	// fanWatchers is how many watchers are fed the same changes.
	fanWatchers = 100
	// fanRate is how many changes are published in a second, each for every watcher.
	fanRate = 400
)

// indexFanout measures what the delivery of changes to many watchers costs the
// server. Each watcher has a connection of its own, as a process of its own has.
func indexFanout(ctx context.Context, b *harness.Bench) (err error) {
	r, err := publishInto(ctx, b, "fanout", system.SourceConfig{Objects: 990, Templates: 500, Keep: 990})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	x, err := syncedReplica(ctx, b, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, x.Close()) }()
	conns, err := load.Dial(x.Addr, fanWatchers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	w := &fan{}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	g, watching := errgroup.WithContext(watching)
	for i := range conns {
		g.Go(func() error { return w.watch(watching, indexv1.NewIndexServiceClient(conns[i]), r.name) })
	}
	if err := w.await(ctx, &w.ready, fanWatchers); err != nil {
		return errors.Join(err, g.Wait())
	}
	t, err := harness.Interleave(ctx, b, b.Plan("fanout", 2, 5, 700*time.Millisecond, 4*time.Second), harness.Side{Name: "fanout", Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
		err = b.Profiled(x.Child, "fanout", func() error { got, err = w.turn(ctx, r, x, d); return err })
		return got, err
	}})
	stop()
	if err = errors.Join(err, g.Wait()); err != nil {
		return err
	}
	f := harness.Alone(fmt.Sprintf("watch fan-out, %d watchers, 5 KB events, raw tier, per server core", fanWatchers), "events/s", t.Of("fanout", "core"), harness.AtLeast("ours", 60_000))
	f = f.With("server CPU", "us/event", t.Of("fanout", "cpu")).With("seen", "events/s", t.Of("fanout", "rate"))
	b.Add(f.With("events a message", "", t.Of("fanout", "batch")).With("core busy", "", t.Of("fanout", "busy")))
	return r.verify(ctx, x)
}

// fan counts what watchers see.
type fan struct {
	ready, events, messages atomic.Int64
}

// watch counts live changes until ctx ends. Versions that do not rise fail, and
// so do changes that were folded: nobody is slow here.
func (w *fan) watch(ctx context.Context, client indexv1.IndexServiceClient, collection string) error {
	s, err := client.Watch(ctx, &indexv1.WatchRequest{Collection: collection, SkipInitialState: true})
	if err != nil {
		return err
	}
	if _, err := s.Header(); err != nil {
		return err
	}
	w.ready.Add(1)
	last := ""
	for {
		m, err := s.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetGap() != nil || m.GetEvents().GetCoalesced() {
			return errors.New("a watcher fell behind")
		}
		events := m.GetEvents().GetEvents()
		for _, e := range events {
			rv := e.GetObject().GetResourceVersion() // all have as many digits
			if rv <= last {
				return fmt.Errorf("resource version %s after %s", rv, last)
			}
			last = rv
		}
		if len(events) > 0 {
			w.events.Add(int64(len(events)))
			w.messages.Add(1)
		}
	}
}

// await returns when a count has reached n.
func (w *fan) await(ctx context.Context, count *atomic.Int64, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for tick := time.NewTicker(time.Millisecond); ; {
		if count.Load() >= n {
			tick.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d arrived: %w", count.Load(), n, ctx.Err())
		case <-tick.C:
		}
	}
}

// turn publishes changes for d and waits until every watcher has seen each.
func (w *fan) turn(ctx context.Context, r *published, x *system.Replica, d time.Duration) (map[string]float64, error) {
	events, messages := w.events.Load(), w.messages.Load()
	before, err := x.Usage()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	var n int64
	if err := r.source.Call("churn", system.ChurnArgs{Rate: fanRate, For: d}, &n); err != nil {
		return nil, err
	}
	if err := w.await(ctx, &w.events, events+n*fanWatchers); err != nil {
		return nil, err
	}
	took := time.Since(began)
	after, err := x.Usage()
	if err != nil {
		return nil, err
	}
	sent, cpu := float64(n*fanWatchers), (after.CPU - before.CPU).Seconds()
	return map[string]float64{
		"core": sent / cpu, "cpu": cpu * 1e6 / sent, "rate": sent / took.Seconds(), "busy": cpu / took.Seconds(),
		"batch": sent / float64(w.messages.Load()-messages),
	}, nil
}
