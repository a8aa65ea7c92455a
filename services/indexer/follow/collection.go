package follow

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

// Collection follows one log.
type Collection struct {
	ID       delta.Collection
	Name     string
	Label    string          // by which metrics name it: Name, or series.Rest
	Indexes  *define.Indexes // what is declared
	ttl      time.Duration   // of tombstones
	now      func() time.Time
	tracer   trace.Tracer
	slog     *slog.Logger
	metrics  *metrics
	store    *store.Store
	keeper   *payload.Keeper
	observer Observer

	ingesting
	checkpointing
	history
	logState
	unknowns
	known   discovered
	refused atomic.Pointer[refusal] // set while the collection does not fit
	evicted chan struct{}           // closed when another collection takes its place
}

// ingesting belongs to the goroutine that reads the log and, while the plan is held,
// to others.
type ingesting struct {
	follower    delta.Follower
	extract     *extract.Extractor
	ops         []store.Op
	sweepDue    bool      // a replay began and what it did not name is still held
	replaying   bool      // a replay has not come to its end
	replayAt    time.Time // when the replay began; zero once its horizon is known
	replayBegan time.Time // the last one
	proof                 // of what is held
	fresh       time.Time
	staleTo     uint64 // end of the last span of history.stale
}

// logState is what is known of a log and of how it is read, for everybody.
type logState struct {
	bytes    atomic.Uint64 // size of the log as last known
	tail     atomic.Uint64 // last sequence of the log as last known
	head     atomic.Uint64 // its first
	absent   atomic.Bool   // there is no log yet
	replayed atomic.Bool   // the log has been read to its end once
	frozen   atomic.Int64  // since when the revision stands still behind a hole, in nanoseconds; 0 when it does not
	lastErr  atomic.Pointer[string]
}

// Observer is told what has been applied to a collection.
type Observer interface {
	// Applied is called behind each snapshot made of live records, with their number.
	Applied(records int)
	// Wake is called when the collection has begun to lag, or does no more.
	Wake()
}

func (s *Collections) newCollection(id delta.Collection) *Collection {
	ttl := s.log.TombstoneTTL()
	c := &Collection{
		ID: id, Name: id.String(), Label: s.metrics.names.Of(id.String()), ttl: ttl, now: s.cfg.Now, metrics: s.metrics, tracer: s.tracer, slog: s.slog, evicted: make(chan struct{}),
		store: store.New(store.Options{
			TombstoneTTL: ttl, RingChanges: s.cfg.RingChanges, RingBytes: s.cfg.RingBytes, Indexers: define.BuiltIn(id),
		}),
	}
	c.Indexes = define.New(define.Config{
		ID: id, Store: c.store, Slog: s.slog, Now: func() time.Time { return c.now() }, Declarations: s.declarations, Fields: s.cfg.Fields,
		Evicted: c.evicted, Room: &roomOf{s, c}, LookEvery: min(time.Second, s.cfg.DiscoverEvery),
	})
	c.extract = extract.New(c.Indexes.Plan())
	c.keeper = payload.NewKeeper(c.store, payload.Config{})
	if s.cfg.Tier == TierCompact {
		c.keeper.Compact(false)
	}
	c.observer = s.observe(c)
	c.fail(nil)
	return c
}

// Store holds the objects. It is written to by the collection alone.
func (c *Collection) Store() *store.Store { return c.store }

// Snapshot is what is held at present.
func (c *Collection) Snapshot() *store.Snapshot { return c.store.Snapshot() }

// Observer is what the collection was opened with.
func (c *Collection) Observer() Observer { return c.observer }

// Evicted is closed when the collection is given up; Refused says why.
func (c *Collection) Evicted() <-chan struct{} { return c.evicted }

// Refused says why the collection is not held; nil while it is.
func (c *Collection) Refused() error {
	if r := c.refused.Load(); r != nil {
		return r.fault
	}
	return nil
}

// LastError is the last one in following the log; empty when all is well.
func (c *Collection) LastError() string {
	if err := c.Newer(); err != nil {
		return err.Error()
	}
	return *c.lastErr.Load()
}

// Warm reports whether what is served began with a checkpoint.
func (c *Collection) Warm() bool { return c.warm.Load() }

// Compacting reports whether payloads are kept compact.
func (c *Collection) Compacting() bool { return c.keeper.Compacting() }

// OtherNames are what the resource is called besides its plural, if that is known.
func (c *Collection) OtherNames() []string { return c.known.otherNames() }

// Feed applies a batch of the log.
func (c *Collection) Feed(ctx context.Context, b delta.Batch) { c.apply(ctx, c.take(b)) }

// fail notes the last error in following the log; nil is well again.
func (c *Collection) fail(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	c.lastErr.Store(&text)
}

// Synced says whether reads of the collection may be answered.
func (c *Collection) Synced(snap *store.Snapshot) error {
	if snap.State().Synced {
		return nil
	}
	if r := c.refused.Load(); r != nil {
		return r.fault
	}
	return fault.New(fault.ErrNotSynced, c.Because(c.Name), "collection", c.Name)
}

// Stale reports whether the reflector has been silent for too long.
func Stale(state store.State, now time.Time, after time.Duration) bool {
	return state.Fresh.IsZero() || now.Sub(state.Fresh) > after
}
