package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
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

// Gone is an object that a run had deleted. The answer to a deletion has no resource version, so
// the UID alone says whether an index has seen it.
type Gone struct {
	Collection string `json:"c"`
	Key        string `json:"k"`
	// UID may be empty: then nobody may have the key.
	UID string `json:"u"`
	// Version is one that the object had, empty if none is known, and Epoch, which Deleted sets,
	// that of the collection. An index that has not reached it may not have seen the object's
	// creation.
	Version string `json:"v,omitempty"`
	Epoch   uint64 `json:"p,omitempty"`
	// At is when, in seconds.
	At int64 `json:"t"`
	// Ending says that the deletion may only have been requested: an index has seen it too that
	// shows the object as one that is being deleted.
	Ending bool `json:"e,omitempty"`
}

// errTooManyGone: those that the index shows already need no room.
var errTooManyGone = errors.New("more deletions than the state of a key has room for")

// Deleted notes objects that were deleted, also for the key's next run, even if this process dies.
func (r *Run) Deleted(ctx context.Context, all ...Gone) error {
	for n := range all {
		if all[n].Version == "" {
			continue
		}
		at, err := r.revision(ctx, all[n].Collection, all[n].Version)
		if err != nil {
			return err
		}
		all[n].Epoch = at.Epoch
	}
	r.mu.Lock()
	r.gone = append(r.gone, all...)
	r.mu.Unlock()
	err := r.keep(ctx)
	if errors.Is(err, errTooManyGone) {
		if err = r.Unseen(ctx, ""); err == nil {
			err = r.keep(ctx)
		}
	}
	return err
}

// Tidy has the queue forget deletions that the index has shown since.
func (r *Run) Tidy(ctx context.Context) error {
	r.mu.Lock()
	forgot := r.forgot
	r.mu.Unlock()
	if !forgot || ctx.Err() != nil {
		return nil
	}
	return r.keep(ctx)
}

// keep saves with the key what its next run must not see.
func (r *Run) keep(ctx context.Context) error {
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
	if err := r.cfg.Save(ctx, state); err != nil {
		return fmt.Errorf("keep deletions of %s: %w", r.cfg.Item.Key, err)
	}
	r.forgot = false
	return nil
}

// Unseen waits until the index shows nothing that was deleted in a collection; in all if it is
// empty.
func (r *Run) Unseen(ctx context.Context, collection string) error {
	r.mu.Lock()
	all := slices.Clone(r.gone)
	r.mu.Unlock()
	for _, g := range all {
		if collection != "" && g.Collection != collection {
			continue
		}
		at, err := r.await(ctx, g)
		if err != nil {
			return err
		}
		r.Saw(g.Collection, at)
		r.mu.Lock()
		r.least.Raise(g.Collection, at.Upper) // another replica may be behind
		r.gone = slices.DeleteFunc(r.gone, func(o Gone) bool { return o == g })
		r.forgot = true
		r.mu.Unlock()
	}
	return nil
}

// await returns bounds of an answer that does not show an object.
func (r *Run) await(ctx context.Context, g Gone) (client.Bounds, error) {
	limit, cancel := context.WithTimeout(ctx, goneTimeout)
	defer cancel()
	wait := attempt.Wait{First: 5 * time.Millisecond, Most: 200 * time.Millisecond, Low: 0.5, High: 1}
	for {
		least := client.Barrier{g.Collection: r.AtLeast(g.Collection)}
		least.Raise(g.Collection, g.existed())
		obj, at, err := r.cfg.Index.Find(limit, g.Collection, g.Key, client.ReadOptions{AtLeast: least[g.Collection], View: client.ViewMetadata})
		switch {
		case limit.Err() != nil && ctx.Err() == nil, errors.Is(err, client.ErrKeyQuarantined):
		case err != nil:
			return client.Bounds{}, err
		case g.seen(obj):
			return at, nil
		case time.Since(time.Unix(g.At, 0)) > goneKept:
			if r.cfg.OnGivenUp != nil {
				r.cfg.OnGivenUp(g)
			}
			return at, nil
		}
		if !wait.Sleep(limit, 0) {
			return client.Bounds{}, fmt.Errorf("%s %s with uid %q was deleted, and the index still shows it: %w",
				g.Collection, g.Key, g.UID, client.ErrRevisionNotReached)
		}
	}
}

// existed is a revision at which the object existed, zero if none is known.
func (g Gone) existed() client.Revision {
	return client.Revision{Epoch: g.Epoch, RV: g.Version}
}

// seen reports whether an index that shows obj under the key, nil for nothing, has seen the
// deletion.
func (g Gone) seen(obj *client.Object) bool {
	return obj == nil || g.UID != "" && obj.UID != g.UID || g.Ending && ends(obj.Payload)
}

// ends reports whether an object is being deleted.
func ends(object []byte) bool {
	var o struct {
		Metadata struct {
			DeletionTimestamp *time.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
	}
	return json.Unmarshal(object, &o) == nil && o.Metadata.DeletionTimestamp != nil
}
