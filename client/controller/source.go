package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

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
	resume, err := parsePosition(from)
	if err != nil {
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
		st := step{position: formatPosition(e.Position), upper: e.Upper}
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
			st.added, st.folded = e.Type == client.EventAdded, e.Coalesced
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

// formatPosition writes a position of a watch.
func formatPosition(p client.Position) position {
	if p == (client.Position{}) {
		return ""
	}
	return numbered("", p.Epoch, p.Sequence, p.Term, p.ToldEpoch, p.ToldSequence, p.ToldTerm, p.Selection)
}

var errPosition = errors.New("controller: malformed position")

func parsePosition(text position) (client.Position, error) {
	if text == "" {
		return client.Position{}, nil
	}
	n, err := text.numbers("", 7)
	if err != nil {
		return client.Position{}, err
	}
	return client.Position{Epoch: n[0], Sequence: n[1], Term: n[2], ToldEpoch: n[3], ToldSequence: n[4], ToldTerm: n[5], Selection: n[6]}, nil
}

// numbered writes a position as numbers joined by dots, behind what says whose they are.
func numbered(prefix string, numbers ...uint64) position {
	text := []byte(prefix)
	for i, n := range numbers {
		if i > 0 {
			text = append(text, '.')
		}
		text = strconv.AppendUint(text, n, 10)
	}
	return position(text)
}

// numbers reads what numbered wrote.
func (p position) numbers(prefix string, count int) ([]uint64, error) {
	rest, ok := strings.CutPrefix(string(p), prefix)
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != count {
		return nil, fmt.Errorf("%w: %q", errPosition, p)
	}
	n := make([]uint64, count)
	for i, part := range parts {
		var err error
		if n[i], err = strconv.ParseUint(part, 10, 64); err != nil {
			return nil, fmt.Errorf("%w: %q: %w", errPosition, p, err)
		}
	}
	return n, nil
}
