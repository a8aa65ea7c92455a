package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// DeltasPerSecond is the rate at which deltas are published, whatever becomes of them.
const DeltasPerSecond = 1000

// Servant publishes when it is instructed to. stop ends what it publishes to.
func (s *DeltaSource) Servant(stop func() error) *harness.Servant {
	return &harness.Servant{
		Ops: map[string]harness.Op{
			"run": func(ctx context.Context, args json.RawMessage) (any, error) {
				var d time.Duration
				if err := json.Unmarshal(args, &d); err != nil {
					return nil, err
				}
				return s.run(ctx, d)
			},
			"hash": func(context.Context, json.RawMessage) (any, error) { return s.hash(), nil },
		},
		Stop: func() error {
			s.Writer.Close()
			return errors.Join(s.Conns.Close(), stop())
		},
	}
}

// DeltaSource publishes one changed pod after another.
type DeltaSource struct {
	log     *stream.Conn
	Conns   load.Pool
	Writer  *stream.Writer
	Records []delta.Record // the newest of each pod
	RV      int
}

// NewDeltaSource publishes a population to a log that the indexer at addr follows.
func NewDeltaSource(ctx context.Context, log *stream.Conn, addr string, cfg IndexServerConfig) (*DeltaSource, error) {
	p := population.Populate(cfg.Seed, cfg.Pods, cfg.Templates)
	s := &DeltaSource{log: log, RV: population.FirstRV + len(p.Pods)}
	var err error
	if s.Writer, err = population.Publish(ctx, log, p.Pods); err != nil {
		return nil, err
	}
	for _, pod := range p.Pods {
		s.Records = append(s.Records, population.Record(pod, delta.Updated))
	}
	if s.Conns, err = load.Dial(addr, 2); err != nil {
		return nil, err
	}
	return s, AwaitObjects(ctx, s.Conns, population.PodsCollection.String(), len(p.Pods))
}

// hash is the state hash of what was published.
func (s *DeltaSource) hash() string {
	h, all := NewStateHash(), slices.Clone(s.Records)
	slices.SortFunc(all, func(a, b delta.Record) int { return compareKeys(string(a.Key), string(b.Key)) })
	for i := range all {
		h.Add(string(all[i].Key), all[i].RV, all[i].Hash)
	}
	return h.Sum()
}

// flight is one run's deltas: when each was handed over, and who saw it when.
type flight struct {
	first  int            // resource version of the first delta
	stamps []atomic.Int64 // nanoseconds since began
	began  time.Time
	log    arrivals
	watch  arrivals
	get    harness.Histogram
}

// arrivals is what one reader saw.
type arrivals struct {
	latency harness.Histogram
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
	a.latency.Record(f.age(a.seen))
	if a.seen++; a.seen == len(f.stamps) {
		close(a.all)
	}
	return nil
}

// run publishes for d and returns the quantiles in milliseconds.
func (s *DeltaSource) run(ctx context.Context, d time.Duration) (map[string]float64, error) {
	f := &flight{began: time.Now(), first: s.RV + 1, stamps: make([]atomic.Int64, int(d.Seconds()*DeltasPerSecond))}
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
				return fmt.Errorf("of %d deltas the log's reader saw %d and the watch %d", len(f.stamps), f.log.latency.Count(), f.watch.latency.Count())
			}
		}
		return nil
	})
	err := g.Wait()
	s.RV = f.first + len(f.stamps) - 1
	if err != nil {
		return nil, err
	}
	ms := func(h *harness.Histogram, q float64) float64 { return h.Quantile(q).Seconds() * 1e3 }
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
func (s *DeltaSource) publishAll(ctx context.Context, f *flight, samples chan<- int) error {
	defer close(samples)
	const interval = time.Second / DeltasPerSecond
	start := time.Since(f.began)
	free := start // when the log had taken the last one
	for i := range f.stamps {
		due := start + time.Duration(i)*interval
		if wait := due - time.Since(f.began); wait > 0 {
			time.Sleep(wait)
		}
		r := Revised(s.Records[i%len(s.Records)], strconv.Itoa(f.first+i))
		s.Records[i%len(s.Records)] = r
		stamp := due
		if free <= due {
			stamp = time.Since(f.began)
		}
		f.stamps[i].Store(int64(stamp))
		if err := s.Writer.Append(ctx, []delta.Record{r}); err != nil {
			return err
		}
		free = time.Since(f.began)
		if i%(DeltasPerSecond/20) == 0 {
			select {
			case samples <- i:
			default: // the poller is busy: this one is not sampled
			}
		}
	}
	return nil
}

// readLog is the bare log reader.
func (s *DeltaSource) readLog(ctx context.Context, f *flight, ready func()) error {
	ready = sync.OnceFunc(ready)
	err := s.log.Read(ctx, population.PodsCollection, stream.ReadConfig{}, func(_ context.Context, batch delta.Batch) error {
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
func (s *DeltaSource) readWatch(ctx context.Context, f *flight, ready func()) error {
	return WatchChanges(ctx, s.Conns[0], sync.OnceFunc(ready), func(version string) error { return f.arrive(&f.watch, version) })
}

// WatchChanges watches the pods until ctx ends: ready is called behind the initial state, see with
// the version of each change from then on.
func WatchChanges(ctx context.Context, conn grpc.ClientConnInterface, ready func(), see func(version string) error) error {
	w, err := indexv1.NewIndexServiceClient(conn).Watch(ctx, &indexv1.WatchRequest{Collection: population.PodsCollection.String()})
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
func (s *DeltaSource) pollGets(ctx context.Context, f *flight, samples <-chan int) error {
	client := indexv1.NewIndexServiceClient(s.Conns[1])
	for at := range samples {
		want := f.first + at
		for {
			got, err := client.Get(ctx, GetRequest(string(s.Records[at%len(s.Records)].Key)))
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
				f.get.Record(f.age(at))
				break
			}
		}
	}
	return nil
}
