package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
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
	filter selector
	view   message.Projection
	slow   indexv1.WhenSlow
	every  time.Duration
	least  delta.Revision // that the state must have reached

	group  *group
	cursor cursor
	at     delta.Position // the reader has been told everything up to here that this replica knew
	safe   delta.Position // the same of the log; zero when that is nowhere
	resume place          // what the reader came with
	bounds bounds         // last that were told
	told   uint64         // number of the last change that was told
	lags   bool           // the reader was told that the collection lags
	waited bool           // in line, for its initial state
	spoke  bool           // the reader was told something before its state
	forget func()         // gives back the memory of what the reader knew
}

// Watch streams the initial state, a marker, and what happens after it.
func (s *Watches) Watch(req *indexv1.WatchRequest, stream grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	w, err := s.newWatcher(req, stream)
	if err != nil {
		return err
	}
	ctx := stream.Context()
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
	return w.run(ctx, req)
}

func (s *Watches) newWatcher(req *indexv1.WatchRequest, stream grpc.ServerStream) (*watcher, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	w := &watcher{s: s, c: c, hub: hubOf(c), stream: stream, slow: req.GetWhenSlow(), every: bookmarkEvery}
	if w.filter, err = watchFilter(c, req); err != nil {
		return nil, err
	}
	if w.view, err = message.Project(req.GetView(), req.GetFieldMask()); err != nil {
		return nil, err
	}
	if w.least, err = consistency.ParseRevision("consistency.at_least", req.GetConsistency().GetAtLeast()); err != nil {
		return nil, err
	}
	switch {
	case req.GetConsistency().GetExact():
		return nil, rpc.InvalidArgument("consistency.exact", "is of reads: a watch tells whether its state is exact by upper and revision of its end and of bookmarks")
	case req.GetResume() != nil && req.GetSkipInitialState():
		return nil, rpc.InvalidArgument("skip_initial_state", "excludes resume")
	case len(req.GetKnown()) > 0 && req.GetSkipInitialState():
		return nil, rpc.InvalidArgument("skip_initial_state", "excludes known")
	case len(req.GetKnown()) == 0 && req.GetKnownEpoch() != 0:
		return nil, rpc.InvalidArgument("known_epoch", "is that of known, which is empty")
	case len(req.GetKnown()) > maxKnown:
		return nil, rpc.InvalidArgument("known", fmt.Sprintf("has %d keys, at most %d", len(req.GetKnown()), maxKnown))
	}
	if _, ok := indexv1.WhenSlow_name[int32(w.slow)]; !ok {
		return nil, rpc.InvalidArgument("when_slow", fmt.Sprintf("%d is not known", w.slow))
	}
	if d := req.GetBookmarkInterval(); d != nil {
		if err := d.CheckValid(); err != nil {
			return nil, rpc.InvalidField("bookmark_interval", err)
		}
		if d.AsDuration() < 0 {
			return nil, rpc.InvalidArgument("bookmark_interval", fmt.Sprintf("%v is negative", d.AsDuration()))
		}
		if d.AsDuration() > 0 {
			w.every = max(d.AsDuration(), bookmarkLeast)
		}
	}
	return w, nil
}

func watchFilter(c *follow.Collection, req *indexv1.WatchRequest) (selector, error) {
	ch := filter.Choice{Strict: req.GetStrict()}
	if err := ch.Scope(req.GetNamespace(), req.GetNamespaces()); err != nil {
		return selector{}, err
	}
	if err := ch.Selectors(req.GetLabelSelector(), req.GetFieldSelector()); err != nil {
		return selector{}, err
	}
	field, values := "index_values", req.GetIndexValues()
	if v := req.GetIndexValue(); v != "" {
		if len(values) > 0 {
			return selector{}, rpc.InvalidArgument("index_values", "excludes index_value")
		}
		values = []string{v}
	}
	switch {
	case req.GetIndex() == "" && len(values) > 0:
		return selector{}, rpc.InvalidArgument("index", "is required with index_value and index_values")
	case req.GetIndex() != "" && len(values) == 0:
		return selector{}, rpc.InvalidArgument("index_value", "is required with index, or index_values is")
	case req.GetIndex() != "":
		if err := ch.Under(req.GetIndex(), field, values); err != nil {
			return selector{}, err
		}
	}
	f, err := filter.New(c, ch)
	return selector{Filter: f}, err
}

// groupKey names the group of the watches that ask for the same, and their view.
func groupKey(f *selector, req *indexv1.WatchRequest) (key, view string) {
	view = max(req.GetView(), indexv1.View_VIEW_FULL).String()
	if mask := req.GetFieldMask(); mask != nil {
		view = "mask " + strings.Join(mask.GetPaths(), ",")
	}
	return fmt.Sprintf("%q %q %q %q %q %q %t", f.Namespaces, req.GetLabelSelector(), req.GetFieldSelector(), f.Index, f.Values, view, f.Strict), view
}

// chunkSize bounds one message of a watch.
type chunkSize struct{ events, bytes int }

func (w *watcher) run(ctx context.Context, req *indexv1.WatchRequest) error {
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
	if err != nil {
		return err
	}
	w.resume = place{}
	req.Known = nil // what a reader had is worth nothing once it was told more
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
	if w.at, w.bounds = st.at, st.bounds; moved {
		// The reader took so long that parts came from later snapshots: what changed since the first is part of the state.
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
	o.Unindexed(w.filter.Unindexed(w.c, w.hub.current()))
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
			return moved, w.c.IndexError(err)
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
		if err := w.stream.SendMsg(forgotten(snap, part)); err != nil {
			return moved, err
		}
	}
	return moved, nil
}

// part sends a part of the state. One that is not kept for others is counted
// until the reader has taken it.
func (w *watcher) part(ctx context.Context, ch *chunk) error {
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
	own := make(chan struct{}, 1)
	poke := func() {
		select {
		case own <- struct{}{}:
		default:
		}
	}
	defer context.AfterFunc(ctx, poke)()
	due := time.Now().Add(w.every)
	tick := time.AfterFunc(min(w.every, bookmarkEvery), poke)
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
		case errors.Is(err, errBehind):
			err = w.behind(ctx)
		case err != nil:
			return err
		case len(blocks) > 0:
			err = w.deliver(blocks)
		default:
			select {
			case <-wake:
			case <-own:
				now := time.Now()
				if !now.Before(due) {
					due = now.Add(w.every)
					err = w.bookmark()
				}
				tick.Reset(min(due.Sub(now), bookmarkEvery))
			}
		}
		if err != nil {
			return err
		}
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
	w.safe, w.spoke = b.at.at, true
	return w.stream.SendMsg(b.Frame)
}

// bookmark says that nothing more happened up to now, if the reader was told
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
	o.Unindexed(w.filter.Unindexed(w.c, w.hub.current()))
	return w.stream.SendMsg(o.Frame())
}
