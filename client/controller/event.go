package controller

import (
	"context"
	"log/slog"
)

// EventKind says what an [Event] is.
type EventKind string

// The kinds of events.
const (
	// EventLeading: this replica turns changes into keys now.
	EventLeading EventKind = "leading"
	// EventLed: it does so no more.
	EventLed EventKind = "led"
	// EventSweep: every key is added again, for Reason.
	EventSweep EventKind = "sweep"
	// EventGap: a watch lost history, so that all of its collection is read again.
	EventGap EventKind = "gap"
	// EventWatchFailed: a watch broke or was refused, and is opened again.
	EventWatchFailed EventKind = "watch_failed"
	// EventCollectionMissing: no index serves the collection.
	EventCollectionMissing EventKind = "collection_missing"
	// EventNotSynced: the collection cannot be read yet.
	EventNotSynced EventKind = "not_synced"
	// EventIndexFailed: the index could not be asked.
	EventIndexFailed EventKind = "index_failed"
	// EventQueueFailed: the queue could not be asked, or refused something.
	EventQueueFailed EventKind = "queue_failed"
	// EventMapperPanicked: a mapper panicked, so that every key is added.
	EventMapperPanicked EventKind = "mapper_panicked"
	// EventBadKey: a change or the queue named a key that no request can be of.
	EventBadKey EventKind = "bad_key"
	// EventDeletionUnseen: ten minutes after a reconcile had an object deleted the index still
	// shows it. Reads of its collection do not wait for that any more.
	EventDeletionUnseen EventKind = "deletion_unseen"
	// EventReconcileFailed: a reconcile returned an error.
	EventReconcileFailed EventKind = "reconcile_failed"
	// EventReconcilePanicked: a reconcile panicked; its key runs again with back-off.
	EventReconcilePanicked EventKind = "reconcile_panicked"
	// EventReconcileOverran: a reconcile still ran when its time or its lease was over.
	EventReconcileOverran EventKind = "reconcile_overran"
	// EventLeaseLost: a key's lease was lost, or the key was settled too late; it runs again.
	EventLeaseLost EventKind = "lease_lost"
)

// Event is something that the operator of a controller may want to know.
type Event struct {
	Kind EventKind
	// Collection and Key are what it is about; either may be empty.
	Collection, Key string
	// Reason is why, in a few words.
	Reason string
	// Err is what failed.
	Err error
}

// logged are the levels of the events that are logged here; workers and watches log the
// others themselves, which know how often that was done already.
var logged = map[EventKind]slog.Level{
	EventLeading: slog.LevelInfo, EventLed: slog.LevelInfo, EventSweep: slog.LevelInfo, EventGap: slog.LevelInfo,
	EventCollectionMissing: slog.LevelWarn, EventNotSynced: slog.LevelInfo, EventIndexFailed: slog.LevelWarn, EventQueueFailed: slog.LevelWarn,
	EventDeletionUnseen: slog.LevelError, EventMapperPanicked: slog.LevelError, EventBadKey: slog.LevelError, EventReconcileOverran: slog.LevelError, EventLeaseLost: slog.LevelWarn,
}

// emit makes an event known.
func (c *Controller) emit(e Event) {
	c.metrics.event(e.Kind)
	if level, ok := logged[e.Kind]; ok {
		attrs := []slog.Attr{slog.String("event", string(e.Kind))}
		for _, a := range [...]struct{ name, value string }{{"collection", e.Collection}, {"key", e.Key}, {"reason", e.Reason}} {
			if a.value != "" {
				attrs = append(attrs, slog.String(a.name, a.value))
			}
		}
		if e.Err != nil {
			attrs = append(attrs, slog.Any("error", e.Err))
		}
		c.o.Log.LogAttrs(context.Background(), level, "controller", attrs...) //nolint:forbidigo // no trace belongs to it
	}
	if c.o.OnEvent != nil {
		c.o.OnEvent(e)
	}
}
