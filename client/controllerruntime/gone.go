package controllerruntime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

const (
	// goneTimeout is how long a read waits for a deletion, as long as the index waits for a
	// revision.
	goneTimeout = 3 * time.Second
	// goneKept is when a deletion is given up that no index shows.
	goneKept = 10 * time.Minute
)

// gone is an object that a reconcile had deleted. No version says that an index has seen it: it
// shows the object with its UID no more, or as one that is being deleted.
type gone struct {
	Collection string `json:"c"`
	Key        string `json:"k"`
	UID        string `json:"u"` // empty: nobody may have the key
	At         int64  `json:"t"` // when, in seconds
}

// remembered reads what a key's earlier run left.
func remembered(state []byte) (all []gone, err error) {
	if len(state) > 0 {
		err = json.Unmarshal(state, &all)
	}
	return all, err
}

// Deleted notes objects that were deleted, also for the key's next run, on any replica.
func (h *hand) Deleted(ctx context.Context, all ...gone) error {
	h.mu.Lock()
	h.gone = append(h.gone, all...)
	h.mu.Unlock()
	err := h.remember(ctx)
	if errors.Is(err, errTooManyGone) { // those that are seen need no room
		if err = h.unseen(ctx, ""); err == nil {
			err = h.remember(ctx)
		}
	}
	return err
}

var errTooManyGone = errors.New("controllerruntime: more deletions than the state of a key has room for")

// remember saves with the key what its next run must not see.
func (h *hand) remember(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var state []byte
	if len(h.gone) > 0 {
		var err error
		if state, err = json.Marshal(h.gone); err != nil {
			return err
		}
	}
	if len(state) > workqueue.MaxStateLen {
		return errTooManyGone
	}
	if err := h.save(ctx, state); err != nil {
		return fmt.Errorf("controllerruntime: keep deletions of %s: %w", h.item.Key, err)
	}
	h.forgot = false
	return nil
}

// tidy forgets deletions that the index has shown since.
func (h *hand) tidy(ctx context.Context) {
	h.mu.Lock()
	forgot := h.forgot
	h.mu.Unlock()
	if forgot && ctx.Err() == nil {
		_ = h.remember(ctx) // what stays is looked for once more
	}
}

// unseen waits until the index shows nothing that was deleted in a collection; in all if it is
// empty.
func (h *hand) unseen(ctx context.Context, collection string) error {
	h.mu.Lock()
	all := slices.Clone(h.gone)
	h.mu.Unlock()
	for _, g := range all {
		if collection != "" && g.Collection != collection {
			continue
		}
		at, err := h.awaitGone(ctx, g)
		if err != nil {
			return err
		}
		h.Read(g.Collection, at)
		h.mu.Lock()
		h.least.Raise(g.Collection, at.Upper) // another replica may be behind
		h.gone = slices.DeleteFunc(h.gone, func(o gone) bool { return o == g })
		h.forgot = true
		h.mu.Unlock()
	}
	return nil
}

// awaitGone returns bounds of an answer that does not show an object.
func (h *hand) awaitGone(ctx context.Context, g gone) (client.Bounds, error) {
	limit, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	wait := attempt.Wait{First: 5 * time.Millisecond, Most: 200 * time.Millisecond, Low: 0.5, High: 1}
	for {
		obj, at, err := h.index.Find(limit, g.Collection, g.Key, client.ReadOptions{AtLeast: h.atLeast(g.Collection), View: client.ViewMetadata})
		switch {
		case limit.Err() != nil && ctx.Err() == nil, errors.Is(err, client.ErrKeyQuarantined):
		case err != nil:
			return client.Bounds{}, err
		case obj == nil, g.UID != "" && obj.UID != g.UID, ends(obj.Payload), time.Since(time.Unix(g.At, 0)) > goneKept:
			return at, nil
		}
		if !wait.Sleep(limit, 0) {
			return client.Bounds{}, fmt.Errorf("controllerruntime: %s %s with uid %q was deleted, and the index still shows it: %w",
				g.Collection, g.Key, g.UID, client.ErrRevisionNotReached)
		}
	}
}

// ends reports whether an object is being deleted.
func ends(object []byte) bool {
	var m metav1.PartialObjectMetadata
	return json.Unmarshal(object, &m) == nil && m.DeletionTimestamp != nil
}
