package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Source is what a mirror asks of the API server.
type Source interface {
	kube.Lister
	Watch(ctx context.Context, r kube.Resource, o kube.WatchOptions) (*kube.Watch, error)
}

// Mirror is one collection. It is safe for concurrent use.
type Mirror struct {
	// Resource of the collection, and the kind of its lists.
	Resource kube.Resource
	ListKind string

	life       context.Context //nolint:containedctx // of questions that outlive who asked them
	collection string
	index      *client.Index
	source     Source
	log        *slog.Logger

	view   atomic.Pointer[View]
	filled chan struct{} // closed with the first view
	epoch  atomic.Uint64 // of the view
	// current is when the latest view was all that the index had, in nanoseconds.
	current atomic.Int64
	lags    atomic.Bool // the index has said that the collection lags there
	floor   floor
	probes  prober
	ahead   ahead
	// misses of recent lists in a row, and until when they are not tried, in nanoseconds.
	misses, missing atomic.Int64
	restored        atomic.Bool // the API server is behind what it has shown

	mu    sync.Mutex      // guards what follows, and who sets view
	kept  map[uint64]kept // by revision
	proof *proof          // the latest
}

// New is the mirror of a collection; [Mirror.Run] fills it. What it asks the API server in the
// background ends with ctx.
func New(ctx context.Context, collection string, r kube.Resource, listKind string, index *client.Index, source Source, log *slog.Logger) *Mirror {
	m := &Mirror{
		life:     ctx,
		Resource: r, ListKind: listKind, collection: collection, index: index, source: source,
		log: log.With(slog.String(telemetry.KeyCollection, collection)), filled: make(chan struct{}), kept: map[uint64]kept{},
		floor: floor{gone: map[string]time.Time{}, seen: map[string]time.Time{}},
	}
	m.probes.ask, m.probes.life = m.ask, ctx
	return m
}

// Current is when the index last said that the latest view is all that it has. While changes come
// and none of them leads to an exact state, that grows old.
func (m *Mirror) Current() time.Time { return time.Unix(0, m.current.Load()) }

// Lags reports whether the index stands still.
func (m *Mirror) Lags() bool { return m.lags.Load() }

// bookmarkEvery is how often a quiet index says how far it is.
const bookmarkEvery = time.Second

var (
	errLost       = errors.New("history was lost")
	errUnreadable = errors.New("an object cannot be read")
)

// Run follows the index until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	defer m.end()
	wait := attempt.Wait{First: 100 * time.Millisecond, Most: 5 * time.Second, High: 1}
	for ctx.Err() == nil {
		began := time.Now()
		err := m.follow(ctx)
		m.end()
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			wait.Reset()
		}
		m.log.Warn("the mirror begins again", telemetry.Err(err))
		if !attempt.Sleep(ctx, wait.Next()) {
			return
		}
	}
}

// end ends the readers of what cannot be followed any more. The view stays, for lists that were
// begun.
func (m *Mirror) end() {
	if v := m.view.Load(); v != nil {
		select {
		case <-v.history.Ended:
		default:
			close(v.history.Ended)
		}
	}
}

// filling is a state that is made of what the index says.
type filling struct {
	m       *Mirror
	store   *store.Store
	history *History
	ops     []store.Op
	seen    uint64   // changes of the store that were taken
	pending []*Event // that no view has yet
	number  uint64   // of operations
	last    uint64   // the highest version that came
	whole   bool     // the initial state is complete
}

func newStore() *store.Store { return store.New(store.Options{RingBytes: maxBytes}) }

// follow fills a mirror again, and keeps it up to date until history is lost.
func (m *Mirror) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	f := &filling{m: m, store: newStore(), history: newHistory()}
	o := client.WatchOptions{
		BookmarkEvery: bookmarkEvery, WhenSlow: client.SlowBootstrap, Log: m.log,
		OnLagging: func(since time.Time) { m.lags.Store(!since.IsZero()) },
	}
	if v := m.view.Load(); v != nil { // in a later epoch versions may be lower
		o.AtLeast = client.Revision{Epoch: m.epoch.Load(), RV: formatted(v.Upper)}
	}
	for e, err := range m.index.Watch(ctx, m.collection, o) {
		switch {
		case err != nil:
			return err
		case e.Type == client.EventGap && f.number > 0:
			return fmt.Errorf("%w: %s", errLost, e.Reason)
		case f.history.epoch != 0 && e.Revision.Epoch != 0 && e.Revision.Epoch != f.history.epoch:
			return fmt.Errorf("%w: a new epoch has a history of its own", errLost)
		}
		if err := f.take(e); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// maxOps is how many operations are applied at once.
const maxOps = 1024

func (f *filling) take(e client.Event) error {
	switch e.Type {
	case client.EventAdded, client.EventUpdated:
		if e.Object.Quarantined || len(e.Object.Payload) == 0 {
			return fmt.Errorf("%w: %s", errUnreadable, e.Object.Key)
		}
		o, err := f.object(e.Object)
		if err != nil {
			return err
		}
		f.recreated(o)
		f.ops = append(f.ops, store.Op{Put: o})
	case client.EventDeleted:
		op, err := f.deletion(e)
		if err != nil {
			return err
		}
		f.ops = append(f.ops, op)
	case client.EventInitialEnd:
		f.whole = true
	}
	if e.Revision.RV == "" && len(f.ops) < maxOps {
		return nil
	}
	if err := f.apply(); err != nil || e.Revision.RV == "" || !f.whole {
		return err
	}
	revision, ok := number(e.Revision.RV)
	upper, known := number(e.Upper.RV)
	if !ok || !known || upper > revision || f.last > revision {
		return nil // not an exact state
	}
	f.m.enter(e.Revision.Epoch)
	if f.history.epoch == 0 {
		f.history.epoch = e.Revision.Epoch
	}
	f.publish(revision, upper)
	f.m.current.Store(time.Now().UnixNano())
	return nil
}

// enter begins an epoch: what is known by versions of the one before means nothing in it. What was
// written meanwhile is in the version that the API server tells.
func (m *Mirror) enter(epoch uint64) {
	m.mu.Lock()
	was := m.epoch.Swap(epoch)
	if was == 0 || was == epoch {
		m.mu.Unlock()
		return
	}
	clear(m.kept)
	m.proof = nil
	m.restored.Store(false)
	m.floor.forget()
	m.mu.Unlock()
	m.log.Info("a new epoch begins", slog.Uint64("epoch", epoch))
	m.floor.doubts.Add(1)
	go func() { m.resolve(m.Recent(m.life)) }()
}

func (f *filling) object(o client.Object) (*store.Object, error) {
	version, ok := number(o.ResourceVersion)
	if !ok {
		return nil, fmt.Errorf("%w: %s: resource version %q", errUnreadable, o.Key, o.ResourceVersion)
	}
	f.number++
	f.last = max(f.last, version)
	packed, err := packed(o, f.number)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errUnreadable, o.Key, err)
	}
	return packed, nil
}

func (f *filling) deletion(e client.Event) (op store.Op, err error) {
	if !e.FinalStateUnknown && len(e.Object.Payload) > 0 {
		if op.Final, err = f.object(e.Object); err != nil {
			return op, err
		}
	} else if _, ok := number(e.Object.ResourceVersion); !ok {
		return op, fmt.Errorf("%w: %s: resource version %q", errUnreadable, e.Object.Key, e.Object.ResourceVersion)
	}
	f.number++
	op.Delete = &store.Tombstone{
		Key: e.Object.Key, UID: e.Object.UID, RV: e.Object.ResourceVersion, Epoch: 1, Sequence: f.number, Reason: store.Observed, At: time.Now(),
	}
	return op, nil
}

// recreated takes back the deletion of an object in whose place another one came at once: the index
// says of it no more than that, and the store knows what was there.
func (f *filling) recreated(o *store.Object) {
	if len(f.ops) == 0 {
		return
	}
	last := f.ops[len(f.ops)-1]
	if d := last.Delete; d != nil && last.Final == nil && d.Key == o.Key() && d.UID != o.UID() && d.RV == o.RV() {
		f.ops = f.ops[:len(f.ops)-1]
	}
}

// apply takes the operations into the store, and what they changed from it.
func (f *filling) apply() error {
	if len(f.ops) == 0 && f.store.Snapshot().State().Synced == f.whole {
		return nil
	}
	f.store.Apply(store.Batch{Ops: f.ops, State: &store.State{Synced: f.whole}}, time.Now())
	clear(f.ops)
	f.ops = f.ops[:0]
	last := f.store.Snapshot().LastChange()
	if !f.whole || f.m.view.Load() == nil || f.m.view.Load().history != f.history {
		f.seen = last // there is no view that events could follow
		return nil
	}
	for f.seen < last {
		c, err := f.store.Change(f.seen + 1)
		if err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		f.seen++
		f.pending = append(f.pending, eventOf(c))
	}
	return nil
}

func eventOf(c *store.Change) *Event {
	version, _ := number(c.RV) // object and deletion have looked at it
	e := &Event{Version: version, Namespace: store.Namespace(c.Key), Old: c.Old, New: c.New, Final: c.Final}
	if c.Type != store.Deleted {
		return e
	}
	switch {
	case c.Reason == store.Recreated: // the object that came in its place has the version
		e.Version--
	case c.Final == nil:
		e.Unknown = true
	default:
		e.Version = Version(c.Final)
	}
	return e
}

// publish makes a view of what is applied.
func (f *filling) publish(revision, upper uint64) {
	m := f.m
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.view.Load()
	if was != nil && was.history == f.history && len(f.pending) == 0 && was.Revision >= revision {
		return
	}
	v := &View{Snapshot: f.store.Snapshot(), Revision: revision, Upper: upper, history: f.history}
	m.proof.raises(v)
	m.set(v, f.pending)
	f.pending = nil
}

// set makes a view the latest one. m.mu is locked.
func (m *Mirror) set(v *View, events []*Event) {
	v.later = make(chan struct{})
	m.floor.sees(events)
	v.next = v.history.publish(events, v.Upper, v.Revision)
	was := m.view.Swap(v)
	if was == nil {
		close(m.filled)
		return
	}
	close(was.later)
}
