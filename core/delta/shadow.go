package delta

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Object is what the reflector knows of one object it saw in a list or a watch.
type Object struct {
	Key        Key
	UID        string
	RV         RV
	Generation int64
	// Owners, Hints and Labels are the current ones. The record made of an object shares them.
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

// Shadow is what a leading reflector remembers of the log: per key the resource version, content
// hash, UID and the owners, hints and labels it has had lately, but no objects. It decides what a
// change or a relist publishes, and can be rebuilt from headers.
//
// It holds about 200 bytes for an object whose owners, hints and labels others have too: those are
// kept once.
type Shadow struct {
	ttl     time.Duration
	entries map[Key]*entry
	marks   marks
	live    int
	digest  Digest // of what lives here
	// owed is, by key, what records would have added to the log's digest that did not reach it.
	owed   map[Key]Digest
	graves []grave // tombstones in the order of their deletion
	round  uint32  // of the list under way, 0 when none is
	risen  RV      // the lowest version of a tombstone that the list contradicts; empty when there is none
}

type grave struct {
	key     Key
	deleted int64
}

// NewShadow returns an empty shadow that remembers deletions, and former owners, for ttl.
func NewShadow(ttl time.Duration) *Shadow {
	return &Shadow{ttl: ttl, entries: map[Key]*entry{}, marks: newMarks()}
}

// Len is the number of living objects.
func (s *Shadow) Len() int { return s.live }

// Digest is that of the log once every record handed out is in it, except those that
// [Shadow.Doubt] was called for.
func (s *Shadow) Digest() Digest {
	d := s.digest
	for _, owed := range s.owed {
		d -= owed
	}
	return d
}

// change notes what became of a key's part of the digest, and returns what the record that tells it
// adds to that of the log.
func (s *Shadow) change(key Key, was, is Digest) Digest {
	d := is - was
	s.digest += d
	d += s.owed[key]
	delete(s.owed, key)
	return d
}

// Tombstones is the number of deletions that are remembered.
func (s *Shadow) Tombstones() int { return len(s.entries) - s.live }

// Empty reports whether nothing is known at all, not even a deletion.
func (s *Shadow) Empty() bool { return len(s.entries) == 0 }

// Restore takes a record read back from the log. Records must come in the log's order.
func (s *Shadow) Restore(r *Record, now time.Time) {
	if r.Kind != KindDelta {
		return
	}
	e := s.entries[r.Key]
	if e == nil {
		e = s.enter(r.Key, now)
	} else if e.compare(r.Epoch, r.RV) < 0 {
		return
	}
	was := e.part(r.Key)
	e.set(r.Epoch, r.RV, r.UID, r.Hash)
	s.marks.replace(e, r.Owners, r.Hints, r.Labels)
	if r.Overflow {
		e.overflowed(now)
	}
	if r.Tombstone() {
		s.remember(r.Key, e, now)
	} else {
		s.raise(e)
	}
	s.digest += e.part(r.Key) - was
}

// Upsert takes an object seen in a watch, and returns the record to publish. It returns false when
// there is nothing new in it: an event that was replayed from before what is held, also from before
// a deletion, or the version held already with the owners, hints and labels that the log has of it:
// what is read for these may have changed, and the object not.
func (s *Shadow) Upsert(t Type, o *Object, epoch uint64, now time.Time) (Record, bool) {
	r, _, ok := s.upsert(t, o, epoch, now)
	return r, ok
}

func (s *Shadow) upsert(t Type, o *Object, epoch uint64, now time.Time) (Record, *entry, bool) {
	e := s.entries[o.Key]
	if e != nil {
		order := e.compare(epoch, o.RV)
		if order < 0 || order == 0 && (e.dead() || e.holds(o.Hash) && s.marks.cover(e, o)) {
			return Record{}, e, false
		}
		// Known by the same version under another epoch: nothing changed.
		if order > 0 && !e.dead() && e.holds(o.Hash) && e.compare(e.epoch, o.RV) == 0 && e.uidText() == o.UID && s.marks.cover(e, o) {
			return Record{}, e, false
		}
	} else {
		e = s.enter(o.Key, now)
	}
	if t == Updated && e.dead() {
		t = Added
	}
	step, was := e.birth(), e.part(o.Key)
	s.raise(e)
	e.set(epoch, o.RV, o.UID, o.Hash)
	r := record(t, o, e, epoch)
	r.Step, r.Change = step, s.change(o.Key, was, e.part(o.Key))
	s.remark(&r, e, o, now)
	return r, e, true
}

// Delete takes a deletion seen in a watch; o holds the last state and the deletion's resource
// version. A deletion of a key that is not known is nothing, nor is one from before what is held.
func (s *Shadow) Delete(reason DeleteReason, o *Object, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[o.Key]
	if e == nil || e.dead() || e.compare(epoch, o.RV) < 0 {
		return Record{}, false
	}
	uid := o.UID
	if uid == "" {
		uid = e.uidText()
	}
	step, was := e.birth()-1, e.part(o.Key)
	e.set(epoch, o.RV, uid, o.Hash)
	r := record(Deleted, o, e, epoch)
	r.Step, r.Change = step, s.change(o.Key, was, 0)
	r.DeleteReason = reason
	s.remark(&r, e, o, now)
	s.remember(o.Key, e, now)
	return r, true
}

// BeginList begins a complete list. A list that was begun before and not ended is forgotten.
func (s *Shadow) BeginList() {
	s.round++
	s.risen = ""
}

// Listed takes one object of the list under way and returns the record to publish when it differs
// from what is held. A second object with the same key counts when it is newer.
func (s *Shadow) Listed(o *Object, epoch uint64, now time.Time) (Record, bool) {
	r, e, ok := s.upsert(Replaced, o, epoch, now)
	e.round = s.round
	if !ok && e.dead() && o.UID != "" && e.uidText() == o.UID {
		if v := e.rvText(); s.risen == "" || Compare(v, s.risen) < 0 {
			s.risen = v
		}
	}
	return r, ok
}

// Risen reports whether the list at listRV held an object that it should not: one that was deleted,
// under the same UID, at or before listRV. It had only left the collection, and a list found that
// out, or nobody could tell; or the source was restored. As it is older than its tombstone, no
// reader takes it before a new epoch.
func (s *Shadow) Risen(listRV RV) bool { return s.risen != "" && Compare(s.risen, listRV) <= 0 }

// Keep says that the list holds key although the object could not be read: it is not deleted.
func (s *Shadow) Keep(key Key) {
	if e := s.entries[key]; e != nil {
		e.round = s.round
	}
}

// Doubt says that r, the last record of its key, did not reach the log: the next list publishes the
// object again, whatever its version.
func (s *Shadow) Doubt(r *Record) {
	if e := s.entries[r.Key]; e != nil {
		if e.form |= doubtful; r.Step > 0 {
			e.form |= absent
		}
	}
	if r.Change != 0 {
		if s.owed == nil {
			s.owed = map[Key]Digest{}
		}
		s.owed[Key(strings.Clone(string(r.Key)))] += r.Change
	}
}

// Unread says that an object was seen of which not even the version could be read. It returns the
// record that tells so at the version held, unless the log holds it already; of a key that is not
// held there is nothing to tell.
func (s *Shadow) Unread(key Key, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[key]
	if e == nil || e.dead() || e.rvText() == "" || e.holds(0) {
		return Record{}, false
	}
	return s.unread(key, e, epoch, now), true
}

// unread tells of a living key that what the log holds of it is out of date. What an older epoch
// held says nothing about the versions of this one: there the key gets the lowest, which any other
// replaces.
func (s *Shadow) unread(key Key, e *entry, epoch uint64, now time.Time) Record {
	o := Object{Key: key, UID: e.uidText(), RV: e.rvText(), Encoding: EncodingUnreadable, ObservedAt: now}
	if e.epoch != epoch {
		o.RV = "1"
	}
	step, was := e.birth(), e.part(key)
	e.set(epoch, o.RV, o.UID, 0)
	r := record(Updated, &o, e, epoch)
	r.Step, r.Change = step, s.change(key, was, e.part(key))
	s.remark(&r, e, &o, now)
	return r
}

// Unlisted ends a list that held objects without a name. Of the living keys that the list did not
// name, nobody knows which are gone and which it held. Unlisted returns these keys in order, and
// records that say so, of those of which the log does not say it yet.
func (s *Shadow) Unlisted(listRV RV, epoch uint64, now time.Time) (keys []Key, out []Record) {
	for key, e := range s.entries {
		if e.dead() || e.round == s.round || e.compare(epoch, listRV) < 0 {
			continue
		}
		keys = append(keys, key)
		if e.epoch != epoch || !e.holds(0) {
			out = append(out, s.unread(key, e, epoch, now))
		}
	}
	slices.Sort(keys)
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return keys, out
}

// EndList returns the tombstones of all living keys that the list did not hold. They carry the
// list's resource version and the last owners, hints and labels, in the order of their keys. A key
// whose version is newer than the list stays: readers would refuse the tombstone, and the watch
// from the list's version tells what became of it.
func (s *Shadow) EndList(listRV RV, epoch uint64, now time.Time) []Record {
	return s.EndListFor(Inferred, listRV, epoch, now)
}

// EndListFor is EndList with another reason for what is gone, such as [FilteredOut] after the
// collection's selectors changed.
func (s *Shadow) EndListFor(reason DeleteReason, listRV RV, epoch uint64, now time.Time) []Record {
	var out []Record
	for key, e := range s.entries {
		if e.dead() || e.round == s.round || e.compare(epoch, listRV) < 0 {
			continue
		}
		gone := Object{Key: key, UID: e.uidText(), RV: listRV, ObservedAt: now}
		step, was := e.birth()-1, e.part(key)
		e.set(epoch, gone.RV, gone.UID, 0)
		r := record(Deleted, &gone, e, epoch)
		r.Step, r.Change = step, s.change(key, was, 0)
		r.DeleteReason = reason
		s.remark(&r, e, &gone, now)
		out = append(out, r)
		s.remember(key, e, now)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// Expire forgets deletions older than the ttl.
func (s *Shadow) Expire(now time.Time) {
	n := 0
	for ; n < len(s.graves) && now.UnixNano()-s.graves[n].deleted > int64(s.ttl); n++ {
		g := s.graves[n]
		if e := s.entries[g.key]; e != nil && e.deleted == g.deleted {
			s.marks.clear(e)
			delete(s.entries, g.key)
		}
	}
	s.graves = slices.Delete(s.graves, 0, n)
}

// enter makes a place for a key, dead until it is raised. The key is copied: it may be part of
// something larger.
func (s *Shadow) enter(key Key, now time.Time) *entry {
	e := &entry{deleted: instant(now)}
	s.entries[Key(strings.Clone(string(key)))] = e
	return e
}

func (s *Shadow) raise(e *entry) {
	if e.dead() {
		e.deleted = 0
		s.live++
	}
}

// remember marks a key as deleted and keeps the deletion until it expires.
func (s *Shadow) remember(key Key, e *entry, now time.Time) {
	if !e.dead() {
		s.live--
	}
	e.deleted = instant(now)
	s.graves = append(s.graves, grave{key: key, deleted: e.deleted})
}

// record is what is published of o; its marks are still to be set.
func record(t Type, o *Object, e *entry, epoch uint64) Record {
	uid := o.UID
	if uid == "" {
		uid = e.uidText()
	}
	return Record{
		Kind: KindDelta, Type: t, Key: o.Key, UID: uid, RV: o.RV, Epoch: epoch, Hash: o.Hash,
		Generation: o.Generation, Payload: o.Payload, Encoding: o.Encoding, ObservedAt: o.ObservedAt,
	}
}

// remark merges the current marks of o with those that ceased within the ttl, and tells them in r.
func (s *Shadow) remark(r *Record, e *entry, o *Object, now time.Time) {
	if e.more != nil && e.more.overflow != 0 && now.UnixNano()-e.more.overflow > int64(s.ttl) {
		e.more.overflow = 0
	}
	if s.marks.merge(e, o, now, s.ttl) {
		r.Owners, r.Hints, r.Labels = o.Owners, o.Hints, o.Labels
	} else {
		s.marks.tell(r, e)
	}
	r.Overflow = e.more != nil && e.more.overflow != 0
}
