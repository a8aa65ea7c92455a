package store

import "time"

func (w *write) put(o *Object) {
	ns, name := o.key.at()
	tomb, buried := w.snap.tombs.get(ns, name)
	if buried && o.compareTombstone(tomb) <= 0 {
		w.result.Stale++
		return
	}
	sl, ok := w.snap.keys.get(ns, name)
	var old *Object
	if ok {
		old = w.vec.v.get(sl.id)
		c, named := o.compare(old), w.named(sl)
		w.s.marks[sl.id] = w.s.replay
		switch {
		case c == 0:
			w.result.Same++
			return
		case c < 0 && named:
			w.result.Stale++
			return
		}
	} else {
		sl = w.newSlot(o.Key())
		w.snap.keys = w.snap.keys.put(w.e, sl)
	}
	if buried {
		w.snap.tombs, _ = w.snap.tombs.del(w.e, ns, name)
	}
	w.account(old, -1)
	w.account(o, +1)
	w.vec.set(w.e, sl.id, o)
	for i := range w.snap.indexes {
		w.refile(i, sl, o)
	}
	switch {
	case old == nil:
		w.result.Added++
		w.note(Change{Type: Added, New: o})
	case old.recreated(o):
		w.result.Deleted++
		w.result.Added++
		w.note(Change{Type: Deleted, Old: old, Reason: Recreated, RV: o.RV(), Epoch: o.Epoch(), Sequence: o.seq})
		w.note(Change{Type: Added, New: o})
	default:
		w.result.Updated++
		w.note(Change{Type: Updated, Old: old, New: o})
	}
}

func (w *write) delete(t *Tombstone) {
	ns, name := splitKey(t.Key)
	if tomb, ok := w.snap.tombs.get(ns, name); ok {
		switch c := t.compare(tomb); {
		case c < 0:
			w.result.Stale++
			return
		case c == 0:
			w.result.Same++
			return
		}
	}
	if sl, ok := w.snap.keys.get(ns, name); ok {
		old := w.vec.v.get(sl.id)
		if w.named(sl) && old.compareTombstone(t) > 0 {
			w.result.Stale++
			return
		}
		w.drop(sl, old, t)
	}
	w.bury(t)
}

func (w *write) doubt(d *Doubt) {
	ns, name := splitKey(d.Key)
	var o *Object
	if sl, ok := w.snap.keys.get(ns, name); ok {
		o = w.vec.v.get(sl.id)
	} else if tomb, ok := w.snap.tombs.get(ns, name); ok {
		o = NewObject(ObjectConfig{Key: d.Key, UID: tomb.UID, RV: tomb.RV, Epoch: tomb.Epoch})
	} else {
		o = NewObject(ObjectConfig{Key: d.Key, Epoch: d.Epoch})
	}
	w.put(o.doubted(d.Fault, d.Sequence))
}

// swap replaces the stored form of a version that is still the latest.
func (w *write) swap(x *Swap) {
	ns, name := x.Old.key.at()
	sl, ok := w.snap.keys.get(ns, name)
	if !ok || w.vec.v.get(sl.id) != x.Old {
		return
	}
	w.account(x.Old, -1)
	w.account(x.New, +1)
	w.vec.set(w.e, sl.id, x.New)
	w.result.Swapped++
	if x.Old.fields != x.New.fields {
		for i := range w.snap.indexes {
			w.refile(i, sl, x.New)
		}
	}
}

// drop takes a live key out.
func (w *write) drop(sl *slot, old *Object, t *Tombstone) {
	for i := range w.snap.indexes {
		w.refile(i, sl, nil)
	}
	ns, name := sl.at()
	w.snap.keys, _ = w.snap.keys.del(w.e, ns, name)
	w.vec.set(w.e, sl.id, nil)
	w.account(old, -1)
	w.s.free = append(w.s.free, sl.id)
	w.result.Deleted++
	w.note(Change{Type: Deleted, Old: old, Reason: t.Reason, RV: t.RV, Epoch: t.Epoch, Sequence: t.Sequence})
}

func (w *write) bury(t *Tombstone) {
	w.snap.tombs = w.snap.tombs.put(w.e, t)
	w.s.expiry = append(w.s.expiry, t)
}

// sweep deletes the keys that the replay has not named.
func (w *write) sweep(now time.Time) {
	var gone []*slot
	w.snap.keys.each(func(sl *slot) bool {
		if !w.named(sl) {
			gone = append(gone, sl)
		}
		return true
	})
	st := w.snap.state
	for _, sl := range gone {
		old := w.vec.v.get(sl.id)
		t := &Tombstone{
			Key: sl.key, UID: old.UID(), Epoch: st.Position.Epoch, Sequence: st.Position.Sequence, Reason: Swept, At: now,
		}
		if st.Revision.Epoch == t.Epoch {
			t.RV = st.Revision.RV
		}
		w.drop(sl, old, t)
		w.bury(t)
	}
	w.result.Swept += len(gone)
}

// expire forgets tombstones past their TTL and remembers up to where.
func (w *write) expire(now time.Time) {
	n := 0
	for ; n < len(w.s.expiry) && now.Sub(w.s.expiry[n].At) > w.s.ttl; n++ {
		t := w.s.expiry[n]
		ns, name := splitKey(t.Key)
		if kept, ok := w.snap.tombs.get(ns, name); ok && kept == t {
			w.snap.tombs, _ = w.snap.tombs.del(w.e, ns, name)
			w.snap.horizon = max(w.snap.horizon, t.Sequence)
		}
	}
	if n > 0 {
		clear(w.s.expiry[:n])
		w.s.expiry = w.s.expiry[n:]
	}
}

// refile brings index i in line with what a slot now holds; nil is nothing.
func (w *write) refile(i int, sl *slot, o *Object) {
	x := w.snap.indexes[i]
	for len(w.s.values[i]) <= int(sl.id) {
		w.s.values[i] = append(w.s.values[i], nil)
	}
	values, err := x.extract(o)
	x.refile(w.e, sl, w.s.values[i][sl.id], values)
	x.fail(w.e, sl.key, err)
	w.s.values[i][sl.id] = values
}

// named reports whether the replay, if there was one, has named the slot.
func (w *write) named(sl *slot) bool { return w.s.marks[sl.id] == w.s.replay }

func (w *write) newSlot(key string) *slot {
	var id uint32
	if n := len(w.s.free); n > 0 {
		id = w.s.free[n-1]
		w.s.free = w.s.free[:n-1]
	} else {
		id = w.s.nextID
		w.s.nextID++
		w.s.marks = append(w.s.marks, 0)
	}
	w.s.marks[id] = w.s.replay
	return newSlot(key, id)
}

func (w *write) account(o *Object, sign int) {
	if o == nil {
		return
	}
	w.snap.bytes += sign * o.Size()
	w.snap.stored += sign * o.StoredSize()
	if o.Faulty() {
		w.snap.faults += sign
	}
}

// note records a change for watchers; before the first sync there are none.
func (w *write) note(c Change) {
	if !w.s.watched {
		return
	}
	switch {
	case c.New != nil:
		c.Key, c.RV, c.Epoch, c.Sequence = c.New.Key(), c.New.RV(), c.New.Epoch(), c.New.Sequence()
	default:
		c.Key = c.Old.Key()
	}
	w.s.ring.add(&c)
}
