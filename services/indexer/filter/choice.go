package filter

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// The most namespaces, values and clusters that one request may name.
const (
	maxNamespaces = 100
	maxValues     = 100
	MaxClusters   = 100
)

// Choice is which objects a request is after, whatever the collection. The
// zero value takes all.
type Choice struct {
	Namespaces []string // sorted, each once; nil takes all
	named      string   // the field of the request that names them
	labels     *labelSelector
	Fields     fields.Requirements
	Index      string   // with values, sorted, each once
	Values     []string // any of them
	Strict     bool     // not without the objects that an index has no values of
}

// Scope checks the namespaces of a request, the one and the many.
func (ch *Choice) Scope(namespace string, namespaces []string) error {
	switch {
	case namespace != "" && len(namespaces) > 0:
		return rpc.InvalidArgument("namespaces", "excludes namespace")
	case namespace != "":
		ch.Namespaces, ch.named = []string{namespace}, "namespace"
		return checkNamespace("namespace", namespace)
	case len(namespaces) == 0:
		return nil
	case len(namespaces) > maxNamespaces:
		return rpc.InvalidArgument("namespaces", fmt.Sprintf("has %d entries, at most %d", len(namespaces), maxNamespaces))
	}
	for i, ns := range namespaces {
		if err := checkNamespace(fmt.Sprintf("namespaces[%d]", i), ns); err != nil {
			return err
		}
	}
	ch.Namespaces, ch.named = Unique(namespaces), "namespaces"
	return nil
}

// Selectors reads the selectors of a request.
func (ch *Choice) Selectors(labelSelector, fieldSelector string) (err error) {
	if ch.labels, err = parseLabels(labelSelector); err != nil {
		return err
	}
	ch.Fields, err = parseFields(fieldSelector)
	return err
}

// Under checks the values of an index that a request names in a field.
func (ch *Choice) Under(index, field string, values []string) error {
	if index == "" { // the choice of no index is everything
		return rpc.InvalidArgument("index", "is required")
	}
	if n := len(values); n == 0 || n > maxValues {
		return rpc.InvalidArgument(field, fmt.Sprintf("has %d entries, want 1 to %d", n, maxValues))
	}
	ch.Index, ch.Values = index, Unique(values)
	return nil
}

func checkNamespace(field, namespace string) error {
	if namespace == "" || strings.ContainsAny(namespace, "/ ") {
		return rpc.InvalidArgument(field, fmt.Sprintf("%.100q is not a namespace", namespace))
	}
	return nil
}

// Unique returns the strings in order, each once; list stays as it is.
func Unique(list []string) []string {
	if len(list) == 1 {
		return list
	}
	list = slices.Sorted(slices.Values(list))
	return slices.Compact(list)
}
