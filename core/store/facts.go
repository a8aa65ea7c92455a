package store

import (
	"cmp"
	"slices"
	"strings"
)

// Pair is a label: a name with a value.
type Pair struct{ Name, Value string }

// Labels is a set of labels made ready for selectors and for an index. It is
// immutable, and a nil one is empty. It has the methods of a Kubernetes label
// set, so a parsed selector reads it without a copy.
type Labels struct {
	shared
	pairs []Pair
	terms []string
}

// NewLabels returns the set of the pairs, which it may reorder; nil if there
// are none. A name may come with several values: selectors see the first.
func NewLabels(pairs []Pair) *Labels {
	if len(pairs) == 0 {
		return nil
	}
	slices.SortFunc(pairs, func(a, b Pair) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.Value, b.Value))
	})
	l := &Labels{pairs: pairs, terms: make([]string, 0, 2*len(pairs))}
	for i, p := range pairs {
		if i == 0 || pairs[i-1].Name != p.Name {
			l.terms = append(l.terms, p.Name)
		}
		l.terms = append(l.terms, p.Name+"="+p.Value)
	}
	slices.Sort(l.terms)
	l.terms = slices.Compact(l.terms)
	l.size = 96
	for _, t := range l.terms {
		l.size += int32(len(t) + 24) // the pairs' own strings are counted as shared by other sets
	}
	l.size += int32(32 * len(pairs))
	return l
}

// Terms returns, sorted, "name" and "name=value" of every label: the values of
// an index that answers both existence and equality. It must not be changed.
func (l *Labels) Terms() []string {
	if l == nil {
		return nil
	}
	return l.terms
}

// Pairs returns the labels by name, then value. It must not be changed.
func (l *Labels) Pairs() []Pair {
	if l == nil {
		return nil
	}
	return l.pairs
}

// Lookup returns the value of a label and whether the set has it.
func (l *Labels) Lookup(name string) (string, bool) {
	if l == nil {
		return "", false
	}
	for i := range l.pairs {
		if l.pairs[i].Name == name {
			return l.pairs[i].Value, true
		}
	}
	return "", false
}

// Has reports whether the set has a label.
func (l *Labels) Has(name string) bool { _, ok := l.Lookup(name); return ok }

// Get returns the value of a label, "" when the set does not have it.
func (l *Labels) Get(name string) string { v, _ := l.Lookup(name); return v }

// Owner is one entry of an object's owner references.
type Owner struct {
	Kind, Name, UID string
	Controller      bool
}

// Owners is an immutable list of owner references; a nil one is empty.
type Owners struct {
	shared
	list []Owner
	uids []string
}

// NewOwners returns the list, which must not be changed any more; nil if there
// are none.
func NewOwners(list []Owner) *Owners {
	if len(list) == 0 {
		return nil
	}
	o := &Owners{list: list}
	for i := range list {
		if list[i].UID != "" {
			o.uids = append(o.uids, list[i].UID)
		}
	}
	slices.Sort(o.uids)
	o.uids = slices.Clip(slices.Compact(o.uids))
	o.size = 64
	for i := range list {
		o.size += int32(80 + len(list[i].Name) + len(list[i].UID))
	}
	return o
}

// List returns the owners in the order of the object. It must not be changed.
func (o *Owners) List() []Owner {
	if o == nil {
		return nil
	}
	return o.list
}

// UIDs returns the UIDs of the owners that have one, sorted, each once. It must
// not be changed.
func (o *Owners) UIDs() []string {
	if o == nil {
		return nil
	}
	return o.uids
}

// Field is what was read of one declared field: its values, or why not.
type Field struct {
	Name   string
	Values []string
	Err    error
}

// Reading is a [Field] that objects share. It is immutable.
type Reading struct {
	shared
	field Field
}

// NewReading returns the reading of a field, whose values must not be changed
// any more.
func NewReading(f Field) *Reading {
	r := &Reading{field: f}
	r.size = 80
	for _, v := range f.Values {
		r.size += int32(24 + len(v))
	}
	return r
}

// Field is what was read.
func (r *Reading) Field() Field { return r.field }

// Fields are the declared fields of an object, read at ingest. They are
// immutable; a nil one has none. Few objects agree in all of their fields, but
// many in each of them, so that a set is little more than pointers to readings.
type Fields struct {
	shared
	list []*Reading
}

// NewFields returns the fields, which it may reorder and which must not be
// changed any more; nil if there are none. Of two with one name the first is
// kept.
func NewFields(list []Field) *Fields {
	readings := make([]*Reading, len(list))
	for i, f := range list {
		readings[i] = NewReading(f)
	}
	return JoinFields(readings)
}

// JoinFields is NewFields of readings that other sets may share. It may reorder
// the list, and does not keep it.
func JoinFields(list []*Reading) *Fields {
	if len(list) == 0 {
		return nil
	}
	for i := 1; i < len(list); i++ {
		if list[i-1].field.Name >= list[i].field.Name {
			slices.SortStableFunc(list, func(a, b *Reading) int { return strings.Compare(a.field.Name, b.field.Name) })
			list = slices.CompactFunc(list, func(a, b *Reading) bool { return a.field.Name == b.field.Name })
			break
		}
	}
	f := fieldsOf(len(list))
	copy(f.list, list)
	f.size = int32(32 + 8*max(2, len(list)))
	return f
}

// fieldsOf makes a set with room for n readings, in one allocation if they are
// few.
func fieldsOf(n int) *Fields {
	switch {
	case n <= 2:
		x := &struct {
			Fields
			few [2]*Reading
		}{}
		x.list = x.few[:n]
		return &x.Fields
	case n <= 4:
		x := &struct {
			Fields
			few [4]*Reading
		}{}
		x.list = x.few[:n]
		return &x.Fields
	}
	return &Fields{list: make([]*Reading, n)}
}

// count is that of the set and of the readings that no other set has.
func (f *Fields) count(sign int) int {
	n := f.shared.count(sign)
	if n == 0 {
		return 0
	}
	for _, r := range f.list {
		n += r.count(sign)
	}
	return n
}

// List returns the fields by name, in a list of its own; values must not be
// changed.
func (f *Fields) List() []Field {
	if f == nil {
		return nil
	}
	list := make([]Field, len(f.list))
	for i, r := range f.list {
		list[i] = r.field
	}
	return list
}

// Readings returns the fields by name. It must not be changed.
func (f *Fields) Readings() []*Reading {
	if f == nil {
		return nil
	}
	return f.list
}

func (f *Fields) get(name string) (Field, bool) {
	if f != nil {
		for _, r := range f.list {
			if r.field.Name == name {
				return r.field, true
			}
		}
	}
	return Field{}, false
}
