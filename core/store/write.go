package store

import "time"

// find returns the slot of a key and its object.
func (w *write) find(p place) (uint32, *Object, bool) {
	id, ok := w.snap.keys.find(w.keys.vector, p)
	if !ok {
		return 0, nil, false
	}
	return id, w.objects.get(id), true
}

func (w *write) put(o *Object) {
	ns, name := o.key.at()
	tomb, deleted := w.snap.tombs.get(ns, name)
	if deleted && o.compareTombstone(tomb) <= 0 {
		w.result.Stale++
		return
	}
	id, old, ok := w.find(o.key.place())
	if ok {
		c, named := o.compare(old), w.named(id)
		w.name(id)
		switch {
		case c == 0:
			w.result.Same++
			return
		case c < 0 && named:
			w.result.Stale++
			return
		}
		if o.key != old.key { // not published yet, so it may change
			o.key = old.key
		}
	} else {
		id = w.s.slots.take()
		w.name(id)
		w.keys.set(w.e, id, o.key)
		w.snap.keys = w.snap.keys.put(w.e, w.keys.vector, id, o.key, false)
	}
	if deleted {
		w.snap.tombs, _ = w.snap.tombs.del(w.e, ns, name)
	}
	w.account(id, o.key, old, o)
	w.objects.set(w.e, id, o)
	w.refile(id, o.key, old, o)
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

func (w *write) delete(t *Tombstone, final *Object, now time.Time) {
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
	if id, old, ok := w.find(placeOf(t.Key)); ok {
		if w.named(id) && old.compareTombstone(t) > 0 {
			w.result.Stale++
			return
		}
		w.drop(id, old, t, final)
	}
	w.entomb(t, now)
}

func (w *write) doubt(d *Doubt) {
	_, o, ok := w.find(placeOf(d.Key))
	if !ok {
		c := ObjectConfig{Key: d.Key, Epoch: d.Epoch}
		ns, name := splitKey(d.Key)
		if tomb, ok := w.snap.tombs.get(ns, name); ok {
			c.UID, c.RV, c.Epoch = tomb.UID, tomb.RV, tomb.Epoch
		}
		o = NewObject(c)
	}
	w.put(o.doubted(d.Fault, d.Sequence))
}

// swap replaces the stored form of a version that is still the latest.
func (w *write) swap(x *Swap) {
	id, old, ok := w.find(x.Old.key.place())
	if !ok || old != x.Old {
		return
	}
	w.account(id, old.key, old, x.New)
	w.objects.set(w.e, id, x.New)
	w.refile(id, old.key, old, x.New)
	if old.fields == x.New.fields { // else watchers would see a change of facts that none of their changes made
		w.s.ring.swap(old, x.New)
	}
	w.result.Swapped++
}

// drop takes a live key out.
func (w *write) drop(id uint32, old *Object, t *Tombstone, final *Object) {
	w.refile(id, old.key, old, nil)
	w.account(id, old.key, old, nil)
	w.snap.keys, _ = w.snap.keys.del(w.e, w.keys.vector, old.key.place(), false)
	w.keys.set(w.e, id, nil)
	w.objects.set(w.e, id, nil)
	w.s.slots.give(id)
	w.result.Deleted++
	w.note(Change{Type: Deleted, Old: old, Final: final, Reason: t.Reason, RV: t.RV, Epoch: t.Epoch, Sequence: t.Sequence})
}

// refile brings the indexes in line with what a slot now holds.
func (w *write) refile(id uint32, k *key, old, now *Object) {
	if alike(old, now) {
		return
	}
	for _, x := range w.snap.indexes {
		if x.covers(k) {
			x.refile(w.e, w.keys.vector, id, k, old, now)
		}
	}
}

func (w *write) entomb(t *Tombstone, now time.Time) {
	if t.At.After(now) { // by a clock that is ahead; it would keep all that came behind it
		c := *t
		c.At, t = now, &c
	}
	w.snap.tombs = w.snap.tombs.put(w.e, t)
	w.s.expiry.push(t)
}

// sweep deletes the keys that the replay has not named.
func (w *write) sweep(now time.Time) {
	var gone []uint32
	w.snap.keys.each(func(id uint32) bool {
		if !w.named(id) {
			gone = append(gone, id)
		}
		return true
	})
	st := w.snap.state
	for _, id := range gone {
		old := w.objects.get(id)
		t := &Tombstone{
			Key: old.Key(), UID: old.UID(), Epoch: st.Position.Epoch, Sequence: st.Position.Sequence, Reason: Swept, At: now,
		}
		if st.Revision.Epoch == t.Epoch {
			t.RV = st.Revision.RV
		}
		w.drop(id, old, t, nil)
		w.entomb(t, now)
	}
	w.result.Swept += len(gone)
}

// expire forgets tombstones past their TTL and remembers up to where.
func (w *write) expire(now time.Time) {
	for t := w.s.expiry.first(); t != nil && now.Sub(t.At) > w.s.ttl; t = w.s.expiry.first() {
		w.s.expiry.pop()
		ns, name := splitKey(t.Key)
		if kept, ok := w.snap.tombs.get(ns, name); ok && kept == t {
			w.snap.tombs, _ = w.snap.tombs.del(w.e, ns, name)
			w.snap.horizon = max(w.snap.horizon, t.Sequence)
		}
	}
}

// named reports whether the replay, if there was one, has named the slot.
func (w *write) named(id uint32) bool { return !w.s.replay || w.s.seen.has(id) }

func (w *write) name(id uint32) {
	if w.s.replay {
		w.s.seen.add(id)
	}
}

// account keeps the sums and the faulty keys right when a slot's object
// changes; nil is none. The slot has its key.
func (w *write) account(id uint32, k *key, old, now *Object) {
	if old != nil {
		w.snap.sums.add(old, -1)
	}
	if now != nil {
		w.snap.sums.add(now, +1)
	}
	was, is := old != nil && old.Faulty(), now != nil && now.Faulty()
	switch {
	case is && !was:
		w.snap.faulty = w.snap.faulty.put(w.e, w.keys.vector, id, k, false)
	case was && !is:
		w.snap.faulty, _ = w.snap.faulty.del(w.e, w.keys.vector, k.place(), false)
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
	c.trace = w.trace
	w.s.ring.add(&c)
}
