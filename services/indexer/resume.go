package indexer

import (
	"context"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// resume goes on from a position; what is not known any more becomes a gap and
// the initial state.
func (w *watcher) resume(ctx context.Context, req *indexv1.WatchRequest) error {
	from := delta.Position{Epoch: req.GetResume().GetEpoch(), Sequence: req.GetResume().GetSequence(), Term: req.GetResume().GetTerm()}
	snap, err := w.catchUp(ctx, from, req.GetConsistency())
	if err != nil {
		return err
	}
	at := snap.State().Position
	reason := ""
	switch {
	case at.Epoch != from.Epoch:
		reason = "epoch changed"
	case w.c.disowned(from):
		reason = "log was cut back"
	default:
		if next, ok := w.c.store.Resume(snap, from.Sequence); ok {
			w.next, w.term = next, from.Term
			return w.drain(snap)
		}
		objects, tombs, ok := snap.Since(from.Sequence)
		if ok {
			w.next = snap.LastChange() + 1
			return w.missed(snap, objects, tombs)
		}
		reason = "history no longer kept"
	}
	o := newOut()
	o.head(4, bytesLen(len(reason)))
	o.string(1, reason)
	if err := w.stream.SendMsg(o.frame()); err != nil {
		return err
	}
	return w.initial(snap)
}

// catchUp waits until this replica has applied the position, so that a reader
// is never sent back in time.
func (w *watcher) catchUp(ctx context.Context, from delta.Position, want *indexv1.Consistency) (*store.Snapshot, error) {
	wait, err := w.s.timeout("consistency.timeout", want.GetTimeout())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithDeadline(ctx, deadline(ctx, wait))
	defer cancel()
	for {
		snap := w.c.store.Snapshot()
		if err := w.c.synced(snap); err != nil {
			return nil, err
		}
		at := snap.State().Position
		if at.Epoch > from.Epoch || at.Epoch == from.Epoch && at.Sequence >= from.Sequence {
			return snap, nil
		}
		select {
		case <-snap.Superseded():
		case <-w.s.stopping:
			return nil, newFault(errStopping, "")
		case <-ctx.Done():
			return nil, newFault(errRevisionNotReached, fmt.Sprintf("%s is at position %d:%d, not at %d:%d",
				w.c.name, at.Epoch, at.Sequence, from.Epoch, from.Sequence), "collection", w.c.name).reached(snap)
		}
	}
}

// missed sends what a reader has missed as the latest state of each key. Whether
// it knew an object that does not match is not known, so it is told to forget it.
func (w *watcher) missed(snap *store.Snapshot, objects []*store.Object, tombs []*store.Tombstone) error {
	epoch := snap.State().Position.Epoch
	for len(objects) > 0 || len(tombs) > 0 {
		var e event
		var at uint64
		if len(tombs) == 0 || len(objects) > 0 && objects[0].Sequence() < tombs[0].Sequence {
			o := objects[0]
			objects, at = objects[1:], o.Sequence()
			if w.filter.match(snap, o) {
				e = event{typ: deltav1.DeltaType_DELTA_TYPE_UPDATED, item: w.view.item(o)}
			} else {
				e = w.deleted(o.Key(), o.UID(), o.RV(), deltav1.DeleteReason_DELETE_REASON_FILTERED)
			}
		} else {
			t := tombs[0]
			tombs, at = tombs[1:], t.Sequence
			e = w.deleted(t.Key, t.UID, t.RV, deleteReasons[t.Reason])
		}
		if w.filter.namespaces != nil && !contains(w.filter.namespaces, store.Namespace(e.item.key)) {
			continue
		}
		e.position = delta.Position{Epoch: epoch, Sequence: at, Term: snap.State().Position.Term}
		if w.full(len(e.item.payload)) {
			// Keys swept together share a sequence: resuming from one below repeats them and loses none.
			if err := w.send(delta.Position{Epoch: epoch, Sequence: at - 1, Term: e.position.Term}); err != nil {
				return err
			}
		}
		w.put(e)
	}
	if err := w.send(delta.Position{}); err != nil {
		return err
	}
	return w.bookmark(snap)
}
