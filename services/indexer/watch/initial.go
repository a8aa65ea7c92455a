package watch

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// initial sends the whole state and its end marker; of what a reader is known to
// have, the differences.
func (w *watcher) initial(ctx context.Context, req *indexv1.WatchRequest) error {
	w.resume = place{}
	done, err := w.admit(ctx)
	if err != nil {
		return err
	}
	defer done()
	st, err := w.hub.begin(w, req != nil)
	if err != nil {
		return err
	}
	known := knownOf(req, st.at.Epoch)
	moved, err := w.objects(ctx, st, known)
	st.leave()
	if err != nil {
		return err
	}
	at := st.place
	if w.at, w.bounds, w.told = st.at, st.bounds, st.told; moved {
		// Parts came from later snapshots: what changed since the first is part of the state.
		at, err = w.catch(ctx)
		if again, ok := errors.AsType[*restart](err); ok {
			done()
			return w.gap(ctx, again.reason, nil)
		}
		if err != nil {
			return err
		}
	}
	o := message.New()
	o.Head(2, 0) // InitialStateEnd
	w.safe, at = at.at, w.filter.by(at)
	o.Trailer(behind(at, w.bounds))
	o.Unindexed(w.unindexed())
	return w.stream.SendMsg(o.Frame()) // with the place still held
}

// objects sends the objects of a state, and the keys that are known and not
// among them. moved tells that some are from later snapshots.
func (w *watcher) objects(ctx context.Context, st *state, known map[string]string) (moved bool, err error) {
	last := ""
	for i := 0; ; i++ {
		ch, err := st.chunk(i, last, known)
		if err == nil && ch == nil {
			moved = true
			now := w.hub.current()
			if err := w.group.failed(); err != nil { // now may have another index by the name
				return moved, err
			}
			ch, err = w.group.chunk(now, last, known)
		}
		if err != nil {
			return moved, w.c.Indexes.IndexError(err)
		}
		end := ch.end
		last = ch.last
		if err := w.part(ctx, ch); err != nil {
			return moved, err
		}
		if end {
			break
		}
		if err := w.over(ctx); err != nil {
			return moved, err
		}
	}
	if len(known) == 0 {
		return moved, nil
	}
	keys := slices.Sorted(maps.Keys(known))
	for part := range slices.Chunk(keys, w.group.most.events) {
		snap := st.kept()
		if snap == nil {
			snap, moved = w.hub.current(), true
		}
		if err := w.current(); err != nil {
			return moved, err
		}
		if err := w.stream.SendMsg(w.filter.forgotten(snap, part)); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// part sends a part of the state. One that is not kept for others is counted
// until the reader has taken it.
func (w *watcher) part(ctx context.Context, ch *chunk) error {
	if err := w.current(); err != nil {
		return err
	}
	switch {
	case ch.frame == nil:
		return nil
	case ch.kept:
		return w.stream.SendMsg(ch.frame)
	}
	free, err := w.s.requests.Hold(rpc.Client(ctx), ch.own, "states are sent")
	if err != nil {
		return err
	}
	defer free()
	return w.stream.SendMsg(ch.frame)
}
