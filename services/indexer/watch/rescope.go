package watch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// errRescoped says that something else is visible now than what the watch was about to send.
var errRescoped = errors.New("what is visible has changed")

// permit lets the caller watch what the request covers, or what is visible of that.
func (w *watcher) permit(ctx context.Context, req *indexv1.WatchRequest) (err error) {
	reach := reachOf(&w.filter, req)
	if !req.GetVisibleOnly() {
		w.grant, err = w.s.gate.Watch(ctx, reach, w.c.ID)
		return err
	}
	w.grant, err = w.s.gate.Follow(ctx, reach, w.c.ID, func(scope access.Scope) {
		w.next.Store(&scope)
		w.wake()
	})
	w.filter = w.filter.see(w.grant.Scope(w.c.ID))
	return err
}

// current returns [errRescoped] where the watch's filter is not of what is visible now.
func (w *watcher) current() error {
	if next := w.next.Load(); next != nil && !next.Equal(w.filter.scope) {
		return errRescoped
	}
	return nil
}

// settled begins a watch again, with a gap, whose scope changed in the middle of something.
func (w *watcher) settled(ctx context.Context, err error) error {
	for errors.Is(err, errRescoped) {
		if _, err = w.regroup(); err == nil {
			err = w.gap(ctx, gapScope, nil)
		}
	}
	return err
}

// regroup joins the group of what is visible now.
func (w *watcher) regroup() (*store.Snapshot, error) {
	if next := w.next.Load(); next != nil {
		w.filter = w.filter.see(*next)
	}
	key, view := groupKey(&w.filter, w.req)
	return w.hub.rejoin(w, key, view)
}

// rescope tells what became invisible as deletions, what became visible as additions, both as of
// what the reader was sent last, and goes on from there. Where the changes since then are not kept,
// it is a gap.
func (w *watcher) rescope(ctx context.Context) error {
	before := w.filter
	snap, err := w.regroup()
	if err != nil {
		return err
	}
	var kept atomic.Pointer[shift] // a reader that does not read must not keep the snapshot
	kept.Store(w.shift(&before, snap))
	defer time.AfterFunc(keepFor, func() { kept.Store(nil) }).Stop()
	for i, last, end := 0, "", false; !end; {
		events, ok := []message.Event(nil), false
		if events, i, last, end, ok = part(&kept, w.group, i, last); !ok {
			return w.gap(ctx, gapScope, nil)
		}
		if len(events) == 0 {
			continue
		}
		// Until it has all, a reader that resumes has the scope of before, and begins again.
		if err := w.send(newBlock(events, before.by(place{at: w.safe, told: w.at}), bounds{w.bounds.revision, w.bounds.upper}.towards(snap))); err != nil {
			return err
		}
	}
	return w.goOn(ctx, snap, nil)
}

// shift is a change of scope, as of what a reader was sent last.
type shift struct {
	snap     *store.Snapshot
	from, to *selector
	old      map[string]*store.Object // of the keys that changed since, as they were; nil for none
	keys     []string                 // of old, sorted
	differ   filter.Filter            // takes what is visible in one of the scopes alone
}

// shift rolls a snapshot back to what the reader was sent last; nil when the changes since then are
// not kept.
func (w *watcher) shift(before *selector, snap *store.Snapshot) *shift {
	if snap.LastChange() < w.told || w.at.IsZero() {
		return nil
	}
	m := &shift{snap: snap, from: before, to: &w.filter, old: map[string]*store.Object{}, differ: w.filter.chosen}
	for n := w.told + 1; n <= snap.LastChange(); n++ {
		c, err := w.c.Store().Change(n)
		if err != nil {
			return nil
		}
		if _, seen := m.old[c.Key]; !seen {
			m.old[c.Key] = c.Old
		}
	}
	m.keys = slices.Sorted(maps.Keys(m.old))
	m.differ.See(before.scope.Differ(w.filter.scope))
	return m
}

// part is that of a shift that is still kept.
func part(kept *atomic.Pointer[shift], g *group, i int, last string) (events []message.Event, next int, behind string, end, ok bool) {
	m := kept.Load()
	if m == nil {
		return nil, i, last, false, false
	}
	events, next, behind, end = m.part(g, i, last)
	return events, next, behind, end, true
}

// part returns the events of one message: of the changed keys from an index on, then of the others
// behind a key.
func (m *shift) part(g *group, i int, last string) (events []message.Event, next int, behind string, end bool) {
	size := 0
	full := func(e *message.Event) bool {
		if len(events) >= g.most.events || len(events) > 0 && size+e.Len() > g.most.bytes {
			return true
		}
		events, size = append(events, *e), size+e.Len()
		return false
	}
	for ; i < len(m.keys); i++ {
		if o := m.old[m.keys[i]]; o != nil {
			if e, ok := m.event(g, o); ok && full(&e) {
				return events, i, last, false
			}
		}
	}
	src, err := m.differ.Source(m.snap)
	if err != nil {
		return events, i, last, true // the index that the watch goes by is gone, which ends it
	}
	for o := range src.After(last) {
		key := o.Key()
		if _, changed := m.old[key]; !changed {
			if e, ok := m.event(g, o); ok && full(&e) {
				return events, i, last, false
			}
		}
		last = key
	}
	return events, i, last, true
}

// event is what the change of scope means for an object.
func (m *shift) event(g *group, o *store.Object) (message.Event, bool) {
	was, is := m.from.Match(m.snap, o), m.to.Match(m.snap, o)
	switch {
	case was && !is:
		return deletion(o.Key(), o.UID(), o.RV(), deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE), true
	case is && !was:
		return message.Event{Type: deltav1.DeltaType_DELTA_TYPE_ADDED, Item: g.view.Item(o)}, true
	}
	return message.Event{}, false
}
