package indexer

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// maxSelector bounds a selector's length; it is parsed and evaluated in time
// proportional to it.
const maxSelector = 64 << 10

// filter chooses objects. The zero value takes all.
type filter struct {
	namespace string
	labels    labels.Selector // nil takes all
	fields    []fields.Requirement
	index     string
	value     string
	none      bool // nothing can match
}

// newFilter checks and reads the selectors of a request.
func (c *collection) newFilter(namespace, labelSelector, fieldSelector string) (filter, error) {
	f := filter{namespace: namespace}
	if err := checkNamespace(namespace); err != nil {
		return f, err
	}
	if labelSelector != "" {
		sel, err := parseLabels(labelSelector)
		if err != nil {
			return f, err
		}
		f.labels = sel
	}
	if fieldSelector == "" {
		return f, nil
	}
	if len(fieldSelector) > maxSelector {
		return f, rpc.InvalidArgument("field_selector", fmt.Sprintf("is %d bytes long, at most %d", len(fieldSelector), maxSelector))
	}
	sel, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return f, rpc.InvalidField("field_selector", err)
	}
	for _, r := range sel.Requirements() {
		if !slices.Contains(c.fieldNames(), r.Field) {
			return f, rpc.InvalidArgument("field_selector",
				fmt.Sprintf("field %q is not indexed in %s; there are %s", r.Field, c.name, strings.Join(c.fieldNames(), ", ")))
		}
		if r.Field == "metadata.namespace" && r.Operator != selection.NotEquals {
			f.none = f.none || f.namespace != "" && f.namespace != r.Value
			f.namespace = r.Value
			continue
		}
		f.fields = append(f.fields, r)
	}
	return f, nil
}

func checkNamespace(namespace string) error {
	if strings.ContainsAny(namespace, "/ ") {
		return rpc.InvalidArgument("namespace", fmt.Sprintf("%q is not a namespace", namespace))
	}
	return nil
}

func parseLabels(text string) (labels.Selector, error) {
	if len(text) > maxSelector {
		return nil, rpc.InvalidArgument("label_selector", fmt.Sprintf("is %d bytes long, at most %d", len(text), maxSelector))
	}
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, rpc.InvalidField("label_selector", err)
	}
	if sel.Empty() {
		return nil, nil
	}
	return sel, nil
}

// fieldNames are the fields that selectors may use.
func (c *collection) fieldNames() []string {
	return append([]string{"metadata.name", "metadata.namespace"}, c.extract.paths...)
}

// all reports whether only the namespace chooses.
func (f *filter) all() bool { return f.labels == nil && len(f.fields) == 0 && f.index == "" && !f.none }

// match reports whether an object is chosen. A faulty object is, unless its key
// rules it out: what its labels and fields are cannot be known, and it must not
// look as if it did not exist.
func (f *filter) match(snap *store.Snapshot, o *store.Object) bool {
	if f.none || f.namespace != "" && o.Namespace() != f.namespace {
		return false
	}
	for i := range f.fields {
		r := &f.fields[i]
		var value string
		switch r.Field {
		case "metadata.name":
			value = o.Name()
		case "metadata.namespace":
			value = o.Namespace()
		default:
			if o.Fault != "" {
				continue
			}
			value, _ = o.Field(r.Field)
		}
		if (value == r.Value) == (r.Operator == selection.NotEquals) {
			return false
		}
	}
	if f.labels != nil && o.Fault == "" && !f.labels.Matches(o.Labels) {
		return false
	}
	if f.index == "" {
		return true
	}
	values, err := snap.Values(f.index, o)
	if err != nil {
		return false
	}
	_, found := slices.BinarySearch(values, f.value)
	return found
}

// candidates walks, in key order and after a key, objects among which are all
// that match: the shortest list that an index or the namespace gives.
func (f *filter) candidates(snap *store.Snapshot, after string) iter.Seq[*store.Object] {
	if f.none {
		return func(func(*store.Object) bool) {}
	}
	var best store.Hits
	found := false
	try := func(index string, values ...string) {
		if hits, err := snap.ByIndex(index, values...); err == nil && (!found || hits.Len() < best.Len()) {
			best, found = hits, true
		}
	}
	if f.index != "" {
		try(f.index, f.value)
	}
	if f.labels != nil && snap.Faults() == 0 {
		reqs, _ := f.labels.Requirements()
		for _, r := range reqs {
			switch r.Operator() { //nolint:exhaustive // the others say what a label is not
			case selection.Equals, selection.DoubleEquals, selection.In:
				if len(r.ValuesUnsorted()) == 1 {
					try(labelIndex, r.Key()+"="+r.ValuesUnsorted()[0])
				}
			case selection.Exists:
				try(labelIndex, r.Key())
			}
		}
	}
	if found {
		if f.namespace != "" {
			if hits, err := snap.ByIndex(namespaceIndex, f.namespace); err == nil && hits.Len() < best.Len() {
				return snap.Namespace(f.namespace, after)
			}
		}
		return best.After(after)
	}
	if f.namespace != "" {
		return snap.Namespace(f.namespace, after)
	}
	return snap.All(after)
}
