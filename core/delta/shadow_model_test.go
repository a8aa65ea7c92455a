package delta

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// modelShadow is a [Shadow] with plain fields, as it was written first: it says what the compact
// one must decide.
type modelShadow struct {
	ttl     time.Duration
	entries map[Key]*modelEntry
	live    int
	graves  []modelGrave // tombstones in the order of their deletion
	round   uint64       // of the list under way, 0 when none is
}

type modelEntry struct {
	epoch    uint64
	rv       RV
	uid      string
	hash     uint64
	round    uint64    // the last list that held it
	deleted  time.Time // zero while it lives
	marks    []modelMark
	overflow time.Time // marks were dropped then
}

type modelMark struct {
	class       byte // 'o', 'h' or 'l'
	name, value string
	uid         string
	controller  bool
	gone        time.Time
}

type modelGrave struct {
	key     Key
	deleted time.Time
}

func newModelShadow(ttl time.Duration) *modelShadow {
	return &modelShadow{ttl: ttl, entries: map[Key]*modelEntry{}}
}

func (s *modelShadow) Len() int { return s.live }

func (s *modelShadow) Restore(r *Record, now time.Time) {
	if r.Kind != KindDelta {
		return
	}
	e := s.entries[r.Key]
	if e == nil {
		e = &modelEntry{deleted: now}
		s.entries[r.Key] = e
	} else if !Apply(Stamp{Epoch: e.epoch, RV: e.rv}, r.Stamp()) {
		return
	}
	e.epoch, e.rv, e.uid, e.hash = r.Epoch, r.RV, r.UID, r.Hash
	e.marks = modelMarks(r.Owners, r.Hints, r.Labels)
	if r.Overflow {
		e.overflow = now
	}
	if r.Tombstone() {
		s.remember(r.Key, e, now)
	} else {
		s.raise(e)
	}
}

// covers reports whether the record in the log has all marks of o.
func (e *modelEntry) covers(o *Object) bool {
	return !e.overflow.IsZero() || !slices.ContainsFunc(modelMarks(o.Owners, o.Hints, o.Labels), func(m modelMark) bool {
		return !slices.ContainsFunc(e.marks, func(has modelMark) bool {
			return has.class == m.class && has.name == m.name && has.value == m.value && has.uid == m.uid
		})
	})
}

func (s *modelShadow) Upsert(t Type, o *Object, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[o.Key]
	if e != nil {
		order := Stamp{Epoch: epoch, RV: o.RV}.Compare(Stamp{Epoch: e.epoch, RV: e.rv})
		if order < 0 || order == 0 && (e.dead() || e.hash == o.Hash && e.covers(o)) {
			return Record{}, false
		}
		// Known by the same version under another epoch: nothing changed.
		if order > 0 && !e.dead() && e.rv == o.RV && e.hash == o.Hash && e.uid == o.UID && e.covers(o) {
			return Record{}, false
		}
	} else {
		e = &modelEntry{deleted: now}
		s.entries[o.Key] = e
	}
	if t == Updated && e.dead() {
		t = Added
	}
	before, was := s.live, e.part(o.Key)
	s.raise(e)
	e.epoch, e.rv, e.uid, e.hash = epoch, o.RV, o.UID, o.Hash
	s.remark(e, modelMarks(o.Owners, o.Hints, o.Labels), now)
	r := s.record(t, o.Key, e)
	r.Step, r.Change = int8(s.live-before), e.part(o.Key)-was
	r.Generation, r.Payload, r.Encoding, r.ObservedAt = o.Generation, o.Payload, o.Encoding, o.ObservedAt
	return r, true
}

func (s *modelShadow) Delete(reason DeleteReason, o *Object, epoch uint64, now time.Time) (Record, bool) {
	e := s.entries[o.Key]
	if e == nil || e.dead() || (Stamp{Epoch: epoch, RV: o.RV}).Compare(Stamp{Epoch: e.epoch, RV: e.rv}) < 0 {
		return Record{}, false
	}
	was := e.part(o.Key)
	e.epoch, e.rv, e.hash = epoch, o.RV, o.Hash
	e.uid = cmp.Or(o.UID, e.uid)
	s.remark(e, modelMarks(o.Owners, o.Hints, o.Labels), now)
	r := s.record(Deleted, o.Key, e)
	r.DeleteReason, r.Step, r.Change = reason, -1, -was
	r.Generation, r.Payload, r.Encoding, r.ObservedAt = o.Generation, o.Payload, o.Encoding, o.ObservedAt
	s.remember(o.Key, e, now)
	return r, true
}

func (s *modelShadow) BeginList() { s.round++ }

func (s *modelShadow) Listed(o *Object, epoch uint64, now time.Time) (Record, bool) {
	r, ok := s.Upsert(Replaced, o, epoch, now)
	if e := s.entries[o.Key]; e != nil {
		e.round = s.round
	}
	return r, ok
}

func (s *modelShadow) Keep(key Key) {
	if e := s.entries[key]; e != nil {
		e.round = s.round
	}
}

func (s *modelShadow) EndList(listRV RV, epoch uint64, now time.Time) []Record {
	var out []Record
	for key, e := range s.entries {
		if e.dead() || e.round == s.round || (Stamp{Epoch: epoch, RV: listRV}).Compare(Stamp{Epoch: e.epoch, RV: e.rv}) < 0 {
			continue
		}
		was := e.part(key)
		e.epoch, e.rv, e.hash = epoch, listRV, 0
		s.remark(e, nil, now)
		r := s.record(Deleted, key, e)
		r.DeleteReason, r.ObservedAt, r.Step, r.Change = Inferred, now, -1, -was
		out = append(out, r)
		s.remember(key, e, now)
	}
	slices.SortFunc(out, func(a, b Record) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

func (s *modelShadow) Expire(now time.Time) {
	n := 0
	for ; n < len(s.graves) && now.Sub(s.graves[n].deleted) > s.ttl; n++ {
		g := s.graves[n]
		if e := s.entries[g.key]; e != nil && e.deleted.Equal(g.deleted) {
			delete(s.entries, g.key)
		}
	}
	s.graves = slices.Delete(s.graves, 0, n)
}

func (e *modelEntry) dead() bool { return !e.deleted.IsZero() }

func (e *modelEntry) part(key Key) Digest {
	if e.dead() {
		return 0
	}
	return DigestOf(string(key), e.rv)
}

func (s *modelShadow) Digest() (d Digest) {
	for key, e := range s.entries {
		d += e.part(key)
	}
	return d
}

func (s *modelShadow) raise(e *modelEntry) {
	if e.dead() {
		e.deleted = time.Time{}
		s.live++
	}
}

func (s *modelShadow) remember(key Key, e *modelEntry, now time.Time) {
	if !e.dead() {
		s.live--
	}
	e.deleted = now
	s.graves = append(s.graves, modelGrave{key: key, deleted: now})
}

func (s *modelShadow) record(t Type, key Key, e *modelEntry) Record {
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

func (s *modelShadow) remark(e *modelEntry, current []modelMark, now time.Time) {
	if now.Sub(e.overflow) > s.ttl {
		e.overflow = time.Time{}
	}
	for _, old := range e.marks {
		if slices.ContainsFunc(current, func(m modelMark) bool {
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
	if n := modelFitting(current); n < len(current) {
		current = current[:n]
		e.overflow = now
	}
	e.marks = slices.Clip(current)
}

func modelFitting(marks []modelMark) int {
	size := 0
	for i := range marks {
		m := &marks[i]
		if size += len(m.name) + len(m.value) + len(m.uid); i == MaxMarks || size > MaxMarkBytes {
			return i
		}
	}
	return len(marks)
}

func modelMarks(owners []Owner, hints, labels map[string][]string) []modelMark {
	n := len(owners) + len(hints) + len(labels)
	if n == 0 {
		return nil
	}
	marks := make([]modelMark, 0, n)
	for _, o := range owners {
		marks = append(marks, modelMark{class: 'o', name: o.Kind, value: o.Name, uid: o.UID, controller: o.Controller})
	}
	for _, class := range [...]struct {
		class  byte
		values map[string][]string
	}{{'h', hints}, {'l', labels}} {
		for _, name := range sortedKeys(class.values) {
			for _, v := range class.values[name] {
				marks = append(marks, modelMark{class: class.class, name: name, value: v})
			}
		}
	}
	return marks
}

func (s *modelShadow) Empty() bool { return len(s.entries) == 0 }

// The compact shadow decides and tells what the plain one does, whatever happens to few keys: marks
// that come, go and are too many, UIDs and versions that are no numbers, recreations, epochs,
// broken lists, tombstones that run out, rebuilding.
func TestTheCompactShadowDecidesLikeThePlainOne(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s, m := NewShadow(time.Hour), newModelShadow(time.Hour)
		now, epoch, rv := time.Unix(1_700_000_000, 0), uint64(1), 1000
		same := func(step int, what string, got, want Record, ok, wantOK bool) {
			if ok != wantOK || !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d step %d: %s gives\n%+v %v, want\n%+v %v", seed, step, what, got, ok, want, wantOK)
			}
		}
		for step := range 200 {
			now = now.Add(time.Duration(rng.IntN(10)) * time.Minute)
			rv += rng.IntN(3)
			o := randomObject(rng, rv)
			switch rng.IntN(12) {
			case 0, 1:
				r, ok := s.Delete(Observed, o, epoch, now)
				w, wok := m.Delete(Observed, o, epoch, now)
				same(step, "a deletion", r, w, ok, wok)
			case 2:
				s.BeginList()
				m.BeginList()
				for range rng.IntN(8) {
					o := randomObject(rng, rv)
					r, ok := s.Listed(o, epoch, now)
					w, wok := m.Listed(o, epoch, now)
					same(step, "a listed object", r, w, ok, wok)
				}
				s.Keep("d/a")
				m.Keep("d/a")
				if rng.IntN(2) == 0 {
					continue
				}
				got, want := s.EndList(strconv.Itoa(rv), epoch, now), m.EndList(strconv.Itoa(rv), epoch, now)
				if len(got) != len(want) {
					t.Fatalf("seed %d step %d: %d tombstones, want %d", seed, step, len(got), len(want))
				}
				for i := range got {
					same(step, "a list's end", got[i], want[i], true, true)
				}
			case 3:
				s.Expire(now)
				m.Expire(now)
			case 4:
				r := Record{
					Kind: KindDelta, Type: Type(1 + rng.IntN(4)), Key: o.Key, UID: o.UID, RV: o.RV, Epoch: epoch, Hash: o.Hash,
					Owners: o.Owners, Hints: o.Hints, Labels: o.Labels, Overflow: rng.IntN(9) == 0,
				}
				s.Restore(&r, now)
				m.Restore(&r, now)
			case 5:
				if rng.IntN(10) == 0 {
					epoch++
				}
			default:
				typ := Type(1 + rng.IntN(2))
				r, ok := s.Upsert(typ, o, epoch, now)
				w, wok := m.Upsert(typ, o, epoch, now)
				same(step, "an event", r, w, ok, wok)
			}
			if s.Len() != m.Len() || s.Empty() != m.Empty() {
				t.Fatalf("seed %d step %d: %d objects, empty %v; want %d, %v", seed, step, s.Len(), s.Empty(), m.Len(), m.Empty())
			}
			if s.Digest() != m.Digest() {
				t.Fatalf("seed %d step %d: digest %x, want %x", seed, step, s.Digest(), m.Digest())
			}
		}
		s.BeginList()
		s.EndList(strconv.Itoa(rv), epoch+1, now)
		if s.Expire(now.Add(2 * time.Hour)); !s.Empty() || len(s.marks.ids) != 0 || len(s.marks.free) != len(s.marks.list) {
			t.Fatalf("seed %d: %d marks are held for no entry", seed, len(s.marks.ids))
		}
	}
}

func randomObject(rng *rand.Rand, rv int) *Object {
	o := &Object{
		Key: NewKey("d", string(rune('a'+rng.IntN(5)))), RV: strconv.Itoa(rv - rng.IntN(4)), Hash: uint64(rng.IntN(4)),
		UID: fmt.Sprintf("c00cbd93-d2ea-4344-9a77-%012x", rng.IntN(3)), Generation: int64(rng.IntN(3)), Payload: []byte{byte(rv)},
	}
	switch rng.IntN(20) {
	case 0:
		o.UID = ""
	case 1:
		o.UID = strings.ToUpper(o.UID)
	case 2:
		o.UID = "u"
	case 3:
		o.RV += strings.Repeat("0", 16+rng.IntN(4)) // around 2^64 and beyond
	case 4:
		o.RV = ""
	}
	for range rng.IntN(4) {
		o.Owners = append(o.Owners, Owner{Kind: "Job", Name: strconv.Itoa(rng.IntN(3)), UID: strconv.Itoa(rng.IntN(2)), Controller: rng.IntN(2) == 0})
	}
	if rng.IntN(15) == 0 {
		for i := range MaxMarks {
			o.Owners = append(o.Owners, Owner{Kind: "Pod", Name: strconv.Itoa(i)})
		}
	}
	if rng.IntN(2) == 0 {
		o.Hints = map[string][]string{"node": {strconv.Itoa(rng.IntN(3))}}
	}
	for range rng.IntN(3) {
		o.Labels = add(o.Labels, strings.Repeat("l", 1+150*rng.IntN(2)), strconv.Itoa(rng.IntN(3)))
	}
	return o
}
