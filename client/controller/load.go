package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// load is what was made of changes, and what is reached once that is added.
type load struct {
	keys   map[string]client.Barrier
	causes causes // of keys
	// sweeps are namespaces whose keys are all to be added, "" for every key, and behind what.
	sweeps map[string]client.Barrier
	// moved are places; one without a position is lost.
	moved map[string]feed.Place
	// due: a mapper panicked. done: the round for one that did before is among the sweeps.
	due, done bool
}

func newLoad() load {
	return load{keys: map[string]client.Barrier{}, sweeps: map[string]client.Barrier{}, moved: map[string]feed.Place{}}
}

func (l *load) empty() bool { return len(l.keys)+len(l.sweeps)+len(l.moved) == 0 && !l.due && !l.done }

func behind(m map[string]client.Barrier, name, collection string, at client.Revision) {
	b := m[name]
	if b == nil {
		b = client.Barrier{}
		m[name] = b
	}
	if !at.IsZero() {
		b.Raise(collection, at)
	}
}

// follow follows a collection until ctx ends.
func (t *term) follow(ctx context.Context, w *watched, from position) {
	wait := newWait()
	f := &follower{t: t, w: w}
	for {
		err := f.prepare(ctx, from)
		if err == nil {
			err = t.c.source.follow(ctx, w, from, t.c.saw(w.collection, client.Revision{}), func(s step) {
				wait.Reset()
				if s.position != "" || s.gap != "" {
					from = s.position
				}
				f.take(ctx, s)
			})
		}
		if ctx.Err() != nil {
			return
		}
		f.failed(err)
		if hopeless(err) || errors.Is(err, client.ErrPosition) {
			from = "" // the position itself may be what is refused
		}
		if !wait.Sleep(ctx, 0) {
			return
		}
	}
}

// follower makes keys of what happens to one collection.
type follower struct {
	t      *term
	w      *watched
	owners owners
	epoch  uint64 // of the last step
	// ready: the owners are known as of the position. swept: a gap makes every key due.
	ready, swept bool
	refused      attempt.Report
}

// failed makes known that a watch was refused, in the log once a minute.
func (f *follower) failed(err error) {
	if f.refused.Due(err.Error()) {
		f.t.c.o.Log.Warn("watch was refused", slog.String("collection", f.w.collection), slog.Any("error", err))
	}
	f.t.c.watchFailed(f.w, err)
}

// prepare reads who owns what, where the changes will not tell.
func (f *follower) prepare(ctx context.Context, from position) error {
	if f.w.role != roleOwned || f.w.onLog || from == "" || f.ready {
		return nil
	}
	err := f.owners.load(ctx, f.t.c, f.w, f.t.c.saw(f.w.collection, client.Revision{}))
	f.ready = err == nil
	return err
}

// take makes keys of a step.
func (f *follower) take(ctx context.Context, s step) {
	t, w, began := f.t, f.w, time.Now()
	t.c.health.set(w.part(), nil)
	keys, due, unsure := []string(nil), false, false
	if s.gap != "" {
		t.c.emit(Event{Kind: EventGap, Collection: w.collection, Reason: s.gap})
		keys, f.ready, f.swept = f.owners.forget(), true, w.role != roleFor
	}
	if s.change != nil {
		var err error
		if keys, unsure, err = f.keysOf(s); err != nil {
			t.c.emit(Event{Kind: EventMapperPanicked, Collection: w.collection, Key: s.change.Object.Key, Err: err})
			due = true
		}
	}
	t.c.saw(w.collection, s.upper)
	renewed := s.upper.Epoch != 0 && f.epoch != 0 && s.upper.Epoch != f.epoch && s.gap == ""
	if s.upper.Epoch != 0 {
		f.epoch = s.upper.Epoch
	}
	if renewed { // the watch tells the differences, and nobody knows what else was undone
		t.c.emit(Event{Kind: EventSweep, Collection: w.collection, Reason: sweepEpoch})
	}
	t.put(ctx, func(l *load) {
		for _, key := range keys {
			behind(l.keys, key, w.collection, s.upper)
		}
		f.trace(ctx, &l.causes, s, began, keys)
		switch {
		case unsure && !renewed && !w.ownedBy.clusterScoped:
			behind(l.sweeps, delta.Key(s.change.Object.Key).Namespace(), w.collection, s.upper)
		case unsure, renewed, f.swept && s.whole:
			behind(l.sweeps, "", w.collection, s.upper)
		}
		l.due = l.due || due
		if s.position != "" || s.gap != "" {
			l.moved[w.id] = feed.Place{Position: string(s.position), Epoch: s.upper.Epoch, RV: s.upper.RV}
		}
	})
	f.swept, f.ready = f.swept && !s.whole, f.ready || s.whole
}

// keysOf asks what a change concerns. Unsure says that it may be other keys of the
// object's namespace as well.
func (f *follower) keysOf(s step) (keys []string, unsure bool, err error) {
	w := f.w
	concerns, err := w.concerns(s)
	if err != nil {
		f.t.c.emit(Event{Kind: EventMapperPanicked, Collection: w.collection, Key: s.change.Object.Key, Err: err})
	}
	switch {
	case w.role == roleOwned && s.owned != nil:
		keys, unsure = w.loggedOwners(s.change.Object.Key, s.owned), s.owned.unsure
	case w.role == roleOwned:
		now, err := w.ownerKeys(s.change.Object)
		if err != nil {
			return nil, false, err
		}
		keys, unsure = f.owners.take(s, now)
		if !concerns {
			if was, err := w.ownerKeys(*s.change.Previous); err == nil && slices.Equal(was, now) {
				return nil, false, nil
			}
		}
	case !concerns:
		return nil, false, nil
	case w.role == roleMapped:
		requests, err := w.mapped(*s.change)
		if err != nil {
			return nil, false, err
		}
		for _, r := range requests {
			keys = append(keys, r.Key())
		}
	default:
		keys = []string{s.change.Object.Key}
	}
	return slices.DeleteFunc(keys, func(key string) bool {
		_, err := delta.ParseKey(key)
		if err != nil {
			f.t.c.emit(Event{Kind: EventBadKey, Collection: w.collection, Key: key, Err: err})
		}
		return err != nil
	}), unsure, nil
}

// put changes the load once there is room. It changes nothing when ctx has ended: what
// follows must not be put either then, or its position would stand for what was left out.
func (t *term) put(ctx context.Context, change func(l *load)) {
	t.mu.Lock()
	for ctx.Err() == nil && len(t.load.keys) >= maxPending {
		room := t.room
		t.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
		}
		t.mu.Lock()
	}
	if ctx.Err() == nil {
		change(&t.load)
	}
	t.mu.Unlock()
	t.rewake()
}

func (t *term) rewake() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// sweepForMapper has every key added, since a mapper panicked.
func (t *term) sweepForMapper() {
	t.c.emit(Event{Kind: EventSweep, Reason: sweepMapper})
	t.mu.Lock()
	for _, w := range t.c.watches {
		behind(t.load.sweeps, "", w.collection, t.c.saw(w.collection, client.Revision{}))
	}
	t.load.done = true
	t.mu.Unlock()
	t.rewake()
}

// flush adds what waits. It tries until that is acknowledged, or there is a reason to stop,
// which is an error or one to add every key again.
func (t *term) flush(ctx context.Context) (again string, err error) {
	t.mu.Lock()
	l := t.load
	t.load = newLoad()
	close(t.room)
	t.room = make(chan struct{})
	t.mu.Unlock()
	if l.empty() {
		return "", nil
	}
	added := false
	defer func() { l.causes.end(added) }()
	wait := newWait()
	for {
		if again, err = t.add(ctx, &l); err == nil {
			break
		}
		if ctx.Err() != nil {
			return "", nil //nolint:nilerr // the caller knows why
		}
		t.c.emit(Event{Kind: EventQueueFailed, Reason: "keys cannot be added", Err: err})
		t.c.health.set("adds", err)
		select {
		case <-t.c.stopping:
			return "", fmt.Errorf("controller: keys are left to the next leader: %w", err)
		default:
		}
		attempt.SleepUntil(ctx, wait.Next(), t.c.stopping)
	}
	if added = true; again != "" {
		return again, nil
	}
	if wait.Attempts() > 0 {
		t.c.health.set("adds", nil)
	}
	for id, at := range l.moved {
		t.dirty = t.dirty || t.state.At[id] != at
		if t.state.At[id] = at; at.Position == "" {
			delete(t.state.At, id)
		}
	}
	if due := l.due || t.state.Due && !l.done; due != t.state.Due {
		t.state.Due, t.dirty = due, true
	}
	return "", nil
}

// add adds a load to the queue.
func (t *term) add(ctx context.Context, l *load) (again string, err error) {
	if err := t.find(ctx, l); err != nil {
		return "", err
	}
	items := make([]client.AddItem, 0, len(l.keys))
	for _, key := range slices.Sorted(maps.Keys(l.keys)) {
		items = append(items, client.AddItem{Key: key, Barrier: l.keys[key], Trace: l.causes.of[key]})
	}
	if len(items) == 0 {
		return "", nil
	}
	added, err := t.c.add(ctx, t.c.queue, items)
	switch {
	case err != nil:
		return "", err
	case added.Generation != t.generation:
		return sweepGeneration, nil
	}
	t.c.metrics.keys(len(items))
	return "", nil
}

// find makes keys of sweeps.
func (t *term) find(ctx context.Context, l *load) error {
	w := t.c.watches[0]
	for namespace, barrier := range l.sweeps {
		o := w.list(client.ViewKeys)
		switch {
		case namespace == "":
		case len(o.Namespaces) > 0 && !slices.Contains(o.Namespaces, namespace):
			continue
		default:
			o.Namespace, o.Namespaces = namespace, nil
		}
		o.AtLeast = barrier[w.collection]
		objects, _, err := t.c.index.List(ctx, w.collection, o)
		if err != nil {
			return err
		}
		for _, obj := range objects {
			for collection, at := range barrier {
				behind(l.keys, obj.Key, collection, at)
			}
		}
	}
	clear(l.sweeps)
	return nil
}

// saw notes how far a collection was followed by this replica, and returns it: what this
// replica reads from the start again must not be older.
func (c *Controller) saw(collection string, at client.Revision) client.Revision {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.IsZero() {
		c.seen.Raise(collection, at)
	}
	return c.seen[collection]
}

// mapperDelay is how long a round over every key waits that a mapper's panic made due.
func (c *Controller) mapperDelay() time.Duration {
	if time.Since(c.panicked) > 2*c.panics.Most {
		c.panics.Reset()
	}
	c.panicked = time.Now()
	return c.panics.Next()
}

func (w *watched) mapped(change Change) (requests []Request, err error) {
	defer func() {
		if v := recover(); v != nil {
			requests, err = nil, &PanicError{Collection: w.collection, Key: change.Object.Key, Value: v, Stack: debug.Stack()}
		}
	}()
	return w.mapper(change), nil
}
