package client

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Position is where to resume a watch, as a server named it. The zero value is
// nowhere.
type Position struct { //nolint:recvcheck // UnmarshalText changes it
	// Epoch, Sequence and Term are the place in the collection's log up to which the
	// reader has received everything. They are zero where that is nowhere, and the watch
	// can only begin again.
	Epoch, Sequence, Term uint64
	// ToldEpoch, ToldSequence and ToldTerm, when set, are how far the reader may have been
	// told more than that, not in the log's order. A watch that resumes tells it again.
	ToldEpoch, ToldSequence, ToldTerm uint64
	// Selection is the definition of a declared index that the watch goes by.
	Selection uint64
	// Scope is a print of what was visible to the caller, of a watch with VisibleOnly.
	Scope uint64
}

// ObjectEpoch is the epoch of the resource version of an object that arrived with p; 0
// when that may be one of several.
func (p Position) ObjectEpoch() uint64 {
	if p.ToldEpoch != 0 && p.ToldEpoch != p.Epoch {
		return 0
	}
	return p.Epoch
}

// DeleteReason is how a deletion became known.
type DeleteReason = delta.DeleteReason

// The delete reasons.
const (
	// DeleteObserved: the API server said so.
	DeleteObserved = delta.Observed
	// DeleteInferred: a complete state did not hold the key any more.
	DeleteInferred = delta.Inferred
	// DeleteFiltered: the object exists, and left what is watched.
	DeleteFiltered = delta.FilteredOut
	// DeleteNotVisible: the caller may not see the object any more. Whether it exists is not said.
	DeleteNotVisible DeleteReason = "not_visible"
)

// WhenSlow is what a reader gets that falls behind by more than the server keeps.
type WhenSlow int32

// The choices of a slow reader. The zero value is SlowCoalesce.
const (
	// SlowCoalesce: the latest state of each key, in events marked Coalesced.
	SlowCoalesce = WhenSlow(indexv1.WhenSlow_WHEN_SLOW_COALESCE)
	// SlowBootstrap: EventGap, and the whole state again.
	SlowBootstrap = WhenSlow(indexv1.WhenSlow_WHEN_SLOW_BOOTSTRAP)
	// SlowDisconnect: the stream ends, and is resumed after a while.
	SlowDisconnect = WhenSlow(indexv1.WhenSlow_WHEN_SLOW_DISCONNECT)
)

// EventType says what a watch event is.
type EventType uint8

// The event types.
const (
	// EventAdded: the object exists; every object of the initial state is one.
	EventAdded EventType = iota + 1
	// EventUpdated: the object changed.
	EventUpdated
	// EventDeleted: the object is gone, or left the watch's selection. It has the object as it
	// was deleted, unless FinalStateUnknown is set or DeleteReason is DeleteFiltered or
	// DeleteNotVisible: then it has no payload.
	EventDeleted
	// EventInitialEnd: the initial state is complete.
	EventInitialEnd
	// EventBookmark: nothing more happened up to the position.
	EventBookmark
	// EventGap: history was lost. An initial state follows; keys known before
	// and not found in it are gone, unless Differences is set.
	EventGap
)

// Event is one thing a watch says.
type Event struct {
	Type   EventType
	Object Object
	// DeleteReason is that of EventDeleted.
	DeleteReason DeleteReason
	// FinalStateUnknown, of EventDeleted: nobody can tell what the object was like in
	// the end.
	FinalStateUnknown bool
	// Coalesced: earlier changes of the key were folded into this one, because the
	// reader was behind. It may delete what the reader never had.
	Coalesced bool
	// Position is where to resume behind this event. It is zero within an
	// initial state, which cannot be resumed.
	Position Position
	// Revision is what has been reached with this event; zero when that is not news.
	// EventInitialEnd and EventBookmark always have one.
	Revision Revision
	// Upper bounds what was sent up to this event: nothing above it. Where it is at most
	// Revision, what the reader has is exactly the state there. Zero of servers that do
	// not state it.
	Upper Revision
	// Previous is the object of an EventUpdated, or of an EventDeleted with DeleteFiltered,
	// before the change, where [WatchOptions].Previous asks for it. Nil where the server does
	// not know it: with Coalesced, behind a version that could not be read, and of servers
	// that do not send it.
	Previous *Object
	// Trace is the W3C traceparent of what the change came of, where that trace is recorded; else
	// empty. It is one for [AddItem].Trace. A state and what is Coalesced have none.
	Trace string
	// Reason is that of EventGap.
	Reason string
	// Differences is set with EventGap when the state that follows is the difference
	// from what [WatchOptions].Known named: keys in the same version are left out, and
	// those that are gone arrive as EventDeleted. Should the revision of its
	// EventInitialEnd be of another epoch than Known's, it was whole all the same.
	Differences bool
}

// Known is what a reader has of a collection.
type Known struct {
	// Epoch is that of the versions.
	Epoch uint64
	// Versions are the resource versions by key.
	Versions map[string]string
}

// WatchOptions choose what is watched, and how.
type WatchOptions struct {
	// Namespace, when set, is the only one watched. Namespaces are up to 100, and
	// exclude it.
	Namespace  string
	Namespaces []string
	// Labels and FieldSelector are selectors as kubectl writes them.
	Labels, FieldSelector string
	// Index and Value, when set, select the objects filed there. Values are up to
	// 100, of which any will do, and exclude Value.
	Index, Value string
	Values       []string
	// VisibleOnly watches what the caller may see, where the watch is refused otherwise unless the
	// caller may see all of it. When that changes, what is not visible any more arrives as deleted
	// with DeleteNotVisible, what has become visible as added.
	VisibleOnly bool
	// Resume continues behind a position; zero begins with the initial state.
	Resume Position
	// Live skips the initial state.
	Live bool
	// View is ViewFull, ViewMetadata or ViewKeys. Default ViewFull.
	View View
	// Fields are paths to keep, "metadata.name"; it excludes View.
	Fields []string
	// Previous asks for the object as it was before each change; see [Event].Previous.
	Previous bool
	// AtLeast is the least revision of the initial state.
	AtLeast Revision
	// BookmarkEvery is the time between bookmarks on a quiet watch. Default 10 s.
	BookmarkEvery time.Duration
	// WhenSlow is SlowCoalesce, SlowBootstrap or SlowDisconnect. Default SlowCoalesce.
	WhenSlow WhenSlow
	// Known is asked what the reader has whenever the watch begins with a state: at
	// first, and when its position is lost. Only differences are sent then; see
	// Event.Differences. It is called between events, and what it returns must not be
	// changed afterwards. No versions, or more than a request can carry or the server has
	// memory for, mean that the whole state is wanted, as does nil.
	Known func() Known
	// OnRetry is called whenever the watch has broken and will be opened again. It
	// must be quick, and may be nil.
	OnRetry func(WatchRetry)
	// OnLagging is called when the replica that answers says that the collection lags
	// there, with the time since which its revision stands still: no changes arrive until
	// that is over. It is called with the zero time then, or when the stream ends. It must
	// be quick. Nil is not called.
	OnLagging func(since time.Time)
	// Log receives both, retries once per reason and minute. Default: slog.Default().
	Log *slog.Logger
}

// WatchRetry tells of a watch that broke.
type WatchRetry struct {
	// Err is why; [ErrStreamEnded] when the server gave no reason.
	Err error
	// Attempt counts the streams that broke since one was well, from 1.
	Attempt int
	// Wait is how long until the next is opened.
	Wait time.Duration
	// Silent is how long the server has said nothing.
	Silent time.Duration
}

// ErrStreamEnded says that the server ended a watch without a reason, as one does
// that has its connections spread again.
var ErrStreamEnded = errors.New("client: the server ended the stream")

// Watch yields what happens to a collection until ctx ends, which ends it
// without an error, or the request itself is refused. A stream that breaks is
// opened again, on any replica, from the last position. What cannot be continued
// arrives as EventGap, and the state that follows is never older than what arrived
// before. Events come in log order.
//
// Streams are opened again after a random part of a delay that doubles from 500 ms
// to 5 s, and not before the time a server asks for, so that the clients of an
// index that restarts do not come back all at once.
func (x *Index) Watch(ctx context.Context, collection string, o WatchOptions) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		w := &watch{c: x.c, collection: collection, o: o, yield: yield, at: o.Resume, heard: time.Now()}
		w.o.Log = logger(o.Log)
		w.began = o.Resume != Position{}
		w.run(ctx)
	}
}

func (w *watch) run(ctx context.Context) {
	wait := attempt.Wait{First: spreadOver, Most: spreadTo, High: 1}
	var said warning
	for {
		opened, before := time.Now(), w.heard
		err := w.stream(ctx)
		switch {
		case w.enough || ctx.Err() != nil:
			return
		case w.again:
			w.again = false
			continue
		case err == nil:
			err = ErrStreamEnded
		case !retriable(err):
			w.yield(Event{}, wrap(err, "watch %s", w.collection))
			return
		}
		if rpc.Reason(err) == "REQUEST_MEMORY" { // the whole state needs no memory of the server's
			w.plain = true
		}
		if w.heard != before && time.Since(opened) > wellAfter {
			wait.Reset()
			said.over()
		}
		d := max(wait.Next(), spread(rpc.RetryDelay(err)))
		said.log(w.o.Log, "watch broke", err, slog.String("collection", w.collection), slog.Int("attempt", wait.Attempts()))
		if w.o.OnRetry != nil {
			w.o.OnRetry(WatchRetry{Err: broke(err, w.collection), Attempt: wait.Attempts(), Wait: d, Silent: time.Since(w.heard)})
		}
		if !attempt.Sleep(ctx, d) {
			return
		}
	}
}

func broke(err error, collection string) error {
	if errors.Is(err, ErrStreamEnded) {
		return err
	}
	return wrap(err, "watch %s", collection)
}

const (
	// wellAfter is how long a stream must last for the next wait to be short again.
	wellAfter = 10 * time.Second
	// spreadOver and spreadTo bound the wait of one of very many: anything up to a delay that
	// doubles between them.
	spreadOver, spreadTo = 500 * time.Millisecond, 5 * time.Second
)

// spread is what a server asked for, and up to half more: it may have asked everybody for
// the same.
func spread(asked time.Duration) time.Duration {
	return asked + rand.N(asked/2+1) //nolint:gosec // jitter needs no secrecy
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
