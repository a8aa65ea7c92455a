package controller

import (
	"context"
	"errors"

	"github.com/deltaplane/deltaplane/client"
)

// source is where changes come from. Watches of the index are one; the delta log can be
// another.
type source interface {
	// follow passes what happens to a collection behind a position to take, in order, until
	// ctx ends, which is no error, or the source refuses. Without a position, and where the
	// history behind it is gone, that begins with the whole state, which must not be older
	// than least.
	follow(ctx context.Context, w *watched, from position, least client.Revision, take func(step)) error
}

// position is where a source can be followed from, in its own notation. Empty is nowhere.
type position string

// step is one thing that a source says.
type step struct {
	change *Change // nil: only the position moved
	// at is the object's revision; zero when its epoch may be one of several.
	at client.Revision
	// added: the object did not exist, or was not in the selection, before the change.
	added bool
	// owned, where a source knows it, says who owns the object and who did.
	owned *owned
	// folded: earlier changes of the object are folded into this one.
	folded bool
	// trace is the W3C traceparent of what the change came of, where that is recorded.
	trace string
	// upper is what a worker has to see so as to see the change.
	upper client.Revision
	// position is where to go on behind this step; empty within a state.
	position position
	// gap says why the history is lost. A whole state follows.
	gap string
	// whole: the state is complete.
	whole bool
}

// indexSource follows watches of the index, which any of its replicas can continue.
type indexSource struct{ c *Controller }

func (s *indexSource) follow(ctx context.Context, w *watched, from position, least client.Revision, take func(step)) error {
	var resume client.Position
	if err := resume.UnmarshalText([]byte(from)); err != nil {
		return err
	}
	o := client.WatchOptions{
		Namespaces: w.selection.Namespaces, Labels: w.selection.Labels, FieldSelector: w.selection.FieldSelector,
		View: w.view, Fields: w.fields, Previous: w.previous(), Resume: resume, AtLeast: least, Log: s.c.o.Log,
		OnRetry: func(r client.WatchRetry) {
			if r.Attempt > 1 || !errors.Is(r.Err, client.ErrStreamEnded) { // else connections are spread again
				s.c.watchFailed(w, r.Err)
			}
		},
	}
	if resume != (client.Position{}) {
		o.AtLeast = client.Revision{}
	}
	for e, err := range s.c.index.Watch(ctx, w.collection, o) {
		if err != nil {
			return err
		}
		at, err := e.Position.MarshalText()
		if err != nil {
			return err
		}
		st := step{position: position(at), upper: e.Upper}
		if st.upper.IsZero() { // of a server that states no upper bound
			st.upper = e.Revision
		}
		switch e.Type {
		case client.EventGap:
			st.gap = e.Reason
		case client.EventInitialEnd:
			st.whole = true
		case client.EventAdded, client.EventUpdated, client.EventDeleted:
			st.change = &Change{Object: e.Object, Previous: e.Previous, Deleted: e.Type == client.EventDeleted}
			st.added, st.folded, st.trace = e.Type == client.EventAdded, e.Coalesced, e.Trace
			if epoch := e.Position.ObjectEpoch(); epoch != 0 && e.Object.ResourceVersion != "" {
				st.at = client.Revision{Epoch: epoch, RV: e.Object.ResourceVersion}
			}
		}
		take(st)
	}
	return nil
}

func (c *Controller) watchFailed(w *watched, err error) {
	c.health.set(w.part(), err)
	c.emit(Event{Kind: EventWatchFailed, Collection: w.collection, Err: err})
}
