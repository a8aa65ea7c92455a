package informer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// DisconnectedError is a watch that broke, or was refused, and will be tried again.
// The store holds what it held.
type DisconnectedError struct {
	Informer string
	Err      error
	// Attempt counts failures in a row, and Wait is how long until the next attempt.
	Attempt int
	Wait    time.Duration
}

func (e *DisconnectedError) Error() string { return fmt.Sprintf("%s: %v", e.Informer, e.Err) }

// Unwrap returns why.
func (e *DisconnectedError) Unwrap() error { return e.Err }

func decodeJSON[T any](o client.Object) (*T, error) {
	obj := new(T)
	if err := json.Unmarshal(o.Payload, obj); err != nil {
		return nil, err
	}
	return obj, nil
}

var seed = maphash.MakeSeed()

// item is one version of an object, decoded.
type item[T any] struct {
	key, uid, rv string
	epoch, hash  uint64
	obj          T
	err          error
	gone         Reason // not zero: there is none
	final        *T     // of gone: the object as it was deleted; nil when that is not known
}

// stage gathers a state until it is complete.
type stage[T any] struct {
	differences bool // keys that are not named are as they were
	order       []string
	items       map[string]item[T]
}

func (s *stage[T]) put(it item[T]) {
	if _, again := s.items[it.key]; !again {
		s.order = append(s.order, it.key)
	}
	s.items[it.key] = it
}

// follower is what only the goroutine that follows the index uses.
type follower[T any] struct {
	stage    *stage[T] // nil once a state is complete
	position client.Position
	told     uint64 // epoch of what the server was last told to be known

	refusals attempt.Report
}

// refusedOver and refusedTo bound the wait after a request that was refused: the
// collection may come to be served.
const refusedOver, refusedTo = time.Second, 30 * time.Second

func (i *Shared[T]) follow(ctx context.Context) {
	wait := attempt.Wait{First: refusedOver, Most: refusedTo, Low: 0.5, High: 1.5}
	for ctx.Err() == nil {
		err := errors.New("the source ended the watch")
		for e, failed := range i.src.Watch(ctx, i.cfg.Collection, i.watchOptions()) {
			if failed != nil {
				err = failed
				break
			}
			wait.Reset()
			i.take(e)
		}
		if ctx.Err() != nil {
			return
		}
		d := wait.Next()
		i.warn(err, wait.Attempts())
		i.disconnected(&DisconnectedError{Informer: i.name, Err: err, Attempt: wait.Attempts(), Wait: d})
		attempt.Sleep(ctx, d)
	}
}

// warn logs a watch that was refused: at first, when the reason changes and once a
// minute. One that broke is logged by the client.
func (i *Shared[T]) warn(err error, n int) {
	if n == 1 {
		i.refusals = attempt.Report{} // it worked before
	}
	if !i.refusals.Due(err.Error()) {
		return
	}
	i.cfg.Log.Warn("informer cannot follow its collection", slog.String("informer", i.name), slog.String("collection", i.cfg.Collection), slog.Any("error", err))
}

func (i *Shared[T]) watchOptions() client.WatchOptions {
	if i.position == (client.Position{}) {
		i.stage = &stage[T]{items: map[string]item[T]{}}
	}
	o := client.WatchOptions{
		Namespaces: i.cfg.Namespaces, Labels: i.cfg.Labels, FieldSelector: i.cfg.FieldSelector, Index: i.cfg.Index, Values: i.cfg.Values,
		View: i.cfg.View, Fields: i.cfg.Fields, BookmarkEvery: i.cfg.BookmarkEvery, Log: i.cfg.Log,
		Resume: i.position, Known: i.known,
		OnLagging: func(since time.Time) {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.status.LaggingSince = since
		},
		OnRetry: func(r client.WatchRetry) {
			if r.Attempt == 1 && errors.Is(r.Err, client.ErrStreamEnded) {
				return // the server has its connections spread again
			}
			i.disconnected(&DisconnectedError{Informer: i.name, Err: r.Err, Attempt: r.Attempt, Wait: r.Wait})
		},
	}
	if o.Resume == (client.Position{}) {
		o.AtLeast = i.store.Bounds().Upper // a state must not be older than what handlers received
	}
	return o
}

func (i *Shared[T]) known() client.Known {
	if !i.HasSynced() {
		return client.Known{}
	}
	k := i.store.known()
	i.told = k.Epoch
	return k
}

func (i *Shared[T]) disconnected(err *DisconnectedError) {
	i.mu.Lock()
	i.status.Connected, i.status.Err = false, err
	i.mu.Unlock()
	i.cfg.OnError(err)
}

// take takes in an event.
func (i *Shared[T]) take(e client.Event) {
	i.heard(e)
	at := client.Bounds{Revision: e.Revision, Upper: e.Upper}
	switch e.Type {
	case client.EventGap:
		i.cfg.Log.Info("history was lost, a state follows", slog.String("informer", i.name), slog.String("reason", e.Reason), slog.Bool("differences", e.Differences))
		i.stage, i.position = &stage[T]{differences: e.Differences, items: map[string]item[T]{}}, client.Position{}
	case client.EventAdded, client.EventUpdated:
		it := i.decode(e)
		if i.stage != nil {
			i.stage.put(it)
		} else {
			i.apply([]item[T]{it}, at, false)
		}
	case client.EventDeleted:
		it := item[T]{key: e.Object.Key, uid: e.Object.UID, rv: e.Object.ResourceVersion, gone: reasonOf(e.DeleteReason)}
		if it.gone == Observed && !e.FinalStateUnknown && len(e.Object.Payload) > 0 {
			if last := i.decode(e); last.err == nil {
				it.final = &last.obj
			}
		}
		if i.stage != nil {
			i.stage.put(it)
		} else {
			i.apply([]item[T]{it}, at, false)
		}
	case client.EventInitialEnd:
		if i.stage != nil {
			i.replace(i.stage, at)
			i.stage = nil
		}
	case client.EventBookmark:
		if i.stage == nil {
			i.store.advance(at)
		}
	}
	if i.stage == nil && e.Position != (client.Position{}) {
		i.position = e.Position
	}
}

func (i *Shared[T]) heard(e client.Event) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.status.HeardAt, i.status.Connected, i.status.Err = time.Now(), true, nil
	if e.Type == client.EventGap {
		i.status.Gaps++
	}
}

func reasonOf(r client.DeleteReason) Reason {
	switch r {
	case client.DeleteInferred:
		return Inferred
	case client.DeleteFiltered, client.DeleteNotVisible:
		return Filtered
	default:
		return Observed
	}
}

// decode makes an item of an event; a Decode that panics has failed.
func (i *Shared[T]) decode(e client.Event) (it item[T]) {
	o := e.Object
	it = item[T]{key: o.Key, uid: o.UID, rv: o.ResourceVersion, epoch: e.Position.ObjectEpoch(), hash: maphash.Bytes(seed, o.Payload)}
	defer func() {
		if v := recover(); v != nil {
			it.err = fmt.Errorf("decoding panicked: %v", v)
		}
		if it.err != nil {
			var none T
			err := &DecodeError{Key: o.Key, ResourceVersion: o.ResourceVersion, Err: it.err}
			it.obj, it.err = none, err
			i.cfg.Log.Error("object cannot be decoded", slog.String("informer", i.name), slog.String("key", o.Key), slog.Any("error", it.err))
			i.cfg.OnError(err)
		}
	}()
	if o.Quarantined { // there is nothing to decode, whatever Decode makes of that
		it.err = client.ErrKeyQuarantined
		return it
	}
	it.obj, it.err = i.cfg.Decode(o)
	return it
}

// replace makes the store what a complete state says, in one step: handlers see all
// of it during the first callback. Deletions are delivered first.
func (i *Shared[T]) replace(s *stage[T], at client.Bounds) {
	items := make([]item[T], 0, len(s.items))
	// A server that finds the epoch changed tells everything.
	if whole := !s.differences || at.Epoch != i.told; whole {
		i.store.mu.RLock()
		for _, key := range slices.Sorted(maps.Keys(i.store.entries)) {
			if _, named := s.items[key]; !named {
				items = append(items, item[T]{key: key, gone: Inferred})
			}
		}
		i.store.mu.RUnlock()
	}
	for _, key := range s.order {
		if it := s.items[key]; it.gone != 0 {
			items = append(items, it)
		}
	}
	for _, key := range s.order {
		if it := s.items[key]; it.gone == 0 {
			it.epoch = at.Epoch
			items = append(items, it)
		}
	}
	i.apply(items, at, true)
}

// apply changes the store, which has then reached a revision unless that is zero,
// and tells every handler after it. complete says that the items make the store
// complete.
func (i *Shared[T]) apply(items []item[T], at client.Bounds, complete bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := complete && !i.HasSynced()
	notes := i.change(items, at, first)
	for _, l := range i.listeners {
		l.push(notes...)
		if first {
			l.upstreamSynced()
		}
	}
	if first {
		close(i.synced)
	}
}

func (i *Shared[T]) change(items []item[T], at client.Bounds, first bool) []note[T] {
	now := time.Now()
	notes := make([]note[T], 0, len(items))
	s := i.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		old := s.entries[it.key]
		from := len(notes)
		switch {
		case it.gone != 0:
			notes = s.delete(old, it, notes)
		case old.same(it):
			old.epoch, old.hash = it.epoch, it.hash
		case old.newer(it):
			i.status.Stale++
		default:
			notes = s.upsert(old, it, notes)
		}
		for n := range notes[from:] {
			notes[from+n].at, notes[from+n].initial = now, first && notes[from+n].kind == added
		}
	}
	s.synced = s.synced || first
	s.reach(at)
	return notes
}

// same reports whether an item is the version there is: then nothing happened, also
// when a state repeats it. (client-go delivers it again after a relist.)
func (e *entry[T]) same(it item[T]) bool {
	return e != nil && e.uid == it.uid && e.rv == it.rv && e.rv != "" && (e.epoch == it.epoch || e.hash == it.hash)
}

// newer reports whether there is a later version than the item, which is then
// refused. (client-go takes whatever comes last.)
func (e *entry[T]) newer(it item[T]) bool {
	if e == nil || e.uid != it.uid || e.epoch != it.epoch || e.epoch == 0 {
		return false
	}
	have, err := delta.ParseRV(e.rv)
	if err != nil {
		return false
	}
	offered, err := delta.ParseRV(it.rv)
	return err == nil && delta.Compare(have, offered) > 0
}

func (s *Store[T]) delete(old *entry[T], it item[T], notes []note[T]) []note[T] {
	if old == nil {
		return notes // no handler ever saw the key
	}
	s.remove(old)
	if old.err != nil {
		s.faulty--
	}
	if !old.has {
		return notes
	}
	n := note[T]{kind: deleted, key: old.key, uid: old.uid, old: old.obj, rv: it.rv, reason: it.gone}
	if it.uid == old.uid {
		n.final = it.final
	}
	return append(notes, n)
}

// upsert puts a version in place of whatever there is.
func (s *Store[T]) upsert(old *entry[T], it item[T], notes []note[T]) []note[T] {
	e := &entry[T]{key: it.key, uid: it.uid, rv: it.rv, epoch: it.epoch, hash: it.hash, obj: it.obj, has: it.err == nil, err: it.err}
	if old != nil && old.err != nil {
		s.faulty--
	}
	if it.err != nil {
		s.faulty++
	}
	if old != nil && old.has && old.uid != it.uid {
		// One name, two objects. (client-go reports an update.)
		notes = append(notes, note[T]{kind: deleted, key: old.key, uid: old.uid, old: old.obj, rv: it.rv, reason: Recreated})
		old = nil
	}
	switch had := old != nil && old.has; {
	case it.err != nil && had:
		e.obj, e.has = old.obj, true // what handlers know goes on to be that
	case it.err != nil:
	case had:
		notes = append(notes, note[T]{kind: updated, key: it.key, uid: it.uid, old: old.obj, obj: it.obj})
	default:
		notes = append(notes, note[T]{kind: added, key: it.key, uid: it.uid, obj: it.obj})
	}
	s.put(e)
	return notes
}
