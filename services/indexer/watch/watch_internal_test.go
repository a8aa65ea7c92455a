package watch

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/indexertest"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// tape is a stream that decodes what a watch sends. Every message waits to be
// taken.
type tape struct {
	grpc.ServerStream
	t     *testing.T
	ctx   context.Context
	heard chan *indexv1.WatchResponse
}

func (s *tape) SendMsg(m any) error {
	resp := &indexv1.WatchResponse{}
	if err := proto.Unmarshal(m.(*message.Frame).Parts.Materialize(), resp); err != nil {
		s.t.Error(err)
	}
	select {
	case s.heard <- resp:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// testConfig is what collections and watches of tests differ in.
type testConfig struct {
	ringChanges, ringBytes int
	ttl                    time.Duration    // of tombstones; default an hour
	now                    func() time.Time // default indexertest.Now
	requests               limit.Limit      // of the bytes that requests hold
	stopping               chan struct{}
}

// newWatched is a collection whose watches are served by hand.
func newWatched(t *testing.T) *follow.Collection {
	t.Helper()
	return newWatchedWith(t, testConfig{})
}

func newWatchedWith(t *testing.T, cfg testConfig) *follow.Collection {
	t.Helper()
	all, _ := newTestWatches(t, cfg)
	return all.Know(indexertest.Pods)
}

// mustFeed applies a batch of the log.
func mustFeed(t *testing.T, c *follow.Collection, b delta.Batch) {
	t.Helper()
	c.Feed(t.Context(), b)
}

// newTestWatches are watches of collections that are filled by hand.
func newTestWatches(t *testing.T, cfg testConfig) (*follow.Collections, *Watches) {
	t.Helper()
	const defaultChanges, defaultBytes = 8192, 64 << 20
	if cfg.now == nil {
		cfg.now = func() time.Time { return indexertest.Now }
	}
	if cfg.stopping == nil {
		cfg.stopping = make(chan struct{})
	}
	ring := cmp.Or(cfg.ringBytes, defaultBytes)
	tel := &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry(), Tracer: noop.NewTracerProvider()}
	all, err := follow.New(follow.Config{
		DiscoverEvery: time.Second, RingChanges: cmp.Or(cfg.ringChanges, defaultChanges), RingBytes: ring, Now: cfg.now,
	}, indexertest.DeadLog{TTL: cmp.Or(cfg.ttl, time.Hour)}, tel)
	if err != nil {
		t.Fatal(err)
	}
	limited, err := limit.NewCounter(tel.Registry)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{MaxWatchers: 10_000, MaxClientWatchers: 2500, MaxInitialStates: 16, RingBytes: ring}, all,
		&consistency.Waits{DefaultWait: 3 * time.Second, MaxWait: 30 * time.Second, Stopping: cfg.stopping}, grant.Gate{},
		&limit.Quota{All: cfg.requests, Is: fault.ErrRequestMemory, Limited: limited}, limited, tel.Registry)
	if err != nil {
		t.Fatal(err)
	}
	if err := all.Open(nil, s.Observe); err != nil {
		t.Fatal(err)
	}
	return all, s
}

// serve runs a watch of a collection; what ends it is sent last.
func serve(t *testing.T, c *follow.Collection, req *indexv1.WatchRequest) (s *tape, stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s = &tape{t: t, ctx: ctx, heard: make(chan *indexv1.WatchResponse)}
	done := make(chan error, 1)
	_, srv := newTestWatches(t, testConfig{})
	go func() {
		w := &watcher{s: srv, c: c, hub: hubOf(c), stream: s, slow: req.GetWhenSlow(), every: bookmarkEvery, own: make(chan struct{}, 1)}
		var err error
		if w.filter, err = watchFilter(c, req); err == nil {
			err = w.run(ctx, req)
		}
		done <- err
	}()
	return s, cancel, done
}

func TestAPositionInsideALagNeverNamesALaterEpochOrTermThanItsRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newWatched(t)
		mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
		s, stop, _ := serve(t, c, &indexv1.WatchRequest{})
		defer stop()
		<-s.heard // the end of the state
		var records []delta.Record
		for seq := uint64(5000); seq < 5000+2*chunkEvents; seq++ {
			records = append(records, indexertest.Record(seq, 0))
		}
		hubOf(c).mu.Lock() // until the end of this, no pass is made
		mustFeed(t, c, delta.Batch{Records: records, Next: 6000})
		// The log is lost; a new leader starts it over in a new epoch, at low sequences.
		again := []delta.Record{indexertest.Record(3, 0), indexertest.Synced(4)}
		for i := range again {
			again[i].Epoch, again[i].Term = 2, 2
		}
		mustFeed(t, c, delta.Batch{Reset: true, Records: again, Replayed: true, Next: 5})
		hubOf(c).mu.Unlock()
		events := 0
		for {
			m := <-s.heard
			events += len(m.GetEvents().GetEvents())
			at := m.GetPosition()
			for _, e := range m.GetEvents().GetEvents() {
				if at := e.GetPosition(); at != nil {
					t.Fatalf("an event names position %v", at)
				}
			}
			if at.GetEpoch() == 2 {
				if at.GetSequence() != 4 || at.GetTerm() != 2 || events != 4*chunkEvents+1 {
					t.Errorf("%d events, last position %v", events, at)
				}
				return
			}
			if p := placeOf(at); !p.at.IsZero() || p.told != (delta.Position{Epoch: 2, Sequence: 4, Term: 2}) {
				t.Errorf("position %v while the log started over", at)
			}
		}
	})
}

func TestFastChangesOfManyWatchersShareMessagesAndAreNeverLate(t *testing.T) {
	t.Parallel()
	for watchers, most := range map[int]int{1: 40, 100: 21} { // messages
		synctest.Test(t, func(t *testing.T) {
			c := newWatched(t)
			mustFeed(t, c, delta.Batch{Reset: true, Records: []delta.Record{indexertest.Synced(1)}, Replayed: true, Next: 2})
			const changes, every = 40, 2500 * time.Microsecond
			began := time.Now()
			var group sync.WaitGroup
			var stops []func()
			for range watchers {
				s, stop, _ := serve(t, c, &indexv1.WatchRequest{})
				stops = append(stops, stop)
				group.Go(func() {
					<-s.heard // the end of the state
					next, messages := uint64(2), 0
					for next < 2+changes {
						m := <-s.heard
						messages++
						for _, e := range m.GetEvents().GetEvents() {
							due := time.Duration(next-1) * every
							if got, want := e.GetObject().GetResourceVersion(), fmt.Sprint(next); got != want {
								t.Errorf("%s was told, want %s", got, want)
							}
							if late := time.Since(began) - due; late > mostPace || watchers == 1 && late > 0 {
								t.Errorf("change %d came %v late", next, late)
							}
							next++
						}
					}
					if messages > most {
						t.Errorf("%d watchers: %d messages for %d changes", watchers, messages, changes)
					}
				})
			}
			for i := range uint64(changes) {
				time.Sleep(every)
				mustFeed(t, c, delta.Batch{Records: []delta.Record{indexertest.Record(2+i, 0)}, Next: 3 + i})
			}
			group.Wait()
			for _, stop := range stops {
				stop()
			}
		})
	}
}
