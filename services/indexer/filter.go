package indexer

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

// filter is a choice made ready for one collection. The zero value takes all.
type filter struct {
	choice
	byField []string // the index of each field, "" for none
	none    bool     // nothing can match
}

// newFilter checks that the collection has the namespaces and fields a choice
// goes by.
func newFilter(c *follow.Collection, ch choice) (filter, error) {
	f := filter{choice: ch}
	if len(ch.namespaces) > 0 {
		if err := namespaceFits(c, ch.named, ch.namespaces[0]); err != nil {
			return f, err
		}
	}
	if len(ch.fields) == 0 {
		return f, nil
	}
	f.fields = nil
	for _, r := range ch.fields {
		var err error
		if r.Field, err = c.Field(r.Field); err != nil {
			return f, err
		}
		if r.Field != define.NamespaceField || r.Operator == selection.NotEquals || r.Value == "" {
			f.fields, f.byField = append(f.fields, r), append(f.byField, c.IndexOf(r.Field))
			continue
		}
		if err := namespaceFits(c, "field_selector", r.Value); err != nil {
			return f, err
		}
		f.none = f.none || f.namespaces != nil && !slices.Contains(f.namespaces, r.Value)
		f.namespaces = []string{r.Value}
	}
	return f, nil
}

// all reports whether nothing but namespaces chooses.
func (f *filter) all() bool {
	return f.labels == nil && len(f.fields) == 0 && f.index == "" && !f.none
}

// match reports whether an object is chosen. A faulty object is, unless its key
// or the index rules it out: what its labels and fields are cannot be known, and
// it must not look as if it did not exist. So is one of which a field could not
// be read, as far as that field goes.
func (f *filter) match(snap *store.Snapshot, o *store.Object) bool {
	if f.none || f.namespaces != nil && !contains(f.namespaces, o.Namespace()) {
		return false
	}
	for i := range f.fields {
		if !matchField(&f.fields[i], o) {
			return false
		}
	}
	if f.labels != nil && !o.Faulty() && !f.labels.matches(o.Labels()) {
		return false
	}
	if f.index == "" {
		return true
	}
	values, err := snap.Values(f.index, o)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(values, func(v string) bool { return contains(f.values, v) })
}

// judges reports whether an object, nil for none, was read by all that the
// filter goes by.
func (f *filter) judges(snap *store.Snapshot, o *store.Object) bool {
	if o == nil {
		return true
	}
	for i := range f.fields {
		if name := f.fields[i].Field; name != define.NameField && name != define.NamespaceField && !o.Faulty() {
			if _, ok := o.Field(name); !ok {
				return false
			}
		}
	}
	if f.index == "" {
		return true
	}
	_, err := snap.Values(f.index, o)
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

// contains reports whether a sorted list has the string.
func contains(list []string, s string) bool {
	if len(list) == 1 {
		return list[0] == s
	}
	_, found := slices.BinarySearch(list, s)
	return found
}

// source is a list of objects in key order, among which are all that a filter
// takes in a snapshot.
type source struct {
	snap   *store.Snapshot
	filter *filter
	hits   store.Hits
	whole  bool // the list is all objects, not hits
	total  int  // how many the list holds, within the filter's namespaces
	exact  bool // the filter takes each of them
}

// vouch returns, of a strict filter, the error of an index that it goes by and
// that has no values for some objects.
func (f *filter) vouch(snap *store.Snapshot) error {
	if !f.strict {
		return nil
	}
	for _, index := range append(slices.Clip(f.byField), f.index) {
		if index == "" {
			continue
		}
		_, err := snap.ByIndex(index)
		if failed, ok := errors.AsType[*store.FailedError](err); ok {
			return failed
		}
	}
	return nil
}

// source finds the shortest list that an index or the namespaces give. The
// error is that of the index that the filter names.
func (f *filter) source(snap *store.Snapshot) (source, error) {
	s := source{snap: snap, filter: f, whole: true, total: snap.Len(), exact: f.all()}
	if err := f.vouch(snap); err != nil {
		return s, err
	}
	if f.index != "" {
		hits, err := snap.ByIndex(f.index, f.values...)
		if err := tolerate(err, f.strict); err != nil {
			return s, err
		}
		s.hits, s.whole, s.total = hits, false, hits.Len()
		s.exact = f.labels == nil && len(f.fields) == 0 && f.namespaces == nil
	}
	switch {
	case f.none:
		s.hits, s.whole, s.total, s.exact = store.Hits{}, false, 0, true
		return s, nil
	case s.exact && f.namespaces == nil, !s.whole && s.total <= 1:
		return s, nil
	}
	s.labels()
	s.fields()
	return s, s.scope()
}

// try takes the objects under values of an index if they are fewer, and with them
// the faulty ones and those it has no values of: they may match. sole
// says that the filter asks for nothing else.
func (s *source) try(index string, values []string, sole bool) {
	n, _ := s.snap.UnindexedKeys(index, 0)
	n += s.snap.Faulty().Len()
	for _, v := range values {
		hits, err := s.snap.ByIndex(index, v)
		if n += hits.Len(); tolerate(err, false) != nil || n >= s.total {
			return
		}
	}
	if hits, err := s.snap.ByIndex(index, values...); tolerate(err, false) == nil {
		faulty := s.snap.Faulty().With(s.snap.Unindexed(index))
		hits = hits.With(faulty)
		s.hits, s.whole, s.total, s.exact = hits, false, hits.Len(), sole && faulty.Len() == 0
	}
}

func (s *source) labels() {
	f := s.filter
	if f.labels == nil {
		return
	}
	sole := len(f.labels.must) == 1 && len(f.labels.unless) == 0 && len(f.fields) == 0 && f.namespaces == nil && f.index == ""
	for i := range f.labels.must[:min(len(f.labels.must), fewTerms)] {
		t := &f.labels.must[i]
		if len(t.values) <= maxValues {
			s.try(define.LabelIndex, t.terms(), sole && t.op != selection.GreaterThan && t.op != selection.LessThan)
		}
	}
}

func (s *source) fields() {
	f := s.filter
	for i := range f.fields {
		r := &f.fields[i]
		if r.Operator == selection.NotEquals || r.Value == "" || f.byField[i] == "" {
			continue
		}
		s.try(f.byField[i], []string{r.Value}, len(f.fields) == 1 && f.labels == nil && f.namespaces == nil && f.index == "")
	}
}

// scope looks whether the namespaces hold fewer objects than the list.
func (s *source) scope() error {
	if s.filter.namespaces == nil {
		return nil
	}
	n := 0
	for _, ns := range s.filter.namespaces {
		hits, err := s.snap.ByIndex(define.NamespaceIndex, ns)
		if err != nil {
			return err
		}
		n += hits.Len()
	}
	if s.whole || n <= s.total {
		s.whole, s.total = true, n
		s.exact = s.filter.all()
	}
	return nil
}

// after walks the list from behind a key; "" begins at the first. Namespaces
// that the filter leaves out are stepped over.
func (s *source) after(key string) iter.Seq[*store.Object] {
	if s.filter.namespaces == nil {
		return s.behind(key)
	}
	return func(yield func(*store.Object) bool) {
		at, _, ok := strings.Cut(key, "/")
		if !ok {
			at = "" // a key without a namespace comes before all namespaces
		}
		for _, ns := range s.filter.namespaces {
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

func (s *source) behind(key string) iter.Seq[*store.Object] {
	if s.whole {
		return s.snap.All(key)
	}
	return s.hits.After(key)
}
