package informer

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Waitable is something that is done at some time. *Shared and *Registration are,
// and so are client-go's informers and registrations: it is its cache.DoneChecker.
type Waitable interface {
	Name() string
	Done() <-chan struct{}
}

// NotSyncedError names those that a wait was for in vain.
type NotSyncedError struct {
	// Names are sorted.
	Names []string
	// Err is the cause of the context's end.
	Err error
}

func (e *NotSyncedError) Error() string {
	return fmt.Sprintf("informer: not synced: %s: %v", strings.Join(e.Names, "; "), e.Err)
}

// Unwrap returns the cause of the context's end.
func (e *NotSyncedError) Unwrap() error { return e.Err }

// WaitFor returns when all are done, at once and not at a next look, or with a
// *[NotSyncedError] when ctx ends first. What is done by then is, whatever the
// context says.
func WaitFor(ctx context.Context, all ...Waitable) error {
	var missing []string
	for _, w := range all {
		select {
		case <-w.Done():
		case <-ctx.Done():
			if !isClosed(w.Done()) {
				missing = append(missing, w.Name())
			}
		}
	}
	if missing == nil {
		return nil
	}
	slices.Sort(missing)
	return &NotSyncedError{Names: missing, Err: context.Cause(ctx)}
}
