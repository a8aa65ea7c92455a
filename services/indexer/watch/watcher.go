package watch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

const (
	bookmarkEvery = 10 * time.Second
	bookmarkLeast = time.Second
	// chunkEvents and chunkBytes bound one message of a watch.
	chunkEvents = 256
	chunkBytes  = 256 << 10
	// maxKnown is how many keys a reader may say it has.
	maxKnown = 200_000
)

// watcher is one open watch: a cursor into the blocks of its group, and nothing
// that is buffered for it alone. A reader that does not read holds up its own
// goroutine, with one message in hand, for as long as its connection answers
// pings: there is no timeout for sending, since waiting costs nobody anything.
// When it reads on and finds its next block dropped, it is served as slow says.
//
//	resume ──────────────────────> live ──fell behind──> coalesced ──> live
//	   └──gap──> state ──end──> live └──────gap──> state ──end──> live
type watcher struct {
	s      *Watches
	c      *follow.Collection
	hub    *hub
	stream grpc.ServerStream
	grant  grant.Grant
	filter selector
	view   message.Projection
	slow   indexv1.WhenSlow
	prior  bool // changes carry the object as it was before
	every  time.Duration
	least  delta.Revision // that the state must have reached

	req  *indexv1.WatchRequest
	next atomic.Pointer[access.Scope] // what is visible now, of a watch of what is visible
	own  chan struct{}                // wakes this watch

	group  *group
	cursor cursor
	at     delta.Position // the reader has received everything up to here that this replica knew
	safe   delta.Position // the same of the log; zero when that is nowhere
	resume place          // what the reader came with
	bounds bounds         // last that were told
	told   uint64         // number of the last change that was told
	lags   bool           // the reader was notified that the collection lags
	waited bool           // in line, for its initial state
	spoke  bool           // the reader received something before its state
	forget func()         // gives back the memory of what the reader knew
}

// Watch streams the initial state, a marker, and what happens after it.
func (s *Watches) Watch(req *indexv1.WatchRequest, stream grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	w, err := s.newWatcher(req, stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if err := w.permit(ctx, req); err != nil {
		return err
	}
	client := rpc.Client(ctx)
	if l := s.watchers.Take(client, 1); l != nil {
		return s.watchers.Refuse(l, "so many are open")
	}
	defer s.watchers.Give(client, 1)
	free, err := s.requests.Hold(client, watchCost(req), "watches are open")
	if err != nil {
		return err
	}
	defer free()
	if w.forget, err = s.requests.Hold(client, knownSize(req.GetKnown()), "what readers know is compared"); err != nil {
		return err
	}
	defer w.forgetKnown()
	w.hub.watchers.Add(1)
	defer w.hub.watchers.Add(-1)
	return w.grant.Failed(ctx, w.c.Name, w.run(ctx, req))
}

// chunkSize bounds one message of a watch.
type chunkSize struct{ events, bytes int }

func (w *watcher) run(ctx context.Context, req *indexv1.WatchRequest) error {
	w.req = req
	if _, err := w.s.waits.Read(ctx, w.c, req.GetConsistency()); err != nil {
		return err
	}
	resume := req.GetResume()
	if resume != nil {
		w.resume = placeOf(resume)
		w.at, w.safe = w.resume.at, w.resume.at
		if err := w.catchUp(ctx, req.GetConsistency()); err != nil {
			return err
		}
	}
	key, view := groupKey(&w.filter, req)
	snap, err := w.hub.join(w, key, view)
	if err != nil {
		return err
	}
	defer w.hub.leave(w)
	w.told = snap.LastChange()
	var known *indexv1.WatchRequest
	if len(req.GetKnown()) > 0 {
		known = req
	}
	switch {
	case resume != nil:
		err = w.goOn(ctx, snap, known)
	case req.GetSkipInitialState():
		w.at = snap.State().Position
		err = w.note(placeAt(snap), boundsOf(snap))
	default:
		err = w.initial(ctx, known)
	}
	if err = w.settled(ctx, err); err != nil {
		return err
	}
	w.resume = place{}
	req.Known = nil // what a reader had is worth nothing once it received more
	w.forgetKnown()
	return w.live(ctx)
}

// forgetKnown gives back the memory of what the reader knew.
func (w *watcher) forgetKnown() {
	if w.forget != nil {
		w.forget()
		w.forget = nil
	}
}

// over says why a watch has to end; nil while it has not.
func (w *watcher) over(ctx context.Context) error {
	switch {
	case closed(w.s.waits.Stopping):
		return fault.New(fault.ErrStopping, "resume the watch on another replica")
	case closed(w.c.Evicted()):
		return w.c.Refused()
	default:
		return ctx.Err()
	}
}

// closed looks at one channel alone: that takes no lock, and all watches look at
// the same ones after every message.
func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// live sends changes until the reader or the server ends the watch. It waits for
// two channels alone, since it does so after every message: the group's, on which
// the hub also tells that the service or the collection ends, and one for what
// happens to this watch.
func (w *watcher) live(ctx context.Context) error {
	defer context.AfterFunc(ctx, w.wake)()
	due := time.Now().Add(w.every)
	tick := time.AfterFunc(min(w.every, bookmarkEvery), w.wake)
	defer tick.Stop()
	for {
		if err := w.lag(); err != nil {
			return err
		}
		blocks, wake, err := w.group.take(&w.cursor)
		if over := w.over(ctx); over != nil { // behind take: what ends from here on closes the wake that it returned
			return over
		}
		switch {
		case w.current() != nil:
			err = w.rescope(ctx)
		case errors.Is(err, errBehind):
			err = w.behind(ctx)
		case err != nil:
			return err
		case len(blocks) > 0:
			err = w.deliver(blocks)
		default:
			select {
			case <-wake:
			case <-w.own:
				now := time.Now()
				if !now.Before(due) {
					due = now.Add(w.every)
					err = w.bookmark()
				}
				tick.Reset(min(due.Sub(now), bookmarkEvery))
			}
		}
		if err = w.settled(ctx, err); err != nil {
			return err
		}
	}
}

// wake makes the watch look at what happened to it.
func (w *watcher) wake() {
	select {
	case w.own <- struct{}{}:
	default:
	}
}

// deliver sends blocks as one message.
func (w *watcher) deliver(blocks []*block) error {
	last := blocks[len(blocks)-1]
	w.told, w.at, w.safe, w.bounds = last.last, last.at.at, last.at.at, last.bounds
	return w.stream.SendMsg(merge(blocks))
}

// send sends one message that is for this watch alone.
func (w *watcher) send(b *block) error {
	if err := w.current(); err != nil {
		return err
	}
	w.safe, w.spoke = b.at.at, true
	return w.stream.SendMsg(b.Frame)
}

// bookmark says that nothing more happened up to now, if the reader received
// all that did.
func (w *watcher) bookmark() error {
	snap := w.hub.quiet(w)
	if snap == nil {
		return nil
	}
	w.at, w.told = snap.State().Position, snap.LastChange()
	return w.note(placeAt(snap), boundsOf(snap))
}

// note sends a bookmark.
func (w *watcher) note(at place, b bounds) error {
	w.bounds, w.safe = b, at.at
	o := message.New()
	o.Head(3, 0)
	o.Trailer(behind(w.filter.by(at), b))
	o.Unindexed(w.unindexed())
	return w.stream.SendMsg(o.Frame())
}

// unindexed is what the reader may know of the objects that the watch's indexes have no values of.
func (w *watcher) unindexed() []*indexv1.UnindexedObjects {
	list := w.filter.Unindexed(w.c, w.hub.current())
	if len(list) == 0 {
		return nil
	}
	return w.grant.Unindexed(w.stream.Context(), list)
}
