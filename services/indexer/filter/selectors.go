package filter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// The bounds of a selector, so that reading one and looking at an object with
// it are short. A term is a requirement, or a value in the list of one.
const (
	maxSelector = 64 << 10
	MaxTerms    = 1000
)

// checkSelector refuses a selector that is too large to be parsed. Commas part
// terms, and what else they may be is rare.
func checkSelector(field, text string) error {
	if len(text) > maxSelector {
		return rpc.InvalidArgument(field, fmt.Sprintf("is %d bytes long, at most %d", len(text), maxSelector))
	}
	if n := strings.Count(text, ",") + 1; n > MaxTerms {
		return rpc.InvalidArgument(field, fmt.Sprintf("has %d terms, at most %d", n, MaxTerms))
	}
	return nil
}

// labelSelector is a Kubernetes label selector made ready for many objects. A
// nil one takes all.
type labelSelector struct {
	must   []labelTerm            // the label has to be there
	unless []labelTerm            // an object without the label is taken
	byName map[string][]labelTerm // unless, when they are many
}

// labelTerm is one requirement: what the value of a label may be.
type labelTerm struct {
	name   string
	op     selection.Operator
	values []string // sorted
	bound  int64    // of > and <
}

// fewTerms is up to how many terms are looked at one by one.
const fewTerms = 8

// parseLabels reads a label selector; nil for one that takes all.
func parseLabels(text string) (*labelSelector, error) {
	if text == "" {
		return nil, nil
	}
	if err := checkSelector("label_selector", text); err != nil {
		return nil, err
	}
	sel, err := labels.Parse(text)
	if err != nil {
		return nil, rpc.InvalidField("label_selector", err)
	}
	reqs, _ := sel.Requirements()
	if len(reqs) == 0 {
		return nil, nil
	}
	s := &labelSelector{}
	for i := range reqs {
		r := &reqs[i]
		t := labelTerm{name: r.Key(), op: r.Operator(), values: slices.Sorted(slices.Values(r.ValuesUnsorted()))}
		switch t.op { //nolint:exhaustive // the others are must, and have no bound
		case selection.GreaterThan, selection.LessThan:
			if t.bound, err = strconv.ParseInt(t.values[0], 10, 64); err != nil {
				return nil, rpc.InvalidField("label_selector", err)
			}
		case selection.NotIn, selection.NotEquals, selection.DoesNotExist:
			s.unless = append(s.unless, t)
			continue
		}
		s.must = append(s.must, t)
	}
	if len(s.unless) > fewTerms {
		s.byName = map[string][]labelTerm{}
		for _, t := range s.unless {
			s.byName[t.name] = append(s.byName[t.name], t)
		}
	}
	return s, nil
}

// accepts reports whether a label that is there may have the value.
func (t *labelTerm) accepts(value string) bool {
	switch t.op {
	case selection.Exists:
		return true
	case selection.DoesNotExist:
		return false
	case selection.NotIn, selection.NotEquals:
		return !t.has(value)
	case selection.GreaterThan, selection.LessThan:
		n, err := strconv.ParseInt(value, 10, 64)
		return err == nil && (t.op == selection.GreaterThan && n > t.bound || t.op == selection.LessThan && n < t.bound)
	default: // =, ==, in
		return t.has(value)
	}
}

func (t *labelTerm) has(value string) bool {
	if len(t.values) == 1 {
		return t.values[0] == value
	}
	_, found := slices.BinarySearch(t.values, value)
	return found
}

// matches reports whether a set of labels is chosen.
func (s *labelSelector) matches(l *store.Labels) bool {
	for i := range s.must {
		if v, ok := l.Lookup(s.must[i].name); !ok || !s.must[i].accepts(v) {
			return false
		}
	}
	if s.byName == nil {
		for i := range s.unless {
			if v, ok := l.Lookup(s.unless[i].name); ok && !s.unless[i].accepts(v) {
				return false
			}
		}
		return true
	}
	// Few labels and many terms: begin with the labels.
	for _, term := range l.Terms() {
		name, _, _ := strings.Cut(term, "=")
		terms := s.byName[name]
		if len(terms) == 0 {
			continue
		}
		v := l.Get(name)
		for i := range terms {
			if !terms[i].accepts(v) {
				return false
			}
		}
	}
	return true
}

// terms returns the values of the label index under which everything is filed
// that the term takes; nil when the index cannot tell.
func (t *labelTerm) terms() []string {
	switch t.op { //nolint:exhaustive // the others say what a label is not, or how it compares
	case selection.Equals, selection.DoubleEquals, selection.In:
		list := make([]string, len(t.values))
		for i, v := range t.values {
			list[i] = t.name + "=" + v
		}
		return list
	default:
		return []string{t.name}
	}
}

// parseFields reads a field selector into its requirements; which fields there
// are is the collection's to say.
func parseFields(text string) (fields.Requirements, error) {
	if text == "" {
		return nil, nil
	}
	if err := checkSelector("field_selector", text); err != nil {
		return nil, err
	}
	sel, err := fields.ParseSelector(text)
	if err != nil {
		return nil, rpc.InvalidField("field_selector", err)
	}
	return sel.Requirements(), nil
}
