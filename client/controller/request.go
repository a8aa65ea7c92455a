package controller

import (
	"context"
	"encoding/json"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
)

// Request names an object of the collection that the controller is for. Namespace is
// empty where objects have none.
type Request struct{ Namespace, Name string }

// Key is the request as the index and the queue name it: "namespace/name", or "name".
func (r Request) Key() string { return string(delta.NewKey(r.Namespace, r.Name)) }

// String is the key.
func (r Request) String() string { return r.Key() }

// Requests makes requests of keys, as a [Mapper] returns them.
func Requests(keys ...string) []Request {
	all := make([]Request, len(keys))
	for i, key := range keys {
		all[i] = Request{delta.Key(key).Namespace(), delta.Key(key).Name()}
	}
	return all
}

// Result is what a [Reconciler] returns besides its error.
type Result struct {
	// RequeueAfter, when above zero, makes the key run again after that time.
	RequeueAfter time.Duration
	// Reason is kept with the key for people to see.
	Reason string
}

// Reconciler brings the world to what an object asks for. It is called for keys whose
// object is gone too. An error makes the key run again with the queue's back-off, with the
// exceptions of [client.Reconciler]: client.Terminal sets the key aside, and an index
// that has not reached the key's barrier makes it run again uncounted.
type Reconciler func(ctx context.Context, req Request) (Result, error)

// Change is one change of an object, as a [Mapper] and a [Predicate] get it.
type Change struct {
	// Object is the object after the change, with the fields that the [Selection] asks for;
	// of a deletion the object as it was in the end, as far as known.
	Object client.Object
	// Previous is the object before the change, with the same fields. Nil: there was none, or it
	// is not known, because changes were folded or history was lost.
	Previous *client.Object
	// Deleted: the object is gone, or left the selection.
	Deleted bool
}

// Mapper names the requests to look at because of a change. It must not keep the change.
// When it panics nobody knows which these are: then every key of the collection that the
// controller is for is added.
type Mapper func(Change) []Request

// Predicate says whether a change is one to look at. It is asked for updates whose previous
// object is known: what appears and what goes is always looked at, as is every key in a round
// over all of them. When it panics the change is looked at.
type Predicate func(Change) bool

// GenerationChanged is a [Predicate] that leaves out updates of the status and the metadata: the
// API server counts up metadata.generation when the spec of an object changes, or its deletion
// begins. Kinds that have no generation always pass. It needs the metadata, which is the default
// of Selection.Fields.
func GenerationChanged(c Change) bool {
	now, err := generation(c.Object)
	if err != nil || c.Previous == nil {
		return true
	}
	was, err := generation(*c.Previous)
	return err != nil || now != was || now == 0
}

func generation(o client.Object) (int64, error) {
	var of struct {
		Metadata struct {
			Generation int64 `json:"generation"`
		} `json:"metadata"`
	}
	err := json.Unmarshal(o.Payload, &of)
	return of.Metadata.Generation, err
}

// Selection chooses objects of a collection and what is sent of them. What is set must
// all hold; an object that leaves the selection is a deletion.
type Selection struct {
	// Namespaces are the only ones, at most 100.
	Namespaces []string
	// Labels and FieldSelector are selectors as kubectl writes them.
	Labels, FieldSelector string
	// Fields are the paths of what a [Mapper] and a [Predicate] get, "spec.nodeName". Default: the
	// metadata.
	Fields []string
	// When, where set, leaves out updates that it returns false for.
	When Predicate `json:"-"`
}

// all reports whether everything is chosen, and every change counts.
func (s Selection) all() bool {
	return len(s.Namespaces) == 0 && s.Labels == "" && s.FieldSelector == "" && s.When == nil
}
