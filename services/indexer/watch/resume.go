package watch

import (
	"context"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// The reasons of a gap.
const (
	gapEpoch   = "epoch changed"
	gapCutBack = "log was cut back"
	gapHistory = "history no longer kept"
	gapBehind  = "reader fell behind"
	// gapSelection: a declared index was removed, and its name declared again.
	gapSelection = "index was declared again"
	// gapScope: the caller may see other objects than when the position was made.
	gapScope = "what the caller may see has changed"
)

// goOn goes on from w.at, which this replica has applied, up to a snapshot
// that the watch has just been put behind. What is not known any more becomes a
// gap and the state.
func (w *watcher) goOn(ctx context.Context, snap *store.Snapshot, known *indexv1.WatchRequest) error {
	at := snap.State().Position
	if reason := w.lost(at); reason != "" {
		return w.gap(ctx, reason, known)
	}
	if at.Sequence < w.resume.end().Sequence { // it has fallen behind again
		return notReached(w.c, snap, w.resume.end())
	}
	next, ok := w.c.Store().Resume(snap, w.at.Sequence)
	if !ok || w.resume.ahead() || !w.exact(snap) || !w.complete(snap, next) {
		return w.coalesce(ctx, known)
	}
	floor, err := floors(w.c, nil, next, snap)
	if err != nil {
		return w.coalesce(ctx, known)
	}
	rest := place{at: w.at, told: at}
	inOrder := w.at.Term == at.Term && snap.State().StaleTo <= w.at.Sequence
	var items items
	var events []message.Event
	size := 0
	for n := next; n <= snap.LastChange(); n++ {
		c, err := w.c.Store().Change(n)
		if err != nil {
			return w.coalesce(ctx, known)
		}
		e, ok := w.group.event(snap, c, &items)
		if !ok {
			continue
		}
		if most := w.group.most; len(events) >= most.events || len(events) > 0 && size+e.Len() > most.bytes {
			behind := rest
			if inOrder {
				behind = rest.from(floor[n-next] - 1)
			}
			if err := w.send(newBlock(events, w.filter.by(behind), w.bounds.towards(snap))); err != nil {
				return err
			}
			clear(events)
			events, size = events[:0], 0
		}
		events, size = append(events, e), size+e.Len()
	}
	w.at, w.bounds, w.told = snap.State().Position, boundsOf(snap), snap.LastChange()
	if len(events) == 0 { // the reader has to learn that it is not told differences to what it has
		return w.note(placeAt(snap), w.bounds)
	}
	return w.send(newBlock(events, w.filter.by(placeAt(snap)), w.bounds))
}

// exact reports whether the changes behind w.at that are kept are the reader's.
func (w *watcher) exact(snap *store.Snapshot) bool {
	return w.c.Exact(w.at) && w.c.Snapshot().Run() == snap.Run() // else it was of another log that it knew all
}

// complete reports whether the changes from a number on tell of all indexes and
// fields that the filter goes by: those from before one was declared do not.
func (w *watcher) complete(snap *store.Snapshot, next uint64) bool {
	if w.filter.Index == "" && len(w.filter.Fields) == 0 {
		return true
	}
	for n := next; n <= snap.LastChange(); n++ {
		c, err := w.c.Store().Change(n)
		if err != nil || !w.filter.Judges(snap, c.Old) || !w.filter.Judges(snap, c.New) {
			return false
		}
	}
	return true
}

// lost says why a reader at w.at cannot go on to a position; empty when it can.
func (w *watcher) lost(at delta.Position) string {
	switch {
	case w.at.IsZero():
		return gapHistory
	case at.Epoch != w.at.Epoch:
		return gapEpoch
	case w.c.CutBack(w.at), w.resume.ahead() && w.c.CutBack(w.resume.told):
		return gapCutBack
	case !w.resume.isZero() && w.resume.selection != w.filter.selection:
		return gapSelection
	case !w.resume.isZero() && w.resume.scope != w.filter.scope.Print():
		return gapScope
	default:
		return ""
	}
}

// gap says that history is lost, and sends the state: of what the reader is
// known to have, the differences.
func (w *watcher) gap(ctx context.Context, reason string, known *indexv1.WatchRequest) error {
	o := message.New()
	o.Head(4, message.BytesLen(len(reason)))
	o.Text(1, reason)
	if err := w.stream.SendMsg(o.Frame()); err != nil {
		return err
	}
	return w.initial(ctx, known)
}

// behind goes on after changes were dropped that the reader has not been told.
func (w *watcher) behind(ctx context.Context) error {
	switch w.slow {
	case indexv1.WhenSlow_WHEN_SLOW_DISCONNECT:
		w.s.metrics.overran("disconnect")
		missed := w.c.Snapshot().LastChange() - w.told
		return fault.New(fault.ErrWatcherTooSlow, fmt.Sprintf("%d changes were lost", missed), "missed", fmt.Sprint(missed), "collection", w.c.Name)
	case indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP:
		w.s.metrics.overran("bootstrap")
		return w.gap(ctx, gapBehind, nil)
	default:
		w.s.metrics.overran("coalesce")
		return w.coalesce(ctx, nil)
	}
}

// restart is why a state has to be begun again.
type restart struct{ reason string }

func (r *restart) Error() string { return r.reason }

// coalesce sends the latest state of each key that changed behind w.at, and
// moves the watch behind that.
func (w *watcher) coalesce(ctx context.Context, known *indexv1.WatchRequest) error {
	_, err := w.fold(ctx, known, false)
	return err
}

// catch is coalesce within a state: it says nothing of positions, and what is a
// gap elsewhere is a *restart. It returns where to resume behind the state.
func (w *watcher) catch(ctx context.Context) (place, error) { return w.fold(ctx, nil, true) }

func (w *watcher) fold(ctx context.Context, known *indexv1.WatchRequest, within bool) (at place, err error) {
	for {
		s, err := w.hub.missed(ctx, w)
		if err != nil {
			return at, err
		}
		if err := w.group.failed(); err != nil { // the index cannot tell who has left the selection
			return at, err
		}
		reason := w.lost(s.at)
		if reason == "" && (!s.helped || w.at.Sequence < s.from) {
			reason = gapHistory
		}
		switch {
		case reason != "" && within:
			return at, &restart{reason}
		case reason != "" && w.spoke: // what a reader had is worth nothing once it received more
			return at, w.gap(ctx, reason, nil)
		case reason != "":
			return at, w.gap(ctx, reason, known)
		}
		if done, err := w.tell(s, within); done || err != nil {
			return s.place, err
		}
	}
}

// tell sends what a scan has found. A reader that takes too long over it is not
// done when the scan is let go, and needs another from where it is.
func (w *watcher) tell(s *scan, within bool) (done bool, err error) {
	i := -1
	for {
		m := s.missed.Load()
		if m == nil {
			return false, nil
		}
		if i < 0 {
			i = m.behind(w.at.Sequence)
		}
		events, next, at := m.part(w.group, i)
		i, w.at = next, delta.Position{Epoch: s.at.Epoch, Sequence: max(at, w.at.Sequence), Term: s.at.Term}
		if i == len(m.list) {
			w.at, w.told, done = s.at, m.snap.LastChange(), true
		}
		m = nil // a reader that does not read must not keep it
		if len(events) > 0 {
			// Up to the last part the reader has some keys as they were and others as they are: what the log
			// says behind a position would not tell it what else became of the former.
			at, told := place{at: w.safe, told: s.at}, bounds{w.bounds.revision, s.bounds.upper}
			switch {
			case within:
				at, told = place{}, bounds{upper: s.bounds.upper}
			case done:
				at, told = s.place, s.bounds
			}
			b := writeBlock(events, true, w.filter.by(at), told)
			w.s.metrics.coalesced.WithLabelValues(w.c.Label).Add(float64(len(events)))
			clear(events)
			if err := w.send(b); err != nil {
				return false, err
			}
		}
		if done && !within {
			return true, w.note(s.place, s.bounds)
		}
		if done {
			return true, nil
		}
	}
}

// catchUp waits until this replica has applied all that the reader received, so that a reader is
// never sent back in time; and all that replaced records below it before they could be read, so
// that the reader learns what became of its objects.
func (w *watcher) catchUp(ctx context.Context, want *indexv1.Consistency) error {
	wait, err := w.s.waits.Timeout("consistency.timeout", want.GetTimeout())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadline(ctx, consistency.Deadline(ctx, wait))
	defer cancel()
	end := w.resume.end()
	for {
		snap := w.c.Snapshot()
		if err := w.c.Synced(snap); err != nil {
			return err
		}
		at := snap.State().Position
		switch {
		case at.Epoch > end.Epoch, at.Epoch == end.Epoch && w.c.CutBack(end):
			return nil
		case at.Epoch < end.Epoch && at.Term > end.Term: // what began the epoch is not part of the log any more
			return nil
		case at.Epoch == end.Epoch && at.Sequence >= end.Sequence && !snap.State().Frozen:
			return nil
		}
		select {
		case <-snap.Superseded():
		case <-w.s.waits.Stopping:
			return fault.New(fault.ErrStopping, "")
		case <-ctx.Done():
			return notReached(w.c, snap, end)
		}
	}
}

func notReached(c *follow.Collection, snap *store.Snapshot, want delta.Position) error {
	at := snap.State().Position
	return fault.New(fault.ErrRevisionNotReached, fmt.Sprintf("%s is at position %d:%d, not at %d:%d", c.Name, at.Epoch, at.Sequence, want.Epoch, want.Sequence),
		"collection", c.Name).Reached(snap)
}
