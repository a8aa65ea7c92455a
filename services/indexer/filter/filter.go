package filter

import (
	"errors"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// Filter is a choice made ready for one collection. The zero value takes all.
type Filter struct {
	Choice
	ByField []string // the index of each field, "" for none
	none    bool     // nothing can match
	limited bool     // Namespaces are all that the caller may see
}

// New checks that the collection has the namespaces and fields a choice
// goes by.
func New(c *follow.Collection, ch Choice) (Filter, error) {
	f := Filter{Choice: ch}
	if len(ch.Namespaces) > 0 {
		if err := namespaceFits(c, ch.named, ch.Namespaces[0]); err != nil {
			return f, err
		}
	}
	if len(ch.Fields) == 0 {
		return f, nil
	}
	f.Fields = nil
	for _, r := range ch.Fields {
		var err error
		if r.Field, err = c.Indexes.Field(r.Field); err != nil {
			return f, err
		}
		if r.Field != define.NamespaceField || r.Operator == selection.NotEquals || r.Value == "" {
			f.Fields, f.ByField = append(f.Fields, r), append(f.ByField, c.Indexes.IndexOf(r.Field))
			continue
		}
		if err := namespaceFits(c, "field_selector", r.Value); err != nil {
			return f, err
		}
		f.none = f.none || f.Namespaces != nil && !slices.Contains(f.Namespaces, r.Value)
		f.Namespaces = []string{r.Value}
	}
	return f, nil
}

// all reports whether nothing but namespaces chooses.
func (f *Filter) all() bool {
	return f.labels == nil && len(f.Fields) == 0 && f.Index == "" && !f.none
}

// Match reports whether an object is chosen. A faulty object is, unless its key
// or the index rules it out: what its labels and fields are cannot be known, and
// it must not look as if it did not exist. So is one of which a field could not
// be read, as far as that field goes.
func (f *Filter) Match(snap *store.Snapshot, o *store.Object) bool {
	if !f.Sees(o.Namespace()) {
		return false
	}
	for i := range f.Fields {
		if !matchField(&f.Fields[i], o) {
			return false
		}
	}
	if f.labels != nil && !o.Faulty() && !f.labels.matches(o.Labels()) {
		return false
	}
	if f.Index == "" {
		return true
	}
	values, err := snap.Values(f.Index, o)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(values, func(v string) bool { return Contains(f.Values, v) })
}

// Judges reports whether an object, nil for none, was read by all that the
// filter goes by.
func (f *Filter) Judges(snap *store.Snapshot, o *store.Object) bool {
	if o == nil {
		return true
	}
	for i := range f.Fields {
		if name := f.Fields[i].Field; name != define.NameField && name != define.NamespaceField && !o.Faulty() {
			if _, ok := o.Field(name); !ok {
				return false
			}
		}
	}
	if f.Index == "" {
		return true
	}
	_, err := snap.Values(f.Index, o)
	return err == nil
}

// matchField reports whether any of a field's values is the one asked for, or
// none is; an object without the field has the value "". One whose field is not
// known matches.
func matchField(r *fields.Requirement, o *store.Object) bool {
	negative := r.Operator == selection.NotEquals
	switch r.Field {
	case define.NameField:
		return (o.Name() == r.Value) != negative
	case define.NamespaceField:
		return (o.Namespace() == r.Value) != negative
	}
	if o.Faulty() {
		return true
	}
	values, _ := o.Field(r.Field)
	if len(values) == 0 && o.FieldErr(r.Field) != nil {
		return true
	}
	return (slices.Contains(values, r.Value) || r.Value == "" && len(values) == 0) != negative
}

// Contains reports whether a sorted list has the string.
func Contains(list []string, s string) bool {
	if len(list) == 1 {
		return list[0] == s
	}
	_, found := slices.BinarySearch(list, s)
	return found
}

// Source is a list of objects in key order, among which are all that a filter
// takes in a snapshot.
type Source struct {
	Snap   *store.Snapshot
	filter *Filter
	Hits   store.Hits
	Whole  bool // the list is all objects, not hits
	Total  int  // how many the list holds, within the filter's namespaces
	Exact  bool // the filter takes each of them
}

// Vouch returns, of a strict filter, the error of an index that it goes by and
// that has no values for some objects, of those that are visible.
func (f *Filter) Vouch(snap *store.Snapshot) error {
	if !f.Strict {
		return nil
	}
	for _, index := range append(slices.Clip(f.ByField), f.Index) {
		if index == "" {
			continue
		}
		_, err := snap.ByIndex(index)
		failed, ok := errors.AsType[*store.FailedError](err)
		if ok && f.limited {
			n, _ := f.unindexed(snap, index)
			ok = n > 0
		}
		if ok {
			return failed
		}
	}
	return nil
}

// Source finds the shortest list that an index or the namespaces give. The
// error is that of the index that the filter names.
func (f *Filter) Source(snap *store.Snapshot) (Source, error) {
	s := Source{Snap: snap, filter: f, Whole: true, Total: snap.Len(), Exact: f.all()}
	if err := f.Vouch(snap); err != nil {
		return s, err
	}
	if f.Index != "" {
		hits, err := snap.ByIndex(f.Index, f.Values...)
		if err := Tolerate(err, false); err != nil { // a strict filter was vouched for
			return s, err
		}
		s.Hits, s.Whole, s.Total = hits, false, hits.Len()
		s.Exact = f.labels == nil && len(f.Fields) == 0 && f.Namespaces == nil
	}
	switch {
	case f.none:
		s.Hits, s.Whole, s.Total, s.Exact = store.Hits{}, false, 0, true
		return s, nil
	case s.Exact && f.Namespaces == nil, !s.Whole && s.Total <= 1:
		return s, nil
	}
	s.labels()
	s.fields()
	return s, s.scope()
}

// try takes the objects under values of an index if they are fewer, and with them
// the faulty ones and those it has no values of: they may match. sole
// says that the filter asks for nothing else.
func (s *Source) try(index string, values []string, sole bool) {
	n, _ := s.Snap.UnindexedKeys(index, 0)
	n += s.Snap.Faulty().Len()
	for _, v := range values {
		hits, err := s.Snap.ByIndex(index, v)
		if n += hits.Len(); Tolerate(err, false) != nil || n >= s.Total {
			return
		}
	}
	if hits, err := s.Snap.ByIndex(index, values...); Tolerate(err, false) == nil {
		faulty := s.Snap.Faulty().With(s.Snap.Unindexed(index))
		hits = hits.With(faulty)
		s.Hits, s.Whole, s.Total, s.Exact = hits, false, hits.Len(), sole && faulty.Len() == 0
	}
}

func (s *Source) labels() {
	f := s.filter
	if f.labels == nil {
		return
	}
	sole := len(f.labels.must) == 1 && len(f.labels.unless) == 0 && len(f.Fields) == 0 && f.Namespaces == nil && f.Index == ""
	for i := range f.labels.must[:min(len(f.labels.must), fewTerms)] {
		t := &f.labels.must[i]
		if len(t.values) <= maxValues {
			s.try(define.LabelIndex, t.terms(), sole && t.op != selection.GreaterThan && t.op != selection.LessThan)
		}
	}
}

func (s *Source) fields() {
	f := s.filter
	for i := range f.Fields {
		r := &f.Fields[i]
		if r.Operator == selection.NotEquals || r.Value == "" || f.ByField[i] == "" {
			continue
		}
		s.try(f.ByField[i], []string{r.Value}, len(f.Fields) == 1 && f.labels == nil && f.Namespaces == nil && f.Index == "")
	}
}

// scope looks whether the namespaces hold fewer objects than the list.
func (s *Source) scope() error {
	if s.filter.Namespaces == nil {
		return nil
	}
	n := 0
	for _, ns := range s.filter.Namespaces {
		hits, err := s.Snap.ByIndex(define.NamespaceIndex, ns)
		if err != nil {
			return err
		}
		n += hits.Len()
	}
	if s.Whole || n <= s.Total {
		s.Whole, s.Total = true, n
		s.Exact = s.filter.all()
	}
	return nil
}

// Bound is at least how many objects the filter takes: a number that says nothing of other
// namespaces than the filter's.
func (s *Source) Bound() int {
	if s.filter.Namespaces == nil || s.filter.none {
		return s.Total
	}
	n := 0
	for _, ns := range s.filter.Namespaces {
		hits, err := s.Snap.ByIndex(define.NamespaceIndex, ns)
		if err != nil {
			return s.Total
		}
		n += hits.Len()
	}
	return n
}

// After walks the list from behind a key; "" begins at the first. Namespaces
// that the filter leaves out are stepped over.
func (s *Source) After(key string) iter.Seq[*store.Object] {
	if s.filter.Namespaces == nil {
		return s.behind(key)
	}
	return func(yield func(*store.Object) bool) {
		at, _, ok := strings.Cut(key, "/")
		if !ok {
			at = "" // a key without a namespace comes before all namespaces
		}
		for _, ns := range s.filter.Namespaces {
			from := ns + "/"
			switch {
			case ns < at:
				continue
			case ns == at:
				from = key
			}
			for o := range s.behind(from) {
				if o.Namespace() != ns {
					break
				}
				if !yield(o) {
					return
				}
			}
		}
	}
}

func (s *Source) behind(key string) iter.Seq[*store.Object] {
	if s.Whole {
		return s.Snap.All(key)
	}
	return s.Hits.After(key)
}
