package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/client/internal/run"
	"github.com/deltaplane/deltaplane/core/delta"
)

// Deleted says that the API server answered that an object is gone: the answer to its deletion was
// not the object, or the context's reconcile removed its last finalizer. Such answers have no
// resource version of the deletion. The reconcile's later reads of the collection wait until the
// index does not show that UID any more, and so do those of the key's next run, on any replica,
// even if this one dies. A deletion that is only requested, of an object with finalizers or a grace
// period, is a write: pass the version of the answer to [Controller.Wrote]. The object is one that
// the reconcile has read, or whose version it has passed to Wrote: else an index that has not come
// to its creation yet counts as one that has seen the deletion. An error says that this cannot be
// promised: return it from the reconciler.
// For an eviction or a binding there is [Controller.WroteUnversioned], for the deletion of many
// objects [Controller.DeleteCollection].
func (c *Controller) Deleted(ctx context.Context, collection, key, uid string) error {
	r, ok := ctx.Value(runKey{}).(*run.Run)
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
	if err := r.Deleted(ctx, run.Gone{Collection: full, Key: key, UID: uid, At: time.Now().Unix()}); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	return nil
}
