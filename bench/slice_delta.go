package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// deltasPerSecond is the rate at which deltas are published, whatever becomes of them.
const deltasPerSecond = 1000

// deltaVisible measures the time from handing a delta to the log until a client
// of the index sees it. Publisher, log, indexer and clients are one process, so
// there is one clock; the clients still use gRPC over TCP.
func deltaVisible(ctx context.Context, b *bench) (err error) {
	cfg := indexServerConfig{Dir: filepath.Join(b.dir, "delta"), Seed: b.seed, Pods: pick(b, 3000, 9990), Templates: pick(b, 500, 600)}
	server, err := b.spawn(ctx, "delta", place{}, cfg, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	published := 0.
	t, err := interleave(ctx, b, b.plan("delta", 2, 5, 1500*time.Millisecond, 10*time.Second), side{
		"delta", func(_ context.Context, d time.Duration) (map[string]float64, error) {
			var got map[string]float64
			err := b.profiled(server, "delta", func() error { return server.call("run", d, &got) })
			published += got["published"]
			return got, err
		},
	})
	if err != nil {
		return err
	}
	b.note("delta: %d/s open loop, 5 KB each, %.0f in all, each seen once and in order; log: 1 replica, file storage, default sync; Get: a sample of 20/s polls without pause", deltasPerSecond, published)
	for _, q := range []string{"p50", "p99"} {
		b.add(compare("delta published -> in a client's Get, "+q, "ms", t.of("delta", "get-"+q), "bare log reader "+q, t.of("delta", "log-"+q), nil))
		b.add(compare("delta published -> in a client's Watch, "+q, "ms", t.of("delta", "watch-"+q), "bare log reader "+q, t.of("delta", "log-"+q), nil))
	}
	return nil
}

// deltaServer is the servant that publishes deltas and watches them arrive.
func deltaServer(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg indexServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	x, err := startIndexer(ctx, cfg.Dir)
	if err != nil {
		return nil, err
	}
	s, err := newDeltaSource(ctx, x.conn, x.addr, cfg)
	if err != nil {
		return nil, errors.Join(err, x.stop())
	}
	return s.servant(x.stop), nil
}

// servant publishes when it is told to. stop ends what it publishes to.
func (s *deltaSource) servant(stop func() error) *servant {
	return &servant{
		ops: map[string]op{
			"run": func(ctx context.Context, args json.RawMessage) (any, error) {
				var d time.Duration
				if err := json.Unmarshal(args, &d); err != nil {
					return nil, err
				}
				return s.run(ctx, d)
			},
			"hash": func(context.Context, json.RawMessage) (any, error) { return s.hash(), nil },
		},
		stop: func() error {
			s.writer.Close()
			return errors.Join(s.conns.Close(), stop())
		},
	}
}

// deltaSource publishes one changed pod after another.
type deltaSource struct {
	log     *stream.Conn
	conns   pool
	writer  *stream.Writer
	records []delta.Record // the newest of each pod
	rv      int
}

// newDeltaSource publishes a population to a log that the indexer at addr follows.
func newDeltaSource(ctx context.Context, log *stream.Conn, addr string, cfg indexServerConfig) (*deltaSource, error) {
	p := populate(cfg.Seed, cfg.Pods, cfg.Templates)
	s := &deltaSource{log: log, rv: firstRV + len(p.pods)}
	var err error
	if s.writer, err = publish(ctx, log, p.pods); err != nil {
		return nil, err
	}
	for _, pod := range p.pods {
		s.records = append(s.records, record(pod, delta.Updated))
	}
	if s.conns, err = dial(addr, 2); err != nil {
		return nil, err
	}
	return s, awaitObjects(ctx, s.conns, podsCollection.String(), len(p.pods))
}

// hash is the state hash of what was published.
func (s *deltaSource) hash() string {
	h, all := newStateHash(), slices.Clone(s.records)
	slices.SortFunc(all, func(a, b delta.Record) int { return compareKeys(string(a.Key), string(b.Key)) })
	for i := range all {
		h.add(string(all[i].Key), all[i].RV, all[i].Hash)
	}
	return h.sum()
}

// flight is one run's deltas: when each was handed over, and who saw it when.
type flight struct {
	first  int            // resource version of the first delta
	stamps []atomic.Int64 // nanoseconds since began
	began  time.Time
	log    arrivals
	watch  arrivals
	get    histogram
}

// arrivals is what one reader saw.
type arrivals struct {
	latency histogram
	seen    int // for the reader alone
	all     chan struct{}
}

func (f *flight) age(at int) time.Duration {
	return time.Since(f.began) - time.Duration(f.stamps[at].Load())
}

// arrive notes that a reader sees a resource version now. Versions of other runs are nothing.
func (f *flight) arrive(a *arrivals, rv string) error {
	n, err := strconv.Atoi(rv)
	if err != nil {
		return err
	}
	if n < f.first {
		return nil
	}
	if n != f.first+a.seen {
		return fmt.Errorf("resource version %d follows %d: lost or out of order", n, f.first+a.seen-1)
	}
	a.latency.record(f.age(a.seen))
	if a.seen++; a.seen == len(f.stamps) {
		close(a.all)
	}
	return nil
}

// run publishes for d and returns the quantiles in milliseconds.
func (s *deltaSource) run(ctx context.Context, d time.Duration) (map[string]float64, error) {
	f := &flight{began: time.Now(), first: s.rv + 1, stamps: make([]atomic.Int64, int(d.Seconds()*deltasPerSecond))}
	f.log.all, f.watch.all = make(chan struct{}), make(chan struct{})
	reading, stop := context.WithCancel(ctx)
	defer stop()
	g, reading := errgroup.WithContext(reading)
	var ready sync.WaitGroup
	ready.Add(2)
	g.Go(func() error { return s.readLog(reading, f, ready.Done) })
	g.Go(func() error { return s.readWatch(reading, f, ready.Done) })
	samples := make(chan int, 64)
	g.Go(func() error { return s.pollGets(reading, f, samples) })
	g.Go(func() error {
		ready.Wait()
		defer stop()
		if err := s.publishAll(reading, f, samples); err != nil {
			return err
		}
		for _, all := range []chan struct{}{f.log.all, f.watch.all} {
			select {
			case <-all:
			case <-reading.Done():
				return reading.Err()
			case <-time.After(10 * time.Second):
				return fmt.Errorf("of %d deltas the log's reader saw %d and the watch %d", len(f.stamps), f.log.latency.count(), f.watch.latency.count())
			}
		}
		return nil
	})
	err := g.Wait()
	s.rv = f.first + len(f.stamps) - 1
	if err != nil {
		return nil, err
	}
	ms := func(h *histogram, q float64) float64 { return h.quantile(q).Seconds() * 1e3 }
	return map[string]float64{
		"published": float64(len(f.stamps)),
		"log-p50":   ms(&f.log.latency, .5), "log-p99": ms(&f.log.latency, .99),
		"watch-p50": ms(&f.watch.latency, .5), "watch-p99": ms(&f.watch.latency, .99),
		"get-p50": ms(&f.get, .5), "get-p99": ms(&f.get, .99),
	}, nil
}

// publishAll keeps to the schedule as an open loop does. A delta that is late
// because the log was slow is stamped with the time it was due; one that is late
// because this goroutine woke late, with the time it was handed over.
func (s *deltaSource) publishAll(ctx context.Context, f *flight, samples chan<- int) error {
	defer close(samples)
	const interval = time.Second / deltasPerSecond
	start := time.Since(f.began)
	free := start // when the log had taken the last one
	for i := range f.stamps {
		due := start + time.Duration(i)*interval
		if wait := due - time.Since(f.began); wait > 0 {
			time.Sleep(wait)
		}
		r := revised(s.records[i%len(s.records)], strconv.Itoa(f.first+i))
		s.records[i%len(s.records)] = r
		stamp := due
		if free <= due {
			stamp = time.Since(f.began)
		}
		f.stamps[i].Store(int64(stamp))
		if err := s.writer.Append(ctx, []delta.Record{r}); err != nil {
			return err
		}
		free = time.Since(f.began)
		if i%(deltasPerSecond/20) == 0 {
			select {
			case samples <- i:
			default: // the poller is busy: this one is not sampled
			}
		}
	}
	return nil
}

// readLog is the bare log reader.
func (s *deltaSource) readLog(ctx context.Context, f *flight, ready func()) error {
	ready = sync.OnceFunc(ready)
	err := s.log.Read(ctx, podsCollection, stream.ReadConfig{}, func(_ context.Context, batch delta.Batch) error {
		for _, r := range batch.Records {
			if r.Kind == delta.KindDelta {
				if err := f.arrive(&f.log, r.RV); err != nil {
					return fmt.Errorf("log: %w", err)
				}
			}
		}
		if batch.Replayed {
			ready()
		}
		return nil
	})
	return err
}

// readWatch is a client of the index that watches.
func (s *deltaSource) readWatch(ctx context.Context, f *flight, ready func()) error {
	return watchChanges(ctx, s.conns[0], sync.OnceFunc(ready), func(version string) error { return f.arrive(&f.watch, version) })
}

// watchChanges watches the pods until ctx ends: ready is called behind the initial state, see with the version of each change from then on.
func watchChanges(ctx context.Context, conn grpc.ClientConnInterface, ready func(), see func(version string) error) error {
	w, err := indexv1.NewIndexServiceClient(conn).Watch(ctx, &indexv1.WatchRequest{Collection: podsCollection.String()})
	if err != nil {
		return err
	}
	for initial := true; ; {
		m, err := w.Recv()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if m.GetInitialStateEnd() != nil {
			initial = false
			ready()
		}
		for _, e := range m.GetEvents().GetEvents() {
			if initial || e.GetType() == deltav1.DeltaType_DELTA_TYPE_BOOKMARK {
				continue
			}
			if err := see(e.GetObject().GetResourceVersion()); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
		}
	}
}

// pollGets asks for sampled keys until their new version is there.
func (s *deltaSource) pollGets(ctx context.Context, f *flight, samples <-chan int) error {
	client := indexv1.NewIndexServiceClient(s.conns[1])
	for at := range samples {
		want := f.first + at
		for {
			got, err := client.Get(ctx, getRequest(string(s.records[at%len(s.records)].Key)))
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			rv, err := strconv.Atoi(got.GetObject().GetResourceVersion())
			if err != nil {
				return err
			}
			if rv >= want {
				f.get.record(f.age(at))
				break
			}
		}
	}
	return nil
}
