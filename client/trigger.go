package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Log is where a [Trigger] reads from: a durable consumer that all replicas of
// the trigger share. Consume hands every record to one of them, at least once,
// and takes it as done when the handler returned nil. It returns nil when ctx ends.
type Log interface {
	Consume(ctx context.Context, handler func(context.Context, Batch) error) error
}

// Batch is a part of one collection's log. Records need no payload.
type Batch struct {
	Collection delta.Collection
	Records    []delta.Record
	// Gap, when not empty, says why records may have been missed: a new
	// consumer, a new epoch, a lag past the tombstones' time.
	Gap string
}

// Memory keeps a trigger's generation beside its position in the log, for as
// long as that is kept. Load answers "" for a name it does not know.
type Memory interface {
	Load(ctx context.Context, name string) (string, error)
	Save(ctx context.Context, name, value string) error
}

// TriggerConfig says what a [Trigger] reads and what it makes of it.
type TriggerConfig struct {
	// Name is the trigger's, shared by its replicas: "job".
	Name string
	// Primary is the collection whose keys the queue holds.
	Primary delta.Collection
	// Others are collections whose records concern keys of the primary one.
	Others map[delta.Collection]Mapper
	// Delay, when set, is how long the keys of a record wait, so that a burst of
	// records makes one run. It is called by several goroutines, with every record
	// that names a key, and must not keep it.
	Delay func(r *delta.Record) time.Duration
	// Gather is how long the records of a collection are gathered before their keys
	// are added, at most 1 s: many records then cost one message to the queue. What
	// Delay says is shorter by it, so a collection whose delays are longer loses no
	// time.
	Gather map[delta.Collection]time.Duration
	// Resync is the time between two rounds over every key. Default 10 h, −1 for
	// none. The rounds are a delayed key of the queue (see [Trigger.Wrap]), so
	// all replicas together make one.
	Resync time.Duration
	// Check is how often the queue's generation is asked for. Default 10 s.
	Check time.Duration
	// Queue is applied when the queue does not exist, and at the start.
	Queue QueueConfig
	// Log receives failures, each when it begins and once a minute. Default: slog.Default().
	Log *slog.Logger
	// Tracer makes a span of each record in its trace, where that is recorded, which the record's
	// keys carry. Default: none, and they carry the record's own.
	Tracer trace.TracerProvider
	// OnSwept is called after every round over all keys.
	OnSwept func(reason string, keys int, err error)
}

// The reasons of a sweep, beside those of [Batch.Gap].
const (
	SweepGeneration = "generation"
	SweepResync     = "resync"
	SweepOverflow   = "overflow"
)

// ResyncKey is the key of the periodic round. No object can have it.
const ResyncKey = "@resync"

// mostGather is what a trigger's log takes.
const mostGather = time.Second

func (c TriggerConfig) withDefaults() TriggerConfig {
	c.Resync = cmp.Or(c.Resync, 10*time.Hour)
	c.Check = cmp.Or(c.Check, 10*time.Second)
	c.Log = logger(c.Log)
	return c
}

func (c TriggerConfig) validate() error {
	var faults []error
	if c.Name == "" {
		faults = append(faults, errors.New("client: trigger: name is empty"))
	}
	if err := c.Primary.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("client: trigger: primary collection: %w", err))
	}
	for col, m := range c.Others {
		if m == nil {
			faults = append(faults, fmt.Errorf("client: trigger: collection %s has no mapper", col))
		}
	}
	for col, d := range c.Gather {
		if d < 0 || d > mostGather {
			faults = append(faults, fmt.Errorf("client: trigger: gather %v of collection %s is not within 0 and %v", d, col, mostGather))
		}
	}
	if c.Check < 0 {
		faults = append(faults, fmt.Errorf("client: trigger: check %v is negative", c.Check))
	}
	return errors.Join(faults...)
}

// Collections are those the trigger wants to hear of, sorted by name.
func (c TriggerConfig) Collections() []delta.Collection {
	all := []delta.Collection{c.Primary}
	for col := range c.Others {
		all = append(all, col)
	}
	slices.SortFunc(all, func(a, b delta.Collection) int { return cmp.Compare(a.String(), b.String()) })
	return all
}

// Trigger turns the log's records into keys of a queue. A record is done once
// its keys were acknowledged by the queue, each with a barrier at the record's
// revision. Whenever keys may have been missed, by the log or by the queue's
// store, it adds every key that the index knows: that is the heal of every loss.
type Trigger struct {
	cfg    TriggerConfig
	q      *Queue
	index  *Index
	log    Log
	memory Memory

	noticed  chan string // generations seen
	sweep    sync.Mutex  // one round at a time
	producer *Producer   // used while Run runs it
	produces atomic.Bool

	mu         sync.Mutex // guards what follows
	generation string     // the last one every key was added under
	fault      error      // why it is not ready
	told       Barrier    // how far records were turned into keys
}

// NewTrigger returns a trigger.
func NewTrigger(q *Queue, index *Index, log Log, memory Memory, cfg TriggerConfig) (*Trigger, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	t := &Trigger{
		cfg: cfg, q: q, index: index, log: log, memory: memory,
		noticed: make(chan string, 1), told: Barrier{}, fault: errors.New("client: trigger has not begun"),
	}
	var err error
	t.producer, err = newProducer(q.c, ProducerConfig{
		Queue: q.name, Name: cfg.Name, Log: cfg.Log,
		OnConnected: func(_ bool, generation string) { t.Notice(generation) },
	})
	return t, err
}

// Ready is nil when the trigger follows the log and every key was added under
// the queue's present generation; else it says why not.
func (t *Trigger) Ready() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fault
}

// Run triggers until ctx ends, and returns nil then. What fails is tried again and
// logged for as long as it lasts, a collection that nobody serves for one; only a
// server that is no queue service ends it.
func (t *Trigger) Run(ctx context.Context) error {
	if ok, err := t.begin(ctx); !ok {
		return err
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { t.watchGeneration(ctx) })
	parts.Go(func() { _ = t.producer.Run(ctx) })
	t.produces.Store(true)
	defer t.produces.Store(false)
	wait := newWait()
	var said warning
	for {
		err := t.log.Consume(ctx, t.Handle)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			said.log(t.cfg.Log, "trigger's log ended", err, slog.String("queue", t.q.Name()))
		}
		if !wait.Sleep(ctx, 0) {
			return nil
		}
	}
}

// begin loads the generation and configures the queue; false when ctx ended, or it
// can only fail.
func (t *Trigger) begin(ctx context.Context) (bool, error) {
	wait := newWait()
	var said warning
	for {
		err := t.prepare(ctx)
		if err == nil {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, nil
		}
		t.note(err)
		if rpc.Code(err) == codes.Unimplemented {
			return false, wrap(noQueueService(err), "configure queue %s", t.q.Name())
		}
		said.log(t.cfg.Log, "trigger cannot begin", err, slog.String("queue", t.q.Name()))
		if !wait.Sleep(ctx, 0) {
			return false, nil
		}
	}
}

func (t *Trigger) prepare(ctx context.Context) error {
	generation, err := t.memory.Load(ctx, t.cfg.Name)
	if err != nil {
		return fmt.Errorf("client: trigger %s: load generation: %w", t.cfg.Name, err)
	}
	t.mu.Lock()
	t.generation = generation
	t.mu.Unlock()
	now, err := t.configure(ctx)
	t.Notice(now)
	return err
}

// configure creates the queue and plants the resync key, and returns the store's
// generation. Both change nothing when they are there.
func (t *Trigger) configure(ctx context.Context) (string, error) {
	generation, err := t.q.Configure(ctx, t.cfg.Queue)
	if err != nil {
		return "", err
	}
	if t.cfg.Resync > 0 {
		if _, err := t.q.AddAfter(ctx, t.cfg.Resync, AddItem{Key: ResyncKey}); err != nil {
			return "", err
		}
	}
	return generation, nil
}

// Notice tells the trigger a generation of the queue's store that somebody saw,
// such as WorkerConfig.OnConnected. It does not block.
func (t *Trigger) Notice(generation string) {
	if generation == "" {
		return
	}
	for {
		select {
		case t.noticed <- generation:
			return
		default:
		}
		select {
		case <-t.noticed: // an older one
		default:
		}
	}
}

func (t *Trigger) known() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.generation
}

func (t *Trigger) note(err error) {
	t.mu.Lock()
	t.fault = err
	t.mu.Unlock()
}

// watchGeneration adds every key again whenever the queue's store is not the
// one they were added to.
func (t *Trigger) watchGeneration(ctx context.Context) {
	tick := time.NewTicker(t.cfg.Check)
	defer tick.Stop()
	wait := newWait()
	var said warning
	var retry <-chan time.Time
	var seen string
	for {
		before := seen
		select {
		case <-ctx.Done():
			return
		case seen = <-t.noticed:
		case <-retry:
			retry = nil
		case <-tick.C:
			if g, err := t.q.Generation(ctx); err == nil && g != "" {
				seen = g
			}
		}
		if retry != nil && seen == before {
			continue // known to be due, and not yet to be tried again
		}
		retry = nil
		if seen == "" || seen == t.known() {
			if seen != "" {
				t.note(nil)
			}
			continue
		}
		err := t.heal(ctx, seen)
		t.note(err)
		if err == nil {
			wait.Reset()
			said.over()
			continue
		}
		if ctx.Err() == nil {
			said.log(t.cfg.Log, "cannot add every key yet", err, slog.String("queue", t.q.Name()), slog.String("reason", SweepGeneration))
		}
		retry = time.After(wait.Next())
	}
}

func (t *Trigger) heal(ctx context.Context, generation string) error {
	// The store may have lost the queue with its keys.
	if _, err := t.configure(ctx); err != nil {
		return err
	}
	if err := t.Sweep(ctx, SweepGeneration); err != nil {
		return err
	}
	if err := t.memory.Save(ctx, t.cfg.Name, generation); err != nil {
		return fmt.Errorf("client: trigger %s: save generation: %w", t.cfg.Name, err)
	}
	t.mu.Lock()
	t.generation = generation
	t.mu.Unlock()
	return nil
}

// Handle adds the keys of a batch; nil means that they are acknowledged. Run
// calls it; it is safe for concurrent use.
func (t *Trigger) Handle(ctx context.Context, b Batch) error {
	if b.Gap != "" {
		if err := t.Sweep(ctx, b.Gap); err != nil {
			return err
		}
	}
	spans := t.traced(ctx, b)
	batches, all := t.items(ctx, b, spans)
	for delay, items := range batches {
		if err := t.add(ctx, delay, items); err != nil {
			endSpans(spans, err)
			return err
		}
	}
	endSpans(spans, nil)
	t.tell(b)
	if all {
		return t.Sweep(ctx, SweepOverflow)
	}
	return nil
}

// tell notes how far the log was read: a round over all keys must not read an index
// that is behind it, or it misses keys that were added to a queue that was lost.
func (t *Trigger) tell(b Batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range b.Records {
		if r := &b.Records[i]; r.Kind == delta.KindDelta {
			t.told.Raise(b.Collection.String(), Revision{Epoch: r.Epoch, RV: r.RV})
		}
	}
}

func (t *Trigger) heard(collection string) Revision {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.told[collection]
}

// items folds a batch: one item per key, behind the newest record that named it,
// under the shortest delay of those records.
func (t *Trigger) items(ctx context.Context, b Batch, spans map[int]trace.Span) (batches map[time.Duration][]AddItem, all bool) {
	mapper := t.cfg.Others[b.Collection]
	if b.Collection == t.cfg.Primary {
		mapper = Self()
	}
	if mapper == nil {
		return nil, false
	}
	name := b.Collection.String()
	at := map[string]int{}
	var items []AddItem
	var delays []time.Duration
	for i := range b.Records {
		r := &b.Records[i]
		if r.Kind != delta.KindDelta {
			continue
		}
		keys, every := mapper(r)
		all = all || every
		if len(keys) == 0 {
			continue
		}
		var delay time.Duration
		if t.cfg.Delay != nil {
			delay = max(0, t.cfg.Delay(r)-t.cfg.Gather[b.Collection])
		}
		trace := traceOf(ctx, spans, i, r)
		for _, key := range keys {
			n, ok := at[key]
			if !ok {
				n = len(items)
				at[key] = n
				items = append(items, AddItem{Key: key, Barrier: Barrier{}})
				delays = append(delays, delay)
			}
			delays[n] = min(delays[n], delay)
			items[n].Barrier.Raise(name, Revision{Epoch: r.Epoch, RV: r.RV})
			items[n].Trace = cmp.Or(trace, items[n].Trace)
		}
	}
	batches = map[time.Duration][]AddItem{}
	for i, item := range items {
		batches[delays[i]] = append(batches[delays[i]], item)
	}
	return batches, all
}

func (t *Trigger) add(ctx context.Context, delay time.Duration, items []AddItem) error {
	if len(items) == 0 {
		return nil
	}
	added, err := t.send(ctx, delay, items)
	if errors.Is(err, ErrQueueNotFound) { // its store was lost
		if _, err := t.configure(ctx); err != nil {
			return err
		}
		added, err = t.send(ctx, delay, items)
	}
	if err != nil {
		return err
	}
	if added.Generation != t.known() {
		t.Notice(added.Generation)
	}
	return nil
}

// sendTimeout is how long an add may take before the log hands its record to
// another replica.
const sendTimeout = 10 * time.Second

// send adds over the Produce stream while there is one to be had.
func (t *Trigger) send(ctx context.Context, delay time.Duration, items []AddItem) (Added, error) {
	if t.produces.Load() {
		ctx, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		op := Op{Kind: OpAdd}
		if delay > 0 {
			op = Op{Kind: OpAddAfter, Delay: delay}
		}
		added, err := t.producer.add(ctx, op, items)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != codes.Unimplemented {
			return added, err
		}
	}
	if delay > 0 {
		return t.q.AddAfter(ctx, delay, items...)
	}
	return t.q.Add(ctx, items...)
}

// Sweep adds every key of the primary collection, and every key that objects of
// the others point at: an owner may be gone and still be needed to let go of
// what it owned. Rounds do not overlap; one that waited for another still runs.
func (t *Trigger) Sweep(ctx context.Context, why string) error {
	t.sweep.Lock()
	defer t.sweep.Unlock()
	keys, err := t.sweepAll(ctx)
	if t.cfg.OnSwept != nil {
		t.cfg.OnSwept(why, keys, err)
	}
	if err != nil {
		return fmt.Errorf("client: trigger %s: add every key (%s): %w", t.cfg.Name, why, err)
	}
	t.cfg.Log.Info("added every key", slog.String("queue", t.q.Name()), slog.String("reason", why), slog.Int("count", keys))
	return nil
}

func (t *Trigger) sweepAll(ctx context.Context) (int, error) {
	seen := map[string]bool{}
	for _, col := range t.cfg.Collections() {
		name := col.String()
		mapper, view := t.cfg.Others[col], ViewMetadata
		if col == t.cfg.Primary {
			mapper, view = Self(), ViewKeys
		}
		err := t.index.pages(ctx, name, ListOptions{ReadOptions: ReadOptions{View: view, AtLeast: t.heard(name)}}, func(objs []Object, at Bounds) error {
			var items []AddItem
			for _, obj := range objs {
				r := &delta.Record{Key: delta.Key(obj.Key)}
				if view == ViewMetadata {
					var err error
					if r, err = recordOf(name, obj); err != nil {
						return err
					}
				}
				keys, _ := mapper(r)
				for _, key := range keys {
					if !seen[key] {
						seen[key] = true
						items = append(items, AddItem{Key: key, Barrier: Barrier{name: at.Upper}})
					}
				}
			}
			return t.add(ctx, 0, items)
		})
		if err != nil {
			return len(seen), err
		}
	}
	return len(seen), nil
}

// Wrap returns a reconciler that makes the periodic round when its key comes up,
// and passes on every other key. A worker of the trigger's queue must have it.
func (t *Trigger) Wrap(rec Reconciler) Reconciler {
	return ReconcilerFunc(func(ctx context.Context, item Item) (Result, error) {
		if item.Key != ResyncKey {
			return rec.Reconcile(ctx, item)
		}
		if t.cfg.Resync <= 0 {
			return Result{}, nil
		}
		if err := t.Sweep(ctx, SweepResync); err != nil {
			return Result{}, err
		}
		return Result{After: t.cfg.Resync + rand.N(t.cfg.Resync/10+1)}, nil //nolint:gosec // jitter needs no secrecy
	})
}
