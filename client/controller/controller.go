package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/client/internal/writeback"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// Controller is one replica of a controller. Make it with [New], say what it is for, and
// run it once.
type Controller struct {
	o      Options
	conn   grpc.ClientConnInterface
	index  *client.Index
	queue  *client.Queue
	feed   *client.Queue // of the single key whose lease makes a replica the leader
	source source

	watches []*watched // the first is For's
	faults  []error    // of For, Owns and Watches
	once    sync.Once
	rec     Reconciler
	names   names
	health  health
	metrics *metrics
	guard   *writeback.Guard

	stopping   <-chan struct{} // closed when Run's context ends
	generation chan string     // generations of the queue's store that somebody saw
	wake       chan struct{}   // has the feed's key looked after at once

	mu   sync.Mutex
	seen client.Barrier // how far changes were turned into keys by this replica

	panics   attempt.Wait // between rounds over every key; the leadership's
	panicked time.Time
}

// New returns a controller on connections to an index and a queue service, which the
// caller closes after Run. It connects to nobody yet.
func New(index, queue grpc.ClientConnInterface, o Options) *Controller {
	o = o.withDefaults()
	name := o.Cluster + "/" + o.Name
	c := &Controller{
		o: o, conn: queue, index: client.NewIndex(index),
		queue: client.NewQueue(queue, name, ""), feed: client.NewQueue(queue, name+feed.Suffix, ""),
		generation: make(chan string, 1), wake: make(chan struct{}, 1), seen: client.Barrier{},
		panics: attempt.Wait{First: time.Second, Most: 5 * time.Minute},
	}
	c.names.index, c.names.cluster, c.guard = c.index, o.Cluster, writeback.New(c.index)
	c.source = &indexSource{c}
	if o.Deltas != nil {
		c.source = &logSource{c, c.source}
	}
	c.health.set("start", errors.New("the controller does not run"))
	return c
}

// For says which collection the keys are of: "pods", "jobs.v1.batch", "prod/pods". Every
// change of an object makes its key run.
func (c *Controller) For(collection string, s ...Selection) *Controller {
	if len(c.watches) > 0 {
		c.faults = append(c.faults, errors.New("controller: For is called twice, or behind Owns or Watches"))
	}
	return c.watch(&watched{name: collection, role: roleFor, view: client.ViewKeys}, s)
}

// Owns names a collection whose objects are owned by those that the controller is for: a
// change of one makes every key run that owns it, or owned it before the change. The
// leader of the feed remembers who owns what, about 100 bytes for each owned object.
func (c *Controller) Owns(collection string, s ...Selection) *Controller {
	return c.watch(&watched{name: collection, role: roleOwned, fields: ownerFields}, s)
}

// Watches names another collection whose changes concern keys.
func (c *Controller) Watches(collection string, m Mapper, s ...Selection) *Controller {
	if m == nil {
		c.faults = append(c.faults, fmt.Errorf("controller: collection %s has no mapper", collection))
	}
	return c.watch(&watched{name: collection, role: roleMapped, view: client.ViewMetadata, mapper: m}, s)
}

func (c *Controller) watch(w *watched, s []Selection) *Controller {
	if w.name == "" {
		c.faults = append(c.faults, fmt.Errorf("controller: %s: collection is empty", w.role))
	}
	if len(s) > 1 {
		c.faults = append(c.faults, fmt.Errorf("controller: collection %s has %d selections, at most one is possible", w.name, len(s)))
	}
	if len(s) > 0 {
		w.selection = s[0]
		w.choose()
	}
	c.watches = append(c.watches, w)
	return c
}

// maxWatches is how many collections a position certainly has room for in a key's state.
const maxWatches = 16

func (c *Controller) validate() error {
	faults := slices.Concat([]error{c.o.validate()}, c.faults)
	if len(c.watches) == 0 || c.watches[0].role != roleFor {
		faults = append(faults, errors.New("controller: For names no collection"))
	}
	if n := len(c.watches); n > maxWatches {
		faults = append(faults, fmt.Errorf("controller: %d collections are watched, at most %d are possible", n, maxWatches))
	}
	return errors.Join(faults...)
}

// ErrRanBefore says that a [Controller] was run twice.
var ErrRanBefore = errors.New("controller: a controller runs once")

// Run reconciles until ctx ends, then stops in two steps and returns nil: nothing more is
// leased, and what runs may go on for Options.Grace. It returns an error when the options
// or collections are unusable, an address is not that of the service it should be,
// no index serves a collection within Options.StartTimeout ([client.ErrCollectionNotFound]), or
// a reconcile does not return although its context has ended. Whatever may get better is
// tried again.
func (c *Controller) Run(ctx context.Context, rec Reconciler) error {
	if err := c.validate(); err != nil {
		return err
	}
	if rec == nil {
		return errors.New("controller: the reconciler is nil")
	}
	first := false
	c.once.Do(func() { first = true })
	if !first {
		return ErrRanBefore
	}
	var err error
	if c.metrics, err = newMetrics(c.o); err != nil {
		return fmt.Errorf("controller: metrics: %w", err)
	}
	c.rec, c.stopping = rec, ctx.Done()
	if err := c.begin(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	c.health.set("start", nil)
	worker, err := c.worker()
	if err != nil {
		return err
	}
	leader, err := c.leader()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	c.stopping = ctx.Done()
	g.Go(func() error { return worker.Run(ctx) })
	g.Go(func() error { return leader.Run(ctx) })
	g.Go(func() error { c.tend(ctx); return nil })
	if err := g.Wait(); err != nil {
		return fmt.Errorf("controller: %s: %w", c.o.Name, err)
	}
	c.health.set("start", errors.New("the controller has stopped"))
	return nil
}
