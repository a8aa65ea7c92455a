package informer

import "fmt"

// Handler receives what happens to the objects of an informer: one call after
// another, in the order of the log for each key. The store changes before its handlers
// are called, so it may be ahead of what a handler sees. Objects are shared and must
// not be changed.
//
// A handler that is slow receives every change as long as its buffer has room, and
// from then on the latest of each key; see [HandlerOptions].Buffer.
type Handler[T any] interface {
	// OnAdd receives an object that is new to the handler. initial is true for the
	// objects that there were when the informer synced or, if that is later, when the
	// handler was added.
	OnAdd(obj T, initial bool)
	// OnUpdate receives a new version of an object; and, on a resync, the same version
	// once more.
	OnUpdate(old, obj T)
	// OnDelete receives an object that is gone, or is no longer of those selected.
	OnDelete(d Deletion[T])
}

// Reason is how a deletion became known.
type Reason uint8

// The reasons.
const (
	// Observed: the API server said so.
	Observed Reason = iota + 1
	// Inferred: a complete state did not hold the key any more. When it went, and how
	// the object looked then, is not known.
	Inferred
	// Filtered: the object exists and left the informer's scope.
	Filtered
	// Recreated: the key has an object of another UID, told of by OnAdd next.
	Recreated
)

func (r Reason) String() string {
	switch r {
	case Observed:
		return "observed"
	case Inferred:
		return "inferred"
	case Filtered:
		return "filtered"
	case Recreated:
		return "recreated"
	default:
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
}

// Deletion is the end of an object: client-go's object or its
// DeletedFinalStateUnknown, in one type.
type Deletion[T any] struct {
	// Key is `namespace/name`, or `name`.
	Key string
	// UID is that of Object.
	UID string
	// ResourceVersion is one at which the object was gone; empty when none is known.
	ResourceVersion string
	// Object is the object as it was deleted, at ResourceVersion or before; with Stale,
	// and for the reason Filtered, the last version that was known.
	Object T
	Reason Reason
	// Stale: nobody could tell what the object was like in the end.
	Stale bool

	known *T // what the handler received last
}

// FinalStateUnknown reports whether the object may have changed after the version
// at hand.
func (d Deletion[T]) FinalStateUnknown() bool {
	return d.Stale || d.Reason == Inferred || d.Reason == Recreated
}

// HandlerFuncs is a Handler made of functions; those that are nil do nothing.
type HandlerFuncs[T any] struct {
	AddFunc    func(obj T, initial bool)
	UpdateFunc func(old, obj T)
	DeleteFunc func(d Deletion[T])
}

// OnAdd implements Handler.
func (h HandlerFuncs[T]) OnAdd(obj T, initial bool) {
	if h.AddFunc != nil {
		h.AddFunc(obj, initial)
	}
}

// OnUpdate implements Handler.
func (h HandlerFuncs[T]) OnUpdate(old, obj T) {
	if h.UpdateFunc != nil {
		h.UpdateFunc(old, obj)
	}
}

// OnDelete implements Handler.
func (h HandlerFuncs[T]) OnDelete(d Deletion[T]) {
	if h.DeleteFunc != nil {
		h.DeleteFunc(d)
	}
}

// FilteringHandler passes on what concerns objects that Filter accepts. An update
// that makes an object acceptable is an add, not initial; one that makes it
// unacceptable is a deletion, for the reason Filtered.
type FilteringHandler[T any] struct {
	// Filter must be a pure function of the object.
	Filter func(T) bool
	// Key and UID name an object that leaves the filter. Nil leaves that empty in its
	// Deletion.
	Key, UID func(T) string
	Handler  Handler[T]
}

// OnAdd implements Handler.
func (h FilteringHandler[T]) OnAdd(obj T, initial bool) {
	if h.Filter(obj) {
		h.Handler.OnAdd(obj, initial)
	}
}

// OnUpdate implements Handler.
func (h FilteringHandler[T]) OnUpdate(old, obj T) {
	had, has := h.Filter(old), h.Filter(obj)
	switch {
	case had && has:
		h.Handler.OnUpdate(old, obj)
	case has:
		h.Handler.OnAdd(obj, false)
	case had:
		d := Deletion[T]{Object: old, Reason: Filtered}
		if h.Key != nil {
			d.Key = h.Key(old)
		}
		if h.UID != nil {
			d.UID = h.UID(old)
		}
		h.Handler.OnDelete(d)
	}
}

// OnDelete implements Handler.
func (h FilteringHandler[T]) OnDelete(d Deletion[T]) {
	had := d.Object
	if d.known != nil { // the object as it was deleted may be acceptable no more, or only then
		had = *d.known
	}
	if h.Filter(had) {
		h.Handler.OnDelete(d)
	}
}
