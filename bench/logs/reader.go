package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/population"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// readerConfig is consumers of a log, and the history that is behind it.
type readerConfig struct {
	NATS  string   `json:"nats"`
	Count int      `json:"count"` // consumers, each with a connection of its own
	Keys  []string `json:"keys"`
	First int      `json:"first"`
}

// reader is one consumer of a log.
type reader struct {
	mu       sync.Mutex
	audit    *audit // guarded by mu like what follows
	arrivals arrivedAt
	terms    map[uint64]int64 // term to when its first change came
	changed  chan struct{}    // closed after each batch
	failed   error
}

// arrivedAt is when events were seen, in nanoseconds of the machine's clock; 0 where they were not.
// Index 0 is the event First.
type arrivedAt struct {
	First   int     `json:"first"` // resource version
	Arrived []int64 `json:"arrived"`
	// Observed and Published are when the reflector read an event and handed it to the log.
	Observed  []int64 `json:"observed,omitempty"`
	Published []int64 `json:"published,omitempty"`
	missing   int
}

// expectArgs says which events are waited for.
type expectArgs struct {
	First int `json:"first"`
	Count int `json:"count"`
}

// leadership is one leader's term, as a consumer sees it.
type leadership struct {
	Term   uint64 `json:"term"`
	Holder string `json:"holder"`
	At     int64  `json:"at"` // when its first change came
}

// readTimeout is how long a child waits for what must come.
const readTimeout = time.Minute

// ReaderServer is the servant that is consumers of a log.
func ReaderServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg readerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	all := make([]*reader, cfg.Count)
	var group sync.WaitGroup
	for i := range all {
		conn, err := stream.Connect(ctx, stream.Config{URL: cfg.NATS})
		if err != nil {
			cancel()
			return nil, err
		}
		r := &reader{audit: newAudit(cfg.Keys, cfg.First), terms: map[uint64]int64{}, changed: make(chan struct{})}
		all[i] = r
		group.Go(func() {
			defer conn.Close()
			if err := conn.Read(ctx, population.PodsCollection, stream.ReadConfig{}, r.take); err != nil {
				r.mu.Lock()
				r.failed = err
				r.mu.Unlock()
			}
		})
	}
	return &harness.Servant{Ops: readerOps(all), Stop: func() error { cancel(); group.Wait(); return nil }}, nil
}

func readerOps(all []*reader) map[string]harness.Op {
	one := all[0]
	return map[string]harness.Op{
		"await": func(ctx context.Context, args json.RawMessage) (any, error) {
			var rv int
			if err := json.Unmarshal(args, &rv); err != nil {
				return nil, err
			}
			for _, r := range all {
				if err := r.wait(ctx, fmt.Sprintf("revision %d", rv), func() bool { return r.claimed() >= rv }); err != nil {
					return nil, err
				}
			}
			return nil, nil
		},
		"expect": func(_ context.Context, args json.RawMessage) (any, error) {
			var e expectArgs
			if err := json.Unmarshal(args, &e); err != nil {
				return nil, err
			}
			one.mu.Lock()
			defer one.mu.Unlock()
			one.arrivals = newArrivals(e)
			one.arrivals.Observed, one.arrivals.Published = make([]int64, e.Count), make([]int64, e.Count)
			return nil, nil
		},
		"arrivals": func(ctx context.Context, _ json.RawMessage) (any, error) {
			err := one.wait(ctx, "every event", func() bool { return one.arrivals.missing == 0 })
			return one.arrivals, err
		},
		"term": func(ctx context.Context, args json.RawMessage) (any, error) {
			var above uint64
			if err := json.Unmarshal(args, &above); err != nil {
				return nil, err
			}
			var got leadership
			err := one.wait(ctx, fmt.Sprintf("a change of a term above %d", above), func() bool {
				got = leadership{Term: one.audit.term, Holder: one.audit.holder, At: one.terms[one.audit.term]}
				return got.Term > above && got.At != 0
			})
			return got, err
		},
		"hashes": func(context.Context, json.RawMessage) (any, error) {
			var hashes []string
			for _, r := range all {
				r.mu.Lock()
				hashes = append(hashes, system.HashOf(r.audit.live()))
				r.mu.Unlock()
			}
			return hashes, nil
		},
		"faults": func(context.Context, json.RawMessage) (any, error) {
			one.mu.Lock()
			defer one.mu.Unlock()
			return one.audit.Faults, nil
		},
	}
}

func newArrivals(e expectArgs) arrivedAt {
	return arrivedAt{First: e.First, Arrived: make([]int64, e.Count), missing: e.Count}
}

// arrive notes that a version is seen now; it returns its index, or -1 when it is not waited for.
func (a *arrivedAt) arrive(rv string, now time.Time) int {
	n, err := strconv.Atoi(rv)
	if n -= a.First; err != nil || n < 0 || n >= len(a.Arrived) || a.Arrived[n] != 0 {
		return -1
	}
	a.Arrived[n] = now.UnixNano()
	a.missing--
	return n
}

func (r *reader) take(_ context.Context, b delta.Batch) error {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range b.Records {
		rec := &b.Records[i]
		if rec.Kind != delta.KindDelta {
			continue
		}
		if r.terms[rec.Term] == 0 {
			r.terms[rec.Term] = now.UnixNano()
		}
		if at := r.arrivals.arrive(rec.RV, now); at >= 0 {
			r.arrivals.Observed[at], r.arrivals.Published[at] = rec.ObservedAt.UnixNano(), rec.PublishedAt.UnixNano()
		}
	}
	r.audit.apply(b)
	close(r.changed)
	r.changed = make(chan struct{})
	return nil
}

// claimed is the revision that the reader may claim. The caller holds mu.
func (r *reader) claimed() int {
	if !r.audit.follower.Readable() {
		return 0
	}
	rv, _ := strconv.Atoi(r.audit.follower.Revision().RV)
	return rv
}

// wait returns when is holds; is runs with mu held.
func (r *reader) wait(ctx context.Context, what string, is func() bool) error {
	limit := time.NewTimer(readTimeout)
	defer limit.Stop()
	for {
		r.mu.Lock()
		ok, failed, changed := is(), r.failed, r.changed
		at, revision := r.claimed(), r.audit.follower.Revision()
		r.mu.Unlock()
		switch {
		case failed != nil:
			return failed
		case ok:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("the log's reader did not come to %s: it may claim %d, the last was %v", what, at, revision)
		}
	}
}

// consumers is the parent's side of readers.
type consumers struct{ *harness.Child }

func startReaders(ctx context.Context, b *harness.Bench, nats string, count int, s *scripted) (*consumers, error) {
	c, err := b.Spawn(ctx, "reader", harness.Place{}, readerConfig{NATS: nats, Count: count, Keys: s.Keys, First: s.First}, nil)
	return &consumers{c}, err
}

// verify returns when every consumer may claim what the source is at, and fails
// when one then holds something else.
func (c *consumers) verify(s *scripted) error {
	var rv int
	var want string
	var got []string
	if err := errors.Join(s.Call("rv", nil, &rv), s.Call("hash", nil, &want)); err != nil {
		return err
	}
	if err := errors.Join(c.Call("await", rv, nil), c.Call("hashes", nil, &got)); err != nil {
		return err
	}
	if i := slices.IndexFunc(got, func(h string) bool { return h != want }); i >= 0 {
		return fmt.Errorf("%w: consumer %d has state hash %s, want %s", errLogDiffers, i, got[i], want)
	}
	return nil
}

// errLogDiffers says that a log does not hold what is at the source.
var errLogDiffers = errors.New("the log does not hold what the source has")
