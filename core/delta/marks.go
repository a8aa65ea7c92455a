package delta

import (
	"encoding/binary"
	"slices"
	"time"
)

// MaxMarks is how many owners, hints and labels together a record carries, and MaxMarkBytes how
// long their names and values may be in sum; beyond them Overflow says "wake all". Escaped three
// times as long they still fit into a message's headers (64 KiB): the API server bounds neither the
// number nor the length of owner references, and a record that the log refuses would hold up all
// that follow it.
const (
	MaxMarks     = 64
	MaxMarkBytes = 16 << 10
)

// marks holds the owners, hints and labels of a shadow's entries, equal ones once. A mark that no
// entry has any more is dropped.
type marks struct {
	ids     map[string]uint32
	list    []mark // by id
	free    []uint32
	scratch []held
	text    []byte
	names   []string
}

// mark is one owner, hint or label value: its class ('o', 'h' or 'l'), name, value and UID in one
// text, so that the map holds it too.
type mark struct {
	text string
	refs uint32
}

// ref is a mark's id, with [controls] set for the owner that is the controller, which is no part of
// the mark.
type ref uint32

const controls ref = 1 << 31

// held is a mark an entry has, or had until gone.
type held struct {
	ref  ref
	gone int64 // Unix nanoseconds; 0 while the object has it
}

func newMarks() marks { return marks{ids: map[string]uint32{}} }

// add counts one more use of a mark.
func (m *marks) add(class byte, name, value, uid string) ref {
	m.text = binary.AppendUvarint(append(m.text[:0], class), uint64(len(name)))
	m.text = binary.AppendUvarint(append(m.text, name...), uint64(len(value)))
	m.text = append(append(m.text, value...), uid...)
	id, ok := m.ids[string(m.text)]
	if !ok {
		if n := len(m.free); n > 0 {
			id, m.free = m.free[n-1], m.free[:n-1]
		} else {
			id = uint32(len(m.list))
			m.list = append(m.list, mark{})
		}
		m.list[id] = mark{text: string(m.text)}
		m.ids[m.list[id].text] = id
	}
	m.list[id].refs++
	return ref(id)
}

func (m *marks) drop(r ref) {
	id := uint32(r &^ controls)
	if m.list[id].refs--; m.list[id].refs == 0 {
		delete(m.ids, m.list[id].text)
		m.list[id] = mark{}
		m.free = append(m.free, id)
	}
}

// parts takes a mark's text apart.
func (m *marks) parts(r ref) (class byte, name, value, uid string) {
	t := m.list[r&^controls].text
	class, t = t[0], t[1:]
	name, t = cutSized(t)
	value, t = cutSized(t)
	return class, name, value, t
}

func cutSized(t string) (head, rest string) {
	n, shift := 0, 0
	for i := 0; ; i++ {
		n |= int(t[i]&0x7f) << shift
		if shift += 7; t[i] < 0x80 {
			return t[i+1 : i+1+n], t[i+1+n:]
		}
	}
}

// of appends the marks an object has now.
func (m *marks) of(out []held, owners []Owner, hints, labels map[string][]string) []held {
	for i := range owners {
		o := &owners[i]
		r := m.add('o', o.Kind, o.Name, o.UID)
		if o.Controller {
			r |= controls
		}
		out = append(out, held{ref: r})
	}
	out = m.values(out, 'h', hints)
	return m.values(out, 'l', labels)
}

func (m *marks) values(out []held, class byte, values map[string][]string) []held {
	if len(values) == 0 {
		return out
	}
	m.names = m.names[:0]
	for name := range values {
		m.names = append(m.names, name)
	}
	slices.Sort(m.names)
	for _, name := range m.names {
		for _, v := range values[name] {
			out = append(out, held{ref: m.add(class, name, v, "")})
		}
	}
	return out
}

// all appends the marks of an entry, those of the past behind the others.
func (e *entry) all(out []held) []held {
	if e.more != nil && e.more.marks != nil {
		return append(out, e.more.marks...)
	}
	for _, r := range e.marks[:e.count] {
		out = append(out, held{ref: r})
	}
	return out
}

// store sets the marks of an entry.
func (e *entry) store(list []held) {
	if e.more != nil {
		e.more.marks = nil
	}
	if e.count = 0; len(list) > len(e.marks) || slices.ContainsFunc(list, func(h held) bool { return h.gone != 0 }) {
		e.extra().marks = slices.Clone(list)
		return
	}
	for i, h := range list {
		e.marks[i] = h.ref
	}
	e.count = uint8(len(list))
}

// clear takes all marks from an entry.
func (m *marks) clear(e *entry) {
	for _, h := range e.all(m.scratch[:0]) {
		m.drop(h.ref)
	}
	e.store(nil)
}

// replace gives an entry the marks of a record, whatever it had.
func (m *marks) replace(e *entry, owners []Owner, hints, labels map[string][]string) {
	list := m.of(m.scratch[:0], owners, hints, labels)
	kept := len(list)
	m.scratch = e.all(list)
	e.store(m.scratch[:kept])
	for _, h := range m.scratch[kept:] {
		m.drop(h.ref)
	}
}

// merge gives an entry the marks of o, and keeps those it had until now or ceased to have within
// the ttl, as far as a record can carry them. It reports whether that leaves exactly the marks of
// o.
func (m *marks) merge(e *entry, o *Object, now time.Time, ttl time.Duration) bool {
	list := m.of(m.scratch[:0], o.Owners, o.Hints, o.Labels)
	current := len(list)
	list = e.all(list)
	kept := current
	for _, old := range list[current:] {
		has := slices.ContainsFunc(list[:kept], func(h held) bool { return (h.ref^old.ref)&^controls == 0 })
		if old.gone == 0 {
			old.gone = instant(now)
		}
		if has || now.UnixNano()-old.gone > int64(ttl) {
			m.drop(old.ref)
			continue
		}
		list[kept] = old
		kept++
	}
	fit := m.fitting(list[:kept])
	for _, h := range list[fit:kept] {
		m.drop(h.ref)
	}
	if fit < kept {
		e.overflowed(now)
	}
	e.store(list[:fit])
	m.scratch = list
	return fit == current && kept == current
}

// cover reports whether an entry has, or had lately, every mark of o: otherwise o is read by other
// hints or labels than the record that is in the log. An entry that could not take all its marks
// says so to everybody, and has nothing to add.
func (m *marks) cover(e *entry, o *Object) bool {
	if e.more != nil && e.more.overflow != 0 {
		return true
	}
	list := m.of(m.scratch[:0], o.Owners, o.Hints, o.Labels)
	current := len(list)
	list = e.all(list)
	covered := true
	for _, h := range list[:current] {
		covered = covered && slices.ContainsFunc(list[current:], func(has held) bool { return (h.ref^has.ref)&^controls == 0 })
	}
	for _, h := range list[:current] {
		m.drop(h.ref)
	}
	m.scratch = list
	return covered
}

// fitting is how many of the marks a record can carry.
func (m *marks) fitting(list []held) int {
	size := 0
	for i := range list {
		_, name, value, uid := m.parts(list[i].ref)
		if size += len(name) + len(value) + len(uid); i == MaxMarks || size > MaxMarkBytes {
			return i
		}
	}
	return len(list)
}

// tell writes the marks of an entry into a record.
func (m *marks) tell(r *Record, e *entry) {
	m.scratch = e.all(m.scratch[:0])
	for _, h := range m.scratch {
		switch class, name, value, uid := m.parts(h.ref); class {
		case 'o':
			r.Owners = append(r.Owners, Owner{Kind: name, Name: value, UID: uid, Controller: h.ref&controls != 0 && h.gone == 0})
		case 'h':
			r.Hints = add(r.Hints, name, value)
		case 'l':
			r.Labels = add(r.Labels, name, value)
		}
	}
}

func add(m map[string][]string, name, value string) map[string][]string {
	if m == nil {
		m = map[string][]string{}
	}
	m[name] = append(m[name], value)
	return m
}
