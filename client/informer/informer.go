package informer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
)

// Source is what an informer reads. *client.Index is one.
type Source interface {
	Watch(ctx context.Context, collection string, o client.WatchOptions) iter.Seq2[client.Event, error]
}

// What an informer refuses.
var (
	// ErrStarted: an informer runs once.
	ErrStarted = errors.New("informer: started before")
	// ErrStopped: the informer has stopped, permanently.
	ErrStopped = errors.New("informer: stopped")
)

// Scope selects objects of a collection; the zero value is all of them. An object
// that leaves it is deleted, for the reason Filtered.
type Scope struct {
	// Namespaces, when there are any, are the only ones; at most 100.
	Namespaces []string
	// Labels and FieldSelector are selectors as kubectl writes them.
	Labels, FieldSelector string
	// Index and Values, when set, select the objects filed there on the server; at
	// most 100 values, of which any will do.
	Index  string
	Values []string
}

// String is the same for equal scopes; it is empty for all objects.
func (s Scope) String() string {
	var parts []string
	if len(s.Namespaces) > 0 {
		parts = append(parts, "namespaces "+strings.Join(sorted(s.Namespaces), ","))
	}
	if s.Labels != "" {
		parts = append(parts, "labels "+s.Labels)
	}
	if s.FieldSelector != "" {
		parts = append(parts, "fields "+s.FieldSelector)
	}
	if s.Index != "" {
		parts = append(parts, fmt.Sprintf("%s in %q", s.Index, sorted(s.Values)))
	}
	return strings.Join(parts, ", ")
}

func sorted(in []string) []string { return slices.Compact(slices.Sorted(slices.Values(in))) }

// Config says what an informer follows. Collection must be set, and Decode unless T
// is client.Object.
type Config[T any] struct {
	// Collection is its name, "dev/pods.v1" or any short form the server accepts.
	Collection string
	Scope
	// View is client.ViewFull or client.ViewMetadata. Default ViewFull.
	View client.View
	// Fields are paths to keep, "metadata.name"; it excludes View.
	Fields []string
	// Decode makes a T of an object, once per version: [JSON] for the types of
	// Kubernetes. What else is not needed should be left out here, as with client-go's
	// transforms. It must be a pure function. An object that it fails on is reported
	// and kept apart, see [DecodeError]; everything else goes on.
	Decode func(client.Object) (T, error)
	// Indexers are the indexes of the store from the start.
	Indexers map[string]IndexFunc[T]
	// Resync is how often handlers that do not say otherwise receive everything again.
	// Default never.
	Resync time.Duration
	// BookmarkEvery bounds how long [Store.AtLeast] waits for a revision that changed
	// nothing in the scope. Default 10 s, at least 1 s.
	BookmarkEvery time.Duration
	// CrashOnPanic lets a handler's panic end the process, as client-go does by
	// default. Otherwise it is counted and reported, and the handler receives the next
	// notification after a second.
	CrashOnPanic bool
	// OnError receives what goes wrong: *[DisconnectedError], *[DecodeError],
	// *[PanicError]. It must be quick and safe for concurrent use, and may be nil.
	OnError func(error)
	// Log receives the same, a watch that cannot be opened once a minute for as long as
	// that lasts: the informer goes on trying, for the collection may come to be served.
	// Default: slog.Default().
	Log *slog.Logger
}

// JSON decodes the payload of an object, as in
//
//	informer.Config[*corev1.Pod]{Decode: informer.JSON[corev1.Pod]}
func JSON[T any](o client.Object) (*T, error) { return decodeJSON[T](o) }

// Raw is the Decode of an informer of client.Object, and its default.
func Raw(o client.Object) (client.Object, error) { return o, nil }

func (c Config[T]) withDefaults() Config[T] {
	if raw, ok := any(Raw).(func(client.Object) (T, error)); ok && c.Decode == nil {
		c.Decode = raw
	}
	if c.Log == nil {
		c.Log = slog.Default() //nolint:forbidigo // an informer that follows nothing must not do so in silence
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	return c
}

func (c Config[T]) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if c.Collection == "" {
		fault("collection is not set")
	}
	if c.Decode == nil {
		fault("decode is not set")
	}
	if c.View == client.ViewKeys {
		fault("a view of keys has no versions to follow")
	}
	if len(c.Fields) > 0 && c.View != 0 {
		fault("fields exclude a view")
	}
	if (c.Index == "") != (len(c.Values) == 0) {
		fault("index %q needs values, and values an index", c.Index)
	}
	if c.Resync < 0 || c.BookmarkEvery < 0 {
		fault("resync %v and bookmarks every %v must not be negative", c.Resync, c.BookmarkEvery)
	}
	return errors.Join(faults...)
}

// Shared is a shared informer: one watch, one store, any number of handlers. It
// is safe for concurrent use.
type Shared[T any] struct {
	src    Source
	cfg    Config[T]
	name   string
	store  *Store[T]
	synced chan struct{}
	ended  chan struct{}
	parts  sync.WaitGroup // callbacks under way
	follower[T]

	mu        sync.Mutex // guards what follows, and the order of notifications
	listeners map[*Registration]*listener[T]
	started   bool
	stopped   bool
	check     time.Duration // how often it is looked who is due for a resync; 0 never
	status    Status
}

// New returns an informer that is not running yet.
func New[T any](src Source, cfg Config[T]) (*Shared[T], error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("informer config: %w", err)
	}
	i := &Shared[T]{
		src: src, cfg: cfg, name: "informer of " + cfg.Collection, synced: make(chan struct{}), ended: make(chan struct{}),
		listeners: map[*Registration]*listener[T]{}, check: cfg.Resync,
	}
	if scope := cfg.Scope.String(); scope != "" {
		i.name += " (" + scope + ")"
	}
	i.store = newStore[T](i.name)
	if err := i.store.AddIndexers(cfg.Indexers); err != nil {
		return nil, err
	}
	return i, nil
}

// Name says what the informer follows.
func (i *Shared[T]) Name() string { return i.name }

// Store is what the informer has. It can be read, as of the end, after a stop.
func (i *Shared[T]) Store() *Store[T] { return i.store }

// AddIndexers adds indexes to the store, see [Store.AddIndexers].
func (i *Shared[T]) AddIndexers(fns map[string]IndexFunc[T]) error { return i.store.AddIndexers(fns) }

// Done is closed once the store has had one complete state. It says nothing of
// handlers: see [Registration.Done].
func (i *Shared[T]) Done() <-chan struct{} { return i.synced }

// HasSynced reports whether Done is closed.
func (i *Shared[T]) HasSynced() bool { return isClosed(i.synced) }

// Stopped is closed when Run has returned.
func (i *Shared[T]) Stopped() <-chan struct{} { return i.ended }

// Status is how an informer is doing.
type Status struct {
	// Synced: the store has had one complete state.
	Synced bool
	// Connected: the index said something since the last failure. While it is false
	// the store holds what it held.
	Connected bool
	// Err is the last failure, nil while Connected.
	Err error
	// LaggingSince is since when the collection stands still on the replica that is
	// followed, which it tells after 10 s; zero when it does not. The client logs it.
	LaggingSince time.Time
	// HeardAt is when the index last said anything, a bookmark for one.
	HeardAt time.Time
	// Revision is what the store has reached.
	Revision client.Revision
	// Keys is how many there are, and Faulty how many of them cannot be decoded.
	Keys, Faulty int
	// Gaps counts how often history was lost and the whole state was received again.
	Gaps uint64
	// Stale counts events that were older than what the store had, and dropped.
	Stale uint64
	// ResyncCheck is how often it is looked which handlers are due.
	ResyncCheck time.Duration
	// Handlers is how many are registered.
	Handlers int
}

// Status tells how the informer is doing.
func (i *Shared[T]) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := i.status
	s.Synced, s.ResyncCheck, s.Handlers = i.HasSynced(), i.check, len(i.listeners)
	i.store.mu.RLock()
	defer i.store.mu.RUnlock()
	s.Revision, s.Keys, s.Faulty = i.store.revision, len(i.store.entries), i.store.faulty
	return s
}

// Run follows the collection until ctx ends, and returns when every callback has:
// handlers stop strictly after the watch, and are not told what was still
// pending. An informer runs once: a second call fails with [ErrStarted].
func (i *Shared[T]) Run(ctx context.Context) error {
	i.mu.Lock()
	if i.started {
		i.mu.Unlock()
		return fmt.Errorf("%s: %w", i.name, ErrStarted)
	}
	i.started = true
	for _, l := range i.listeners {
		l.start(&i.parts)
	}
	check := i.check
	i.mu.Unlock()

	var loops sync.WaitGroup
	loops.Go(func() { i.resyncs(ctx, check) })
	i.follow(ctx)
	loops.Wait()

	i.mu.Lock()
	i.stopped = true
	i.status.Connected = false
	for r, l := range i.listeners {
		l.end(false)
		delete(i.listeners, r)
	}
	i.mu.Unlock()
	i.parts.Wait()
	i.store.stop()
	close(i.ended)
	return nil
}

// NoResync as [HandlerOptions].Resync: the handler wants none.
const NoResync time.Duration = -1

// HandlerOptions are what one handler asks for.
type HandlerOptions struct {
	// Name tells people who it is. Default: its type.
	Name string
	// Resync is how often the handler receives everything again, as OnUpdate with the
	// same object twice; see the package's description. Default: the informer's;
	// NoResync for never.
	Resync time.Duration
	// Buffer is how many notifications may wait for the handler, beside initial ones,
	// before those of one key are folded into the latest. Default 1,024.
	Buffer int
}

const (
	defaultBuffer = 1024
	// minimumResync is the shortest period.
	minimumResync = time.Second
)

// AddHandler adds a handler, at any time. The handler receives every object that
// there is, as initial, and everything that happens afterwards, with no gap and
// nothing twice. After a stop AddHandler fails with [ErrStopped].
func (i *Shared[T]) AddHandler(h Handler[T], o HandlerOptions) (*Registration, error) {
	if h == nil {
		return nil, fmt.Errorf("%s: no handler", i.name)
	}
	l := newListener(fmt.Sprintf("%s + handler %s", i.name, cmp.Or(o.Name, fmt.Sprintf("%T", h))), h, cmp.Or(max(o.Buffer, 0), defaultBuffer))
	l.report, l.log, l.crash = i.cfg.OnError, i.cfg.Log, i.cfg.CrashOnPanic
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped {
		return nil, fmt.Errorf("%s: %w", i.name, ErrStopped)
	}
	i.schedule(l, o.Resync, time.Now())
	l.push(i.initial()...)
	if i.HasSynced() {
		l.upstreamSynced()
	}
	i.listeners[&l.Registration] = l
	if i.started {
		l.start(&i.parts)
	}
	return &l.Registration, nil
}

// initial is what a handler receives at first. The mutex is held.
func (i *Shared[T]) initial() []note[T] {
	now := time.Now()
	i.store.mu.RLock()
	defer i.store.mu.RUnlock()
	notes := make([]note[T], 0, len(i.store.entries))
	for _, e := range i.store.entries {
		if e.has {
			notes = append(notes, note[T]{kind: added, key: e.key, uid: e.uid, obj: e.obj, initial: true, at: now})
		}
	}
	return notes
}

// Removal says what becomes of notifications that a removed handler was not told.
type Removal uint8

const (
	// Drop forgets them, as RemoveEventHandler of client-go does.
	Drop Removal = iota
	// Drain tells them first.
	Drain
)

// RemoveHandler removes a handler, which receives nothing that happens from now on.
// It does not wait, so a callback may call it too: see [Registration.Wait]. It leaves
// a handler alone that was removed before or belongs to another informer.
func (i *Shared[T]) RemoveHandler(r *Registration, how Removal) {
	i.mu.Lock()
	l := i.listeners[r]
	delete(i.listeners, r)
	i.mu.Unlock()
	if l != nil {
		l.end(how == Drain)
	}
}
