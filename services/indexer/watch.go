package indexer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	bookmarkEvery = 10 * time.Second
	bookmarkLeast = time.Second
	// chunkEvents and chunkBytes bound one message of a watch.
	chunkEvents = 256
	chunkBytes  = 256 << 10
)

// watcher is one open watch: a cursor into the changes that all watchers of
// the collection share, and the message being made. Nothing is buffered for it;
// a reader that is too slow finds its next change gone.
//
//	resume ──known──────────────> live
//	   └────gap──> initial state ──┘
type watcher struct {
	s      *server
	c      *collection
	stream grpc.ServerStream
	filter filter
	view   projection
	every  time.Duration

	next    uint64 // number of the next change to look at
	events  []event
	bytes   int
	claimed delta.Revision // last revision sent
	term    uint64         // of the last snapshot that was sent whole
}

// Watch streams the initial state, a marker, and what happens after it.
func (s *server) Watch(req *indexv1.WatchRequest, stream grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	w, err := s.newWatcher(req, stream)
	if err != nil {
		return err
	}
	if n := s.watchers.Add(1); n > int64(s.cfg.MaxWatchers) {
		s.watchers.Add(-1)
		return newFault(errTooManyWatchers, fmt.Sprintf("%d are open", n-1))
	}
	w.c.watchers.Add(1)
	defer func() { w.c.watchers.Add(-1); s.watchers.Add(-1) }()
	err = w.run(stream.Context(), req)
	if errors.Is(err, errWatcherTooSlow) {
		s.metrics.overruns.Inc()
	}
	return err
}

func (s *server) newWatcher(req *indexv1.WatchRequest, stream grpc.ServerStream) (*watcher, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	w := &watcher{s: s, c: c, stream: stream, every: bookmarkEvery}
	if err := w.filter.scope(req.GetNamespace(), nil); err != nil {
		return nil, err
	}
	if err := w.filter.selectors(req.GetLabelSelector(), ""); err != nil {
		return nil, err
	}
	if w.view, err = project(req.GetView(), nil); err != nil {
		return nil, err
	}
	if w.filter.index = req.GetIndex(); w.filter.index != "" {
		w.filter.values = []string{req.GetIndexValue()}
	}
	switch {
	case w.filter.index == "" && req.GetIndexValue() != "":
		return nil, rpc.InvalidArgument("index", "is required with index_value")
	case w.filter.index != "" && req.GetIndexValue() == "":
		return nil, rpc.InvalidArgument("index_value", "is required with index")
	case req.GetResume() != nil && req.GetSkipInitialState():
		return nil, rpc.InvalidArgument("skip_initial_state", "excludes resume")
	}
	if d := req.GetBookmarkInterval(); d != nil {
		if err := d.CheckValid(); err != nil || d.AsDuration() < 0 {
			return nil, rpc.InvalidArgument("bookmark_interval", fmt.Sprintf("%v is not a positive duration", d))
		}
		if d.AsDuration() > 0 {
			w.every = max(d.AsDuration(), bookmarkLeast)
		}
	}
	return w, nil
}

func (w *watcher) run(ctx context.Context, req *indexv1.WatchRequest) error {
	snap, err := w.s.read(ctx, w.c, req.GetConsistency())
	if err != nil {
		return err
	}
	if w.filter.index != "" {
		if _, err := snap.ByIndex(w.filter.index, w.filter.values...); err != nil {
			return indexError(w.c.name, err)
		}
	}
	w.next, w.term = snap.LastChange()+1, snap.State().Position.Term
	switch {
	case req.GetResume() != nil:
		err = w.resume(ctx, req)
	case req.GetSkipInitialState():
		err = w.bookmark(snap)
	default:
		err = w.initial(snap)
	}
	if err != nil {
		return err
	}
	return w.live(ctx)
}

// initial sends the whole state and its end marker.
func (w *watcher) initial(snap *store.Snapshot) error {
	w.next = snap.LastChange() + 1
	src, err := w.filter.source(snap)
	if err != nil {
		return indexError(w.c.name, err)
	}
	for o := range src.after("") {
		if !w.filter.match(snap, o) {
			continue
		}
		if w.full(o.Size()) {
			if err := w.send(delta.Position{}); err != nil {
				return err
			}
			// While the state is sent, changes pile up behind it; a reader that loses them need not read on.
			if err := w.behind(); err != nil {
				return err
			}
		}
		w.put(event{typ: deltav1.DeltaType_DELTA_TYPE_ADDED, item: w.view.item(o)})
	}
	if err := w.send(delta.Position{}); err != nil {
		return err
	}
	w.claimed = snap.State().Revision
	o := newOut()
	o.head(2, 0) // InitialStateEnd
	return w.end(o, snap.State().Position)
}

// behind reports that changes after the state being sent are lost already.
func (w *watcher) behind() error {
	if w.c.store.Snapshot().LastChange() < w.next {
		return nil
	}
	_, err := w.c.store.Change(w.next)
	return w.overrun(err)
}

func (w *watcher) overrun(err error) error {
	if lost, ok := errors.AsType[*store.OverrunError](err); ok {
		return newFault(errWatcherTooSlow, fmt.Sprintf("%d changes were lost", lost.Missed),
			"missed", strconv.FormatUint(lost.Missed, 10), "collection", w.c.name)
	}
	return err
}

// live sends changes until the reader or the server ends the watch.
func (w *watcher) live(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		snap := w.c.store.Snapshot()
		if err := w.drain(snap); err != nil {
			return err
		}
		select {
		case <-snap.Superseded():
		case <-tick.C:
			if err := w.bookmark(w.c.store.Snapshot()); err != nil {
				return err
			}
		case <-w.s.stopping:
			return newFault(errStopping, "resume the watch on another replica")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drain sends the changes up to a snapshot.
func (w *watcher) drain(snap *store.Snapshot) error {
	end := snap.State().Position
	for ; w.next <= snap.LastChange(); w.next++ {
		c, err := w.c.store.Change(w.next)
		if err != nil {
			return w.overrun(err)
		}
		e, ok := w.event(snap, c)
		if !ok {
			continue
		}
		// A change may be from before an epoch or a term that the snapshot has seen begin. A position must not name a later one
		// than its record had: with an earlier one the worst is a gap that was none.
		e.position = delta.Position{Epoch: c.Epoch, Sequence: c.Sequence, Term: w.term}
		if w.full(len(e.item.payload)) {
			// Changes made by one record share its sequence: resuming from one below repeats them and loses none.
			if err := w.send(delta.Position{Epoch: c.Epoch, Sequence: c.Sequence - 1, Term: w.term}); err != nil {
				return err
			}
		}
		w.put(e)
	}
	w.term = end.Term
	if len(w.events) == 0 {
		return nil
	}
	if snap.State().Synced {
		w.claimed = snap.State().Revision
	}
	return w.send(end)
}

// event is what a change means to this watch; false when nothing.
func (w *watcher) event(snap *store.Snapshot, c *store.Change) (event, bool) {
	had := c.Old != nil && w.filter.match(snap, c.Old)
	has := c.New != nil && w.filter.match(snap, c.New)
	switch {
	case has && had:
		return event{typ: deltav1.DeltaType_DELTA_TYPE_UPDATED, item: w.view.item(c.New)}, true
	case has:
		return event{typ: deltav1.DeltaType_DELTA_TYPE_ADDED, item: w.view.item(c.New)}, true
	case had && c.New != nil:
		return w.deleted(c.Key, c.New.UID(), c.RV, deltav1.DeleteReason_DELETE_REASON_FILTERED), true
	case had:
		return w.deleted(c.Key, c.Old.UID(), c.RV, deleteReasons[c.Reason]), true
	default:
		return event{}, false
	}
}

var deleteReasons = map[store.Reason]deltav1.DeleteReason{
	store.Observed:  deltav1.DeleteReason_DELETE_REASON_OBSERVED,
	store.Inferred:  deltav1.DeleteReason_DELETE_REASON_INFERRED,
	store.Filtered:  deltav1.DeleteReason_DELETE_REASON_FILTERED,
	store.Recreated: deltav1.DeleteReason_DELETE_REASON_OBSERVED,
	store.Swept:     deltav1.DeleteReason_DELETE_REASON_INFERRED,
}

func (w *watcher) deleted(key, uid, rv string, reason deltav1.DeleteReason) event {
	return event{typ: deltav1.DeltaType_DELTA_TYPE_DELETED, item: item{key: key, uid: uid, rv: rv}, reason: reason}
}

// full reports whether an event with a payload of n bytes belongs into the next
// message.
func (w *watcher) full(n int) bool {
	return len(w.events) >= chunkEvents || len(w.events) > 0 && w.bytes+n > chunkBytes
}

func (w *watcher) put(e event) {
	w.events = append(w.events, e)
	w.bytes += e.len()
}

// send sends the events gathered, if any. at is where to resume after them;
// zero within an initial state.
func (w *watcher) send(at delta.Position) error {
	if len(w.events) == 0 {
		return nil
	}
	o := newOut()
	o.events(w.events)
	clear(w.events)
	w.events, w.bytes = w.events[:0], 0
	return w.end(o, at)
}

// bookmark says that nothing more happened up to a snapshot that the reader
// has seen all of.
func (w *watcher) bookmark(snap *store.Snapshot) error {
	if snap.LastChange() >= w.next || !snap.State().Synced {
		return nil
	}
	w.claimed = snap.State().Revision
	o := newOut()
	o.head(3, 0)
	return w.end(o, snap.State().Position)
}

// end closes a message with position and revision and sends it.
func (w *watcher) end(o *out, at delta.Position) error {
	if !at.IsZero() {
		o.position(5, at)
	}
	o.revision(6, w.claimed)
	return w.stream.SendMsg(o.frame())
}
