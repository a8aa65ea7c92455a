package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

const (
	// goneTimeout is how long a read waits for a deletion, as long as the index waits by default
	// for a revision.
	goneTimeout = 3 * time.Second
	// goneKept is when a deletion is given up that no index shows.
	goneKept = 10 * time.Minute
)

// gone is an object that a reconcile had deleted. The answer to a deletion has no resource
// version, so the UID alone says whether an index has seen it.
type gone struct {
	Collection string `json:"c"`
	Key        string `json:"k"`
	UID        string `json:"u"`
	At         int64  `json:"t"` // when, in seconds
}

// Deleted says that the API server answered that an object is gone: the answer to its deletion was
// not the object, or the context's reconcile removed its last finalizer. Such answers have no
// resource version of the deletion. The reconcile's later reads of the collection wait until the
// index does not show that UID any more, and so do those of the key's next run, on any replica,
// even if this one dies. A deletion that is only requested, of an object with finalizers or a grace
// period, is a write: pass the version of the answer to [Controller.Wrote]. An error says that this
// cannot be promised: return it from the reconciler.
// For what answers with neither there is [Controller.WroteUnversioned].
func (c *Controller) Deleted(ctx context.Context, collection, key, uid string) error {
	r, ok := ctx.Value(runKey{}).(*run)
	if !ok {
		return fmt.Errorf("controller: deleted %s %s: the context is not that of a reconcile", collection, key)
	}
	if _, err := delta.ParseKey(key); err != nil {
		return fmt.Errorf("controller: deleted %s: %w", collection, err)
	}
	if uid == "" {
		return fmt.Errorf("controller: deleted %s %s: the UID is empty", collection, key)
	}
	full, err := c.names.of(ctx, collection)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.gone = append(r.gone, gone{full, key, uid, time.Now().Unix()})
	r.mu.Unlock()
	err = c.keepGone(ctx, r)
	if errors.Is(err, errTooManyGone) {
		if err = c.unseen(ctx, r, ""); err == nil {
			err = c.keepGone(ctx, r)
		}
	}
	return err
}

var errTooManyGone = errors.New("controller: more deletions than the state of a key has room for")

// keepGone saves with the key what its next run must not see.
func (c *Controller) keepGone(ctx context.Context, r *run) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var state []byte
	if len(r.gone) > 0 {
		var err error
		if state, err = json.Marshal(r.gone); err != nil {
			return err
		}
	}
	if len(state) > workqueue.MaxStateLen {
		return errTooManyGone
	}
	if err := c.queue.SaveState(ctx, r.item.Key, r.item.Token, state); err != nil {
		return fmt.Errorf("controller: keep deletions of %s: %w", r.item.Key, err)
	}
	r.forgot = false
	return nil
}

// unseen waits until the index shows nothing that was deleted in a collection; in all if it is
// empty.
func (c *Controller) unseen(ctx context.Context, r *run, collection string) error {
	r.mu.Lock()
	all := slices.Clone(r.gone)
	r.mu.Unlock()
	for _, g := range all {
		if collection != "" && g.Collection != collection {
			continue
		}
		at, err := c.awaitGone(ctx, r, g)
		if err != nil {
			return err
		}
		r.saw(g.Collection, at)
		r.mu.Lock()
		r.least.Raise(g.Collection, at.Upper) // another replica may be behind
		r.gone = slices.DeleteFunc(r.gone, func(o gone) bool { return o == g })
		r.forgot = true
		r.mu.Unlock()
	}
	return nil
}

// awaitGone returns bounds of an answer that does not show an object.
func (c *Controller) awaitGone(ctx context.Context, r *run, g gone) (client.Bounds, error) {
	limit, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	wait := attempt.Wait{First: 5 * time.Millisecond, Most: 200 * time.Millisecond, Low: 0.5, High: 1}
	for {
		obj, at, err := c.index.Find(limit, g.Collection, g.Key, client.ReadOptions{AtLeast: r.atLeast(g.Collection), View: client.ViewMetadata})
		switch {
		case limit.Err() != nil && ctx.Err() == nil, errors.Is(err, client.ErrKeyQuarantined):
		case err != nil:
			return client.Bounds{}, err
		case obj == nil || obj.UID != g.UID:
			return at, nil
		case time.Since(time.Unix(g.At, 0)) > goneKept:
			c.emit(Event{Kind: EventDeletionUnseen, Collection: g.Collection, Key: g.Key, Reason: "uid " + g.UID})
			return at, nil
		}
		if !wait.Sleep(limit, 0) {
			return client.Bounds{}, fmt.Errorf("controller: %s %s with uid %s was deleted, and the index still shows it: %w",
				g.Collection, g.Key, g.UID, client.ErrRevisionNotReached)
		}
	}
}
