package client

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Position is a place in a collection's log, to resume a watch from.
type Position = delta.Position

// EventType says what a watch event is.
type EventType uint8

// The event types.
const (
	// EventAdded: the object exists; every object of the initial state is one.
	EventAdded EventType = iota + 1
	// EventUpdated: the object changed.
	EventUpdated
	// EventDeleted: the object is gone, or left the watch's selection; it has no payload.
	EventDeleted
	// EventInitialEnd: the initial state is complete.
	EventInitialEnd
	// EventBookmark: nothing more happened up to the position.
	EventBookmark
	// EventGap: history was lost. An initial state follows; keys known before
	// and not found in it are gone.
	EventGap
)

// Event is one thing a watch says.
type Event struct {
	Type   EventType
	Object Object
	// Position is where to resume behind this event. It is zero within an
	// initial state, which cannot be resumed.
	Position Position
	// Revision is what has been reached; set by EventInitialEnd and EventBookmark.
	Revision Revision
	// Reason is that of EventGap.
	Reason string
}

// WatchOptions choose what is watched.
type WatchOptions struct {
	// Namespace, when set, is the only one watched.
	Namespace string
	// Labels is a label selector.
	Labels string
	// Index and Value, when set, select the objects filed there.
	Index, Value string
	// Resume continues behind a position; zero begins with the initial state.
	Resume Position
	// Live skips the initial state.
	Live bool
	// View is ViewFull, ViewMetadata or ViewKeys. Default ViewFull.
	View indexv1.View
	// AtLeast is the least revision of the initial state.
	AtLeast Revision
	// BookmarkEvery is the time between bookmarks on a quiet watch. Default 10 s.
	BookmarkEvery time.Duration
}

// Watch yields what happens to a collection until ctx ends, which ends it
// without an error, or the request itself is refused. A stream that breaks is
// opened again, on any replica, from the last position; what cannot be continued
// is told as EventGap. Events come in log order.
func (x *Index) Watch(ctx context.Context, collection string, o WatchOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := watch{x: x, collection: collection, o: o, at: o.Resume, began: o.Resume != Position{}}
		wait := backOff{}
		for {
			before := w.at
			more, err := w.stream(ctx, yield)
			if !more || ctx.Err() != nil {
				return
			}
			if err != nil && !retriable(err) {
				yield(Event{}, wrap(err, "watch %s", collection))
				return
			}
			if w.at != before {
				wait.reset()
			}
			if !wait.sleep(ctx, rpc.RetryDelay(err)) {
				return
			}
		}
	}
}

type watch struct {
	x          *Index
	collection string
	o          WatchOptions
	at         Position
	began      bool // an initial state has been told, in part or whole
}

// stream reads one stream to its end. more is false when the caller of the
// iterator has had enough.
func (w *watch) stream(ctx context.Context, yield func(Event, error) bool) (more bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req := &indexv1.WatchRequest{
		Collection: w.collection, Namespace: w.o.Namespace, LabelSelector: w.o.Labels, Index: w.o.Index, IndexValue: w.o.Value,
		View: w.o.View, Consistency: ReadOptions{AtLeast: w.o.AtLeast}.consistency(), BookmarkInterval: duration(w.o.BookmarkEvery),
	}
	if w.at != (Position{}) {
		req.Resume = &deltav1.Position{Epoch: w.at.Epoch, Sequence: w.at.Sequence, Term: w.at.Term}
	} else {
		req.SkipInitialState = w.o.Live
	}
	s, err := w.x.c.Watch(ctx, req)
	if err != nil {
		return true, err
	}
	// An initial state that broke off begins anew: what was told of it is stale.
	if w.began && w.at == (Position{}) && !yield(Event{Type: EventGap, Reason: "initial state broke off"}, nil) {
		return false, nil
	}
	for {
		resp, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return true, err
		}
		if !w.tell(resp, yield) {
			return false, nil
		}
	}
}

func (w *watch) tell(resp *indexv1.WatchResponse, yield func(Event, error) bool) bool {
	end, rev := fromPosition(resp.GetPosition()), fromRevision(resp.GetRevision())
	if end != (Position{}) {
		defer func() { w.at = end }()
	}
	switch k := resp.GetKind().(type) {
	case *indexv1.WatchResponse_Events:
		w.began = true
		for _, e := range k.Events.GetEvents() {
			if !yield(Event{Type: eventType(e), Object: fromObject(e.GetObject()), Position: fromPosition(e.GetPosition())}, nil) {
				return false
			}
		}
	case *indexv1.WatchResponse_InitialStateEnd:
		return yield(Event{Type: EventInitialEnd, Position: end, Revision: rev}, nil)
	case *indexv1.WatchResponse_Bookmark:
		return yield(Event{Type: EventBookmark, Position: end, Revision: rev}, nil)
	case *indexv1.WatchResponse_Gap:
		w.at, w.began = Position{}, true
		return yield(Event{Type: EventGap, Reason: k.Gap.GetReason()}, nil)
	}
	return true // a kind newer than this client
}

func eventType(e *indexv1.Event) EventType {
	switch e.GetType() {
	case deltav1.DeltaType_DELTA_TYPE_DELETED:
		return EventDeleted
	case deltav1.DeltaType_DELTA_TYPE_ADDED:
		return EventAdded
	default:
		return EventUpdated
	}
}

func fromPosition(p *deltav1.Position) Position {
	return Position{Epoch: p.GetEpoch(), Sequence: p.GetSequence(), Term: p.GetTerm()}
}

// retriable reports whether the same request may succeed later or elsewhere.
func retriable(err error) bool {
	switch rpc.Code(err) {
	case codes.InvalidArgument, codes.NotFound, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return false
	default:
		return true
	}
}
