package delta

import (
	"cmp"
	"slices"
	"time"
)

// Object is what the reflector knows of one object it saw in a list or a watch.
type Object struct {
	Key        Key
	UID        string
	RV         RV
	Generation int64
	// Owners, Hints and Labels are the current ones.
	Owners []Owner
	Hints  map[string][]string
	Labels map[string][]string
	// Payload is the object in Encoding; Hash is [Hash] of it.
	Payload  []byte
	Encoding string
	Hash     uint64
	// ObservedAt is when it was read.
	ObservedAt time.Time
}

// MaxMarks is how many owners, hints and labels together a record carries, and MaxMarkBytes how long their names and values may be in sum;
// beyond them Overflow says "wake all". Escaped three times as long they still fit into a message's headers (64 KiB): the API server
// bounds neither the number nor the length of owner references, and a record that the log refuses would hold up all that follow it.
const (
	MaxMarks     = 64
	MaxMarkBytes = 16 << 10
)

// Shadow is what a leading reflector remembers of the log: per key the resource version, content hash, UID and the owners, hints
// and labels it has had lately, but no objects. It decides what a change or a relist publishes, and can be rebuilt from headers.
type Shadow struct {
	ttl     time.Duration
	entries map[Key]*entry
	live    int
	graves  []grave // tombstones in the order of their deletion
	round   uint64  // of the list under way, 0 when none is
}

type entry struct {
	epoch    uint64
	rv       RV
	uid      string
	hash     uint64
	round    uint64    // the last list that held it
	deleted  time.Time // zero while it lives
	marks    []mark
	overflow time.Time // marks were dropped then
}

// mark is one owner, hint or label value. Gone is zero while the object has it.
type mark struct {
	class       byte // 'o', 'h' or 'l'
	name, value string
	uid         string
	controller  bool
	gone        time.Time
}

type grave struct {
	key     Key
	deleted time.Time
}

// NewShadow returns an empty shadow that remembers deletions, and former owners, for ttl.
func NewShadow(ttl time.Duration) *Shadow {
	return &Shadow{ttl: ttl, entries: map[Key]*entry{}}
}

// Len is the number of living objects.
func (s *Shadow) Len() int { return s.live }

// Restore takes a record read back from the log. Records must come in the log's order.
func (s *Shadow) Restore(r *Record, now time.Time) {
	if r.Kind != KindDelta {
		return
	}
	e := s.entries[r.Key]
	if e == nil {
		e = &entry{deleted: now}
		s.entries[r.Key] = e
	} else if !Apply(Stamp{Epoch: e.epoch, RV: e.rv}, r.Stamp()) {
		return
	}
	e.epoch, e.rv, e.uid, e.hash = r.Epoch, r.RV, r.UID, r.Hash
	e.marks = marksOf(r.Owners, r.Hints, r.Labels)
	if r.Overflow {
		e.overflow = now
	}
	if r.Tombstone() {
		s.bury(r.Key, e, now)
	} else {
		s.raise(e)
	}
}

// Upsert takes an object seen in a watch, and returns the record to publish. It returns false when there is nothing new in it: an event that
// was replayed from before what is held, also from before a deletion (design 6.2), or the version held already.
func (s *Shadow) Upsert(t Type, o *Object, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[o.Key]
	if e != nil {
		order := Stamp{Epoch: epoch, RV: o.RV}.Compare(Stamp{Epoch: e.epoch, RV: e.rv})
		if order < 0 || order == 0 && (e.dead() || e.hash == o.Hash) {
			return Record{}, false
		}
		// Known by the same version under another epoch: nothing changed.
		if order > 0 && !e.dead() && e.rv == o.RV && e.hash == o.Hash && e.uid == o.UID {
			return Record{}, false
		}
	} else {
		e = &entry{deleted: now}
		s.entries[o.Key] = e
	}
	if t == Updated && e.dead() {
		t = Added
	}
	s.raise(e)
	e.epoch, e.rv, e.uid, e.hash = epoch, o.RV, o.UID, o.Hash
	s.remark(e, marksOf(o.Owners, o.Hints, o.Labels), now)
	r := s.record(t, o.Key, e)
	r.Generation, r.Payload, r.Encoding, r.ObservedAt = o.Generation, o.Payload, o.Encoding, o.ObservedAt
	return r, true
}

// Delete takes a deletion seen in a watch; o holds the last state and the deletion's resource version. A deletion of a key that is
// not known is nothing (D-04), nor is one from before what is held.
func (s *Shadow) Delete(reason DeleteReason, o *Object, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[o.Key]
	if e == nil || e.dead() || (Stamp{Epoch: epoch, RV: o.RV}).Compare(Stamp{Epoch: e.epoch, RV: e.rv}) < 0 {
		return Record{}, false
	}
	e.epoch, e.rv, e.hash = epoch, o.RV, o.Hash
	e.uid = cmp.Or(o.UID, e.uid)
	s.remark(e, marksOf(o.Owners, o.Hints, o.Labels), now)
	r := s.record(Deleted, o.Key, e)
	r.DeleteReason = reason
	r.Generation, r.Payload, r.Encoding, r.ObservedAt = o.Generation, o.Payload, o.Encoding, o.ObservedAt
	s.bury(o.Key, e, now)
	return r, true
}

// BeginList begins a complete list. A list that was begun before and not ended is forgotten.
func (s *Shadow) BeginList() { s.round++ }

// Listed takes one object of the list under way and returns the record to publish when it differs from what is held. A second object
// with the same key counts when it is newer.
func (s *Shadow) Listed(o *Object, epoch uint64, now time.Time) (Record, bool) {
	r, ok := s.Upsert(Replaced, o, epoch, now)
	if e := s.entries[o.Key]; e != nil {
		e.round = s.round
	}
	return r, ok
}

// Keep says that the list holds key although the object could not be read: it is not deleted.
func (s *Shadow) Keep(key Key) {
	if e := s.entries[key]; e != nil {
		e.round = s.round
	}
}

// EndList returns the tombstones of all living keys that the list did not hold. They carry the list's resource version (design 6.5)
// and the last owners, hints and labels, in the order of their keys. A key whose version is newer than the list stays: readers would
// refuse the tombstone, and the watch from the list's version tells what became of it.
func (s *Shadow) EndList(listRV RV, epoch uint64, now time.Time) []Record {
	var out []Record
	for key, e := range s.entries {
		if e.dead() || e.round == s.round || (Stamp{Epoch: epoch, RV: listRV}).Compare(Stamp{Epoch: e.epoch, RV: e.rv}) < 0 {
			continue
		}
		e.epoch, e.rv, e.hash = epoch, listRV, 0
		s.remark(e, nil, now)
		r := s.record(Deleted, key, e)
		r.DeleteReason, r.ObservedAt = Inferred, now
		out = append(out, r)
		s.bury(key, e, now)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Expire forgets deletions older than the ttl.
func (s *Shadow) Expire(now time.Time) {
	n := 0
	for ; n < len(s.graves) && now.Sub(s.graves[n].deleted) > s.ttl; n++ {
		g := s.graves[n]
		if e := s.entries[g.key]; e != nil && e.deleted.Equal(g.deleted) {
			delete(s.entries, g.key)
		}
	}
	s.graves = slices.Delete(s.graves, 0, n)
}

func (e *entry) dead() bool { return !e.deleted.IsZero() }

func (s *Shadow) raise(e *entry) {
	if e.dead() {
		e.deleted = time.Time{}
		s.live++
	}
}

func (s *Shadow) bury(key Key, e *entry, now time.Time) {
	if !e.dead() {
		s.live--
	}
	e.deleted = now
	s.graves = append(s.graves, grave{key: key, deleted: now})
}

func (s *Shadow) record(t Type, key Key, e *entry) Record {
	r := Record{Kind: KindDelta, Type: t, Key: key, UID: e.uid, RV: e.rv, Epoch: e.epoch, Hash: e.hash, Overflow: !e.overflow.IsZero()}
	for i := range e.marks {
		m := &e.marks[i]
		switch m.class {
		case 'o':
			r.Owners = append(r.Owners, Owner{Kind: m.name, Name: m.value, UID: m.uid, Controller: m.controller && m.gone.IsZero()})
		case 'h':
			r.Hints = add(r.Hints, m.name, m.value)
		case 'l':
			r.Labels = add(r.Labels, m.name, m.value)
		}
	}
	return r
}

// remark merges the current marks with those that ceased within the ttl.
func (s *Shadow) remark(e *entry, current []mark, now time.Time) {
	if now.Sub(e.overflow) > s.ttl {
		e.overflow = time.Time{}
	}
	for _, old := range e.marks {
		if slices.ContainsFunc(current, func(m mark) bool {
			return m.class == old.class && m.name == old.name && m.value == old.value && m.uid == old.uid
		}) {
			continue
		}
		if old.gone.IsZero() {
			old.gone = now
		}
		if now.Sub(old.gone) <= s.ttl {
			current = append(current, old)
		}
	}
	if n := fitting(current); n < len(current) {
		current = current[:n]
		e.overflow = now
	}
	e.marks = slices.Clip(current)
}

// fitting is how many of the marks a record can carry.
func fitting(marks []mark) int {
	size := 0
	for i := range marks {
		m := &marks[i]
		if size += len(m.name) + len(m.value) + len(m.uid); i == MaxMarks || size > MaxMarkBytes {
			return i
		}
	}
	return len(marks)
}

func marksOf(owners []Owner, hints, labels map[string][]string) []mark {
	n := len(owners) + len(hints) + len(labels)
	if n == 0 {
		return nil
	}
	marks := make([]mark, 0, n)
	for _, o := range owners {
		marks = append(marks, mark{class: 'o', name: o.Kind, value: o.Name, uid: o.UID, controller: o.Controller})
	}
	for _, class := range [...]struct {
		class  byte
		values map[string][]string
	}{{'h', hints}, {'l', labels}} {
		for _, name := range sortedKeys(class.values) {
			for _, v := range class.values[name] {
				marks = append(marks, mark{class: class.class, name: name, value: v})
			}
		}
	}
	return marks
}

func add(m map[string][]string, name, value string) map[string][]string {
	if m == nil {
		m = map[string][]string{}
	}
	m[name] = append(m[name], value)
	return m
}

// Empty reports whether nothing is known at all, not even a deletion.
func (s *Shadow) Empty() bool { return len(s.entries) == 0 }
