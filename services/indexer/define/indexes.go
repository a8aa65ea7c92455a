package define

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// Indexes are the indexes of one collection: those that are built in and those that are declared.
type Indexes struct {
	id           delta.Collection
	name         string
	store        *store.Store
	slog         *slog.Logger
	now          func() time.Time
	Declarations *Declarations
	paths        []definition.Path // that are read whatever is declared

	ingest sync.Mutex // held while a batch is applied, and while the plan is replaced
	plan   atomic.Pointer[extract.Plan]
	read   atomic.Pointer[extract.Plan] // by which, or a later one, every object has been read

	declared  atomic.Pointer[[]declaration] // what is declared for the collection, by name
	version   atomic.Uint64                 // of declared
	origins   atomic.Pointer[map[string]origin]
	rebuild   chan struct{}        // wakes build
	evicted   <-chan struct{}      // closed when the collection is given up
	declaring sync.Mutex           // guards built and omitted, and orders changes of what is declared
	built     map[string]string    // declared indexes of the store, with their sources
	omitted   map[string]*omission // declared indexes for which there was no room
	room      room
	lookEvery time.Duration // how often it is looked whether there is room for one that was left out
}

// room says what memory declared indexes may take.
type room interface {
	// Spare waits until size more bytes are free. The error tells that they will not be, or that
	// ctx has ended.
	Spare(ctx context.Context, size int) error
	// Fits reports whether indexes may take so much more at present.
	Fits(size int) bool
}

// Config is what the indexes of a collection belong to.
type Config struct {
	ID           delta.Collection
	Store        *store.Store // with the indexes of builtIn
	Slog         *slog.Logger
	Now          func() time.Time
	Declarations *Declarations
	Fields       map[string][]string // to read whatever is declared, by plural resource name
	Evicted      <-chan struct{}     // closed when the collection is given up
	Room         room
	LookEvery    time.Duration
}

// New returns the indexes of a collection with nothing declared.
func New(cfg Config) *Indexes {
	c := &Indexes{
		id: cfg.ID, name: cfg.ID.String(), store: cfg.Store, slog: cfg.Slog, now: cfg.Now, Declarations: cfg.Declarations, paths: Paths(cfg.ID, cfg.Fields),
		rebuild: make(chan struct{}, 1), evicted: cfg.Evicted, built: map[string]string{}, omitted: map[string]*omission{}, room: cfg.Room, lookEvery: cfg.LookEvery,
	}
	plan := extract.NewPlan(c.paths, nil)
	c.plan.Store(plan)
	c.read.Store(plan)
	c.declared.Store(&[]declaration{})
	c.origins.Store(&map[string]origin{})
	return c
}

// Plan is by what objects are read.
func (c *Indexes) Plan() *extract.Plan { return c.plan.Load() }

// Hold keeps the plan as it is until release is called: what is read by it in
// between is met again when another one takes its place.
func (c *Indexes) Hold() (plan *extract.Plan, release func()) {
	c.ingest.Lock()
	return c.plan.Load(), c.ingest.Unlock
}

// Complete reports whether every object has been read by the plan.
func (c *Indexes) Complete() bool { return c.read.Load() == c.plan.Load() }

// Version changes with what is declared.
func (c *Indexes) Version() uint64 { return c.version.Load() }

// Declares reports whether an index of a name is declared.
func (c *Indexes) Declares(name string) bool { return find(*c.declared.Load(), name) != nil }

// Selection names the definition of a declared index of a snapshot: the same on
// all replicas. added is when this replica has added the index, see store.Snapshot.Added.
func (c *Indexes) Selection(index string) (selection, added uint64, ok bool) {
	o, ok := (*c.origins.Load())[index]
	return o.selection, o.added, ok
}
