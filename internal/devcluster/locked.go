package devcluster

import "k8s.io/apimachinery/pkg/types"

// locked reads a store whose lock the caller of a notification holds.
type locked struct{ s *store }

// dependents calls visit with where the objects owned by uid are.
func (l locked) dependents(uid types.UID, visit func(at ref)) {
	for at := range l.s.owned[uid] {
		visit(at)
	}
}

// find returns where the object with a UID is.
func (l locked) find(uid types.UID) (ref, bool) {
	at, ok := l.s.uids[uid]
	return at, ok
}

// get returns the object at a place, or nil.
func (l locked) get(at ref) *object {
	t := l.s.tables[at.table]
	if t == nil {
		return nil
	}
	o, _ := t.live.Get(&object{key: at.key})
	return o
}
