package controllerruntime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
)

// What an index is refused for.
var (
	// ErrGoIndex: a Go function cannot run at the index.
	ErrGoIndex = errors.New("controllerruntime: a Go index function needs a local cache of the type (Options.LocalFor); " +
		"Path, Label, Owner and CEL make functions that the index runs")
	// ErrIndexes: at most one of the fields of a list may be by Label, Owner or CEL.
	ErrIndexes = errors.New("controllerruntime: a list by more than one index that is not a path")
)

// definition is what the functions below return functions for: IndexField asks them by calling them
// with one, which is no object.
type definition struct {
	metav1.PartialObjectMetadata
	source string // equal for equal definitions
	path   string // of one by path
	make   func(name string) client.Indexer
}

func defined(source, path string, of func(name string) client.Indexer) crclient.IndexerFunc {
	return func(o crclient.Object) []string {
		if d, ok := o.(*definition); ok {
			d.source, d.path, d.make = source, path, of
		}
		return nil
	}
}

// Path is for IndexField: objects are indexed by the values at a path, "spec.nodeName" or
// "spec.containers[].image", see client.ByField of the module of Deltaplane. In a local cache there
// is nothing at it: use a Go function there.
func Path(path string) crclient.IndexerFunc {
	return defined("path "+path, path, func(name string) client.Indexer { return client.ByField(name, path) })
}

// Label is for IndexField: objects are indexed by the value of a label.
func Label(label string) crclient.IndexerFunc {
	return defined("label "+label, "", func(name string) client.Indexer { return client.ByLabel(name, label) })
}

// Owner is for IndexField: objects are indexed by the UID of their owners.
func Owner(which client.Owners) crclient.IndexerFunc {
	return defined(fmt.Sprintf("owner %+v", which), "", func(name string) client.Indexer { return client.ByOwner(name, which) })
}

// CEL is for IndexField: objects are indexed by what an expression over `object` returns, a string
// or a list of strings: "object.metadata.?ownerReferences[0].?name.orValue(”)".
func CEL(expression string) crclient.IndexerFunc {
	return defined("cel "+expression, "", func(name string) client.Indexer { return client.ByCEL(name, expression) })
}

// ask finds the definition that a function stands for. One of somebody's own may not like to be
// called with what is no object of its type.
func ask(f crclient.IndexerFunc) (d definition, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	f(&d)
	return d, d.make != nil
}

// buildFor is how long IndexField waits for an index to be built.
const buildFor = 3 * time.Second

// IndexField implements client.FieldIndexer: the index is declared at the service, permanently, and
// other operators that declare the same share it. A nil function stands for the path that the field
// is.
func (c *remote) IndexField(ctx context.Context, obj crclient.Object, field string, extract crclient.IndexerFunc) error {
	if extract == nil {
		extract = Path(field)
	}
	d, ok := ask(extract)
	if !ok {
		return fmt.Errorf("%w: field %q of %T", ErrGoIndex, field, obj)
	}
	key, err := c.keyOf(obj)
	if err != nil {
		return err
	}
	i, err := c.informer(key, false)
	if err != nil {
		return err
	}
	i.mu.Lock()
	old, twice := i.indexes[field]
	i.mu.Unlock()
	if twice && old.source != d.source {
		return fmt.Errorf("controllerruntime: field %q of %s is indexed by %s already, not by %s", field, i.gvk.Kind, old.source, d.source)
	}
	collection, err := i.find(ctx)
	if err != nil {
		return fmt.Errorf("controllerruntime: index %q of %s: %w", field, i.gvk.Kind, err)
	}
	if _, err := c.op.index.AddIndexers(ctx, collection, buildFor, d.make(indexName(d))); err != nil {
		return fmt.Errorf("controllerruntime: index %q of %s: %w", field, i.gvk.Kind, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.indexes[field] = d
	return nil
}

// indexName is the same for equal definitions, and a DNS label.
func indexName(d definition) string {
	sum := sha256.Sum256([]byte(d.source))
	return "field-" + hex.EncodeToString(sum[:10])
}

// query is how a list is asked for at the index.
type query struct {
	fields string // of those that are paths
	index  string
	values []string
}

// query says how the fields of a list are looked up.
func (i *informer) query(o crclient.ListOptions) (q query, err error) {
	if o.FieldSelector == nil || o.FieldSelector.Empty() {
		return q, nil
	}
	var paths []fields.Selector
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range o.FieldSelector.Requirements() {
		if r.Operator != selection.Equals && r.Operator != selection.DoubleEquals {
			return q, errors.New("non-exact field matches are not supported by the cache")
		}
		d, ok := i.indexes[r.Field]
		switch {
		case !ok && slices.Contains([]string{"metadata.name", "metadata.namespace"}, r.Field):
			paths = append(paths, fields.OneTermEqualSelector(r.Field, r.Value))
		case !ok:
			return q, fmt.Errorf("Index with name field:%s does not exist", r.Field) //nolint:staticcheck // client-go's text
		case d.path != "" && plain(d.path):
			paths = append(paths, fields.OneTermEqualSelector(d.path, r.Value))
		case q.index != "":
			return q, fmt.Errorf("%w: %s", ErrIndexes, o.FieldSelector)
		default:
			q.index, q.values = indexName(d), []string{r.Value}
		}
	}
	q.fields = fields.AndSelectors(paths...).String()
	return q, nil
}

// plain reports whether a path can be written in a field selector.
func plain(path string) bool { return !strings.ContainsAny(path, ",=!\\[]'") }

// joined is the index's key of an object.
func joined(k crclient.ObjectKey) string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// split takes a key apart.
func split(key string) (namespace, name string) {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		return "", key
	}
	return namespace, name
}
