package store

import "k8s.io/apimachinery/pkg/types"

// Locked reads a store whose lock the caller of a notification holds.
type Locked struct{ s *Store }

// Dependents calls visit with where the objects owned by uid are.
func (l Locked) Dependents(uid types.UID, visit func(at Ref)) {
	for at := range l.s.owned[uid] {
		visit(at)
	}
}

// Find returns where the object with a UID is.
func (l Locked) Find(uid types.UID) (Ref, bool) {
	at, ok := l.s.uids[uid]
	return at, ok
}

// Get returns the object at a place, or nil.
func (l Locked) Get(at Ref) *Object {
	t := l.s.tables[at.Table]
	if t == nil {
		return nil
	}
	o, _ := t.live.Get(&Object{Key: at.Key})
	return o
}
