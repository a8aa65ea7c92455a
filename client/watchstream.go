package client

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// watch is one watch over any number of streams.
//
//	position ──────────────────────────────> live
//	    └─ Gap ── reopen with Known ─┬─> differences ─> live
//	nothing, or a state broke off ───┴─> whole state ─> live
type watch struct {
	c          indexv1.IndexServiceClient
	collection string
	o          WatchOptions
	yield      func(Event, error) bool

	at     Position
	began  bool      // something was yielded, be it that nothing happened
	lost   string    // why the position is worth nothing, until the reader gets the gap
	kept   Known     // what the reader had when the position was lost
	seen   Revision  // no event above it was yielded
	heard  time.Time // when the server last said anything
	plain  bool      // the server had no room for what the reader has: it is not sent again before a state is complete
	enough bool      // the reader wants no more
	lags   bool      // the server said that the collection lags there
	again  bool      // open another stream at once
}

// open is one stream of a watch.
type open struct {
	known bool // the request named what the reader has
	place bool // the request had a position
	ended bool // the end of a state was received
	first bool // nothing was received yet
}

const (
	// maxKnownKeys is what a server takes, and maxKnownBytes what surely fits into
	// its largest message.
	maxKnownKeys  = 200_000
	maxKnownBytes = 12 << 20
)

// stream reads one stream to its end.
func (w *watch) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer w.lagging(nil)
	req := w.request()
	s := open{known: req.GetKnown() != nil, place: req.GetResume() != nil, first: true}
	// The library would try again by itself, sooner than a server asks for. It does
	// not once there is more to repeat than it may keep.
	c, err := w.c.Watch(ctx, req, grpc.MaxRetryRPCBufferSize(0))
	if err != nil {
		return err
	}
	for {
		resp, err := c.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		w.heard = time.Now()
		w.tell(&s, resp)
		if w.enough || w.again {
			return nil
		}
	}
}

func (w *watch) request() *indexv1.WatchRequest {
	req := &indexv1.WatchRequest{
		Collection: w.collection, Namespace: w.o.Namespace, Namespaces: w.o.Namespaces, LabelSelector: w.o.Labels, FieldSelector: w.o.FieldSelector,
		Index: w.o.Index, IndexValue: w.o.Value, IndexValues: w.o.Values, View: indexv1.View(w.o.View), BookmarkInterval: duration(w.o.BookmarkEvery), WhenSlow: indexv1.WhenSlow(w.o.WhenSlow), Previous: w.o.Previous, VisibleOnly: w.o.VisibleOnly,
	}
	if len(w.o.Fields) > 0 {
		req.FieldMask = &fieldmaskpb.FieldMask{Paths: w.o.Fields}
	}
	least := w.o.AtLeast
	if w.at != (Position{}) {
		req.Resume = w.at.proto()
	} else {
		req.SkipInitialState = w.o.Live && !w.began
		if !w.seen.IsZero() {
			least = w.seen // another replica may be behind the last one
		}
	}
	req.Consistency = ReadOptions{AtLeast: least}.consistency()
	switch {
	case w.lost != "" && !w.plain:
		req.Known, req.KnownEpoch = w.kept.Versions, w.kept.Epoch
	case w.o.Known != nil && !w.plain && req.GetResume() == nil && !req.GetSkipInitialState():
		if k := w.o.Known(); sendable(k) {
			req.Known, req.KnownEpoch = k.Versions, k.Epoch
		}
	}
	return req
}

// sendable reports whether a request can carry what is known.
func sendable(k Known) bool {
	if len(k.Versions) == 0 || len(k.Versions) > maxKnownKeys {
		return false
	}
	const framing = 8
	n := 0
	for key, rv := range k.Versions {
		n += len(key) + len(rv) + framing
	}
	return n <= maxKnownBytes
}

func (w *watch) say(e Event) bool {
	w.enough = !w.yield(e, nil)
	return !w.enough
}

// tell tells what a message says.
func (w *watch) tell(s *open, resp *indexv1.WatchResponse) {
	end, at := fromPosition(resp.GetPosition()), Bounds{fromRevision(resp.GetRevision()), fromRevision(resp.GetUpper())}
	if gap, ok := resp.GetKind().(*indexv1.WatchResponse_Gap); ok {
		w.gap(s, gap.Gap.GetReason())
		return
	}
	if l := resp.GetLagging(); l != nil {
		w.lagging(l)
		return
	}
	if s.first && !w.restate(s) {
		return
	}
	s.first, w.began, w.lost, w.kept = false, true, "", Known{}
	for _, told := range [...]Revision{at.Revision, at.Upper} { // by servers that state no upper bound, the former
		if told.Compare(w.seen) > 0 {
			w.seen = told
		}
	}
	switch k := resp.GetKind().(type) {
	case *indexv1.WatchResponse_Events:
		if !w.events(k.Events, end, at) {
			return
		}
	case *indexv1.WatchResponse_InitialStateEnd:
		s.ended, w.plain = true, false
		if !w.say(Event{Type: EventInitialEnd, Position: end, Revision: at.Revision, Upper: at.Upper}) {
			return
		}
	case *indexv1.WatchResponse_Bookmark:
		if !w.say(Event{Type: EventBookmark, Position: end, Revision: at.Revision, Upper: at.Upper}) {
			return
		}
	default: // a kind newer than this client
	}
	if end != (Position{}) {
		w.at = end
	}
}

// lagging tells that the collection lags on the server, or does so no more.
func (w *watch) lagging(l *indexv1.Lagging) {
	lags, since := l.GetFrozenSince() != nil, time.Time{}
	if lags == w.lags {
		return
	}
	if w.lags = lags; lags {
		since = l.GetFrozenSince().AsTime()
		w.o.Log.Warn("the index says that the collection lags: changes come late", slog.String("collection", w.collection), slog.Time("since", since))
	}
	if w.o.OnLagging != nil {
		w.o.OnLagging(since)
	}
}

// gap tells that history is lost, unless it can be asked again what of the
// reader's knowledge still holds.
func (w *watch) gap(s *open, reason string) {
	if w.o.Known != nil && !w.plain && (!s.known || !s.first) && w.at != (Position{}) {
		// A reader that knows nothing, or too much to send, gets the whole state: this stream sends it.
		if k := w.o.Known(); sendable(k) {
			w.lost, w.kept, w.again = reason, k, true
			return
		}
	}
	// A gap within a state begins another, which is whole: the server keeps nothing of what was known.
	diff := s.known && s.place && s.first
	w.at, w.began, w.lost, w.kept, s.first = Position{}, true, "", Known{}, false
	w.say(Event{Type: EventGap, Reason: reason, Differences: diff})
}

// restate tells, at the first message of a stream that begins with a state, what
// becomes of an earlier one.
func (w *watch) restate(s *open) bool {
	switch {
	case w.at != (Position{}): // resumed, be it that another replica has the history that one had lost
		return true
	case s.known && !w.began:
		return w.say(Event{Type: EventGap, Reason: "the reader has an earlier state", Differences: true})
	case w.began: // an initial state that broke off begins again: what arrived of it is stale
		return w.say(Event{Type: EventGap, Reason: "initial state broke off", Differences: s.known})
	default:
		return true
	}
}

func (w *watch) events(batch *indexv1.Events, end Position, at Bounds) bool {
	all := batch.GetEvents()
	for i, e := range all {
		event := Event{
			Type: eventType(e), Object: fromObject(e.GetObject()), Position: fromPosition(e.GetPosition()),
			DeleteReason: deleteReason(e.GetDeleteReason()), Coalesced: batch.GetCoalesced(), Upper: at.Upper,
			FinalStateUnknown: finalUnknown(e), Trace: e.GetTraceparent(),
		}
		event.Object.Quarantined = e.GetQuarantined()
		if e.GetPrevious() != nil {
			previous := fromObject(e.GetPrevious())
			event.Previous = &previous
		}
		event.Position.Selection, event.Position.Scope = end.Selection, end.Scope
		if i == len(all)-1 {
			event.Position, event.Revision = end, at.Revision
		} else if e.GetPosition() == nil {
			event.Position = w.within(end)
		} else if all[i+1].GetPosition().GetSequence() == event.Position.Sequence && event.Position.Sequence > 0 {
			event.Position.Sequence-- // of one record: resuming between them repeats and loses none
		}
		if !w.say(event) {
			return false
		}
	}
	return true
}

// finalUnknown also knows the deletions of servers that never tell the object.
func finalUnknown(e *indexv1.Event) bool {
	reason := e.GetDeleteReason()
	return e.GetType() == deltav1.DeltaType_DELTA_TYPE_DELETED &&
		reason != deltav1.DeleteReason_DELETE_REASON_FILTERED && reason != deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE &&
		(e.GetFinalStateUnknown() || len(e.GetObject().GetPayload()) == 0)
}

// within is the position of an event that has none of its own, in a message that
// ends at one.
func (w *watch) within(end Position) Position {
	if end == (Position{}) {
		return Position{}
	}
	p := w.at
	p.ToldEpoch, p.ToldSequence, p.ToldTerm, p.Selection, p.Scope = end.ToldEpoch, end.ToldSequence, end.ToldTerm, end.Selection, end.Scope
	if p.ToldEpoch == 0 && p.ToldSequence == 0 && p.ToldTerm == 0 {
		p.ToldEpoch, p.ToldSequence, p.ToldTerm = end.Epoch, end.Sequence, end.Term
	}
	return p
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

func deleteReason(r deltav1.DeleteReason) DeleteReason {
	switch r {
	case deltav1.DeleteReason_DELETE_REASON_OBSERVED:
		return DeleteObserved
	case deltav1.DeleteReason_DELETE_REASON_INFERRED:
		return DeleteInferred
	case deltav1.DeleteReason_DELETE_REASON_FILTERED:
		return DeleteFiltered
	case deltav1.DeleteReason_DELETE_REASON_NOT_VISIBLE:
		return DeleteNotVisible
	default:
		return ""
	}
}

func fromPosition(p *deltav1.Position) Position {
	return Position{
		Epoch: p.GetEpoch(), Sequence: p.GetSequence(), Term: p.GetTerm(), Selection: p.GetSelection(), Scope: p.GetScope(),
		ToldEpoch: p.GetToldEpoch(), ToldSequence: p.GetToldSequence(), ToldTerm: p.GetToldTerm(),
	}
}

func (p Position) proto() *deltav1.Position {
	return &deltav1.Position{
		Epoch: p.Epoch, Sequence: p.Sequence, Term: p.Term, Selection: p.Selection, Scope: p.Scope,
		ToldEpoch: p.ToldEpoch, ToldSequence: p.ToldSequence, ToldTerm: p.ToldTerm,
	}
}
