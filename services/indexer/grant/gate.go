package grant

import (
	"context"
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/seal"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// Gate asks an authority. Without one every caller may read everything.
type Gate struct {
	Authority *authority.Authority
	// Encryption names the resources whose content takes the right to get it, however it is read.
	Encryption seal.Policy
}

// The verbs of reads.
const (
	get   = "get"
	list  = "list"
	watch = "watch"
)

// Indexes is the resource of what is declared about collections; its objects are named as the
// collections' resources: "pods.v1".
const Indexes = "indexes"

// Reach is what a read covers of its collections, and the selectors as the request has them.
type Reach struct {
	Namespaces                   []string // none for all
	LabelSelector, FieldSelector string
	Index                        string
	Values                       []string
	// Content says that the answer holds more of the objects than their keys.
	Content bool
}

// namespaces are those that the read is limited to: the values of the index of namespaces are some.
func (r *Reach) namespaces() []string {
	if len(r.Namespaces) == 0 && r.Index == define.NamespaceIndex {
		return r.Values
	}
	return r.Namespaces
}

// fields are the field selector and, of one node's pods, the index as one.
func (r *Reach) fields() string {
	if r.Index != define.NodeIndex || len(r.Values) != 1 {
		return r.FieldSelector
	}
	node := fields.OneTermEqualSelector(define.NodeField, r.Values[0]).String()
	if r.FieldSelector == "" {
		return node
	}
	return r.FieldSelector + "," + node
}

// name is the only name that a field selector lets through; empty for others.
func name(fieldSelector string) string {
	if !strings.Contains(fieldSelector, define.NameField) {
		return ""
	}
	s, err := fields.ParseSelector(fieldSelector)
	if err != nil {
		return ""
	}
	name, _ := s.RequiresExactMatch(define.NameField)
	return name
}

func attributes(verb string, id delta.Collection) access.Attributes {
	return access.Attributes{Verb: verb, Cluster: id.Cluster, Group: id.Group, Version: id.Version, Resource: id.Resource}
}

// Grant is what a caller was permitted. Its zero value is of a gate that asks nobody.
type Grant struct {
	gate    Gate
	wants   []authority.Want
	ids     []delta.Collection
	whole   bool             // all of the collections was wanted
	id      delta.Collection // of keys, in place of wants and ids
	keys    []string
	version uint64
	sight   *sight // of a request for what is visible
}

func (g Gate) allow(ctx context.Context, ids []delta.Collection, whole bool, wants []authority.Want) (Grant, error) {
	version := g.Authority.Version()
	if err := g.Authority.Allow(ctx, wants...); err != nil {
		return Grant{}, err
	}
	return Grant{gate: g, wants: wants, ids: ids, whole: whole, version: version}, nil
}

// Objects permits to get objects by their keys.
func (g Gate) Objects(ctx context.Context, id delta.Collection, keys ...string) (Grant, error) {
	if g.Authority == nil {
		return Grant{}, nil
	}
	version := g.Authority.Version()
	if err := g.objects(ctx, id, keys); err != nil {
		return Grant{}, err
	}
	return Grant{gate: g, id: id, keys: keys, version: version}, nil
}

// objects asks for the right to get all of a namespace first, which is enough for all of its keys.
func (g Gate) objects(ctx context.Context, id delta.Collection, keys []string) error {
	var wants []authority.Want
	seen, held := "", false
	for i, key := range keys {
		namespace, object, found := strings.Cut(key, "/")
		if !found {
			namespace, object = "", key
		}
		if i > 0 && namespace == seen && held {
			continue
		}
		all := attributes(get, id)
		all.Namespace = namespace
		seen, held = namespace, !g.Authority.ByName() && g.Authority.Permits(ctx, &all)
		if held {
			continue
		}
		one := all
		one.Name = object
		if g.Authority.ByName() {
			wants = append(wants, authority.Want{one})
		} else {
			wants = append(wants, authority.Want{all, one})
		}
	}
	return g.Authority.Allow(ctx, wants...)
}

// List permits to list what a read covers.
func (g Gate) List(ctx context.Context, r Reach, ids ...delta.Collection) (Grant, error) {
	if g.Authority == nil {
		return Grant{}, nil
	}
	return g.allow(ctx, ids, r.whole(), g.wants(&r, ids, list))
}

// Watch permits to list and to watch what a read covers, for as long as the stream lasts.
func (g Gate) Watch(ctx context.Context, r Reach, id delta.Collection) (Grant, error) {
	if g.Authority == nil {
		return Grant{}, nil
	}
	ids := []delta.Collection{id}
	wants, version := g.wants(&r, ids, list, watch), g.Authority.Version()
	if err := g.Authority.Keep(ctx, wants...); err != nil {
		return Grant{}, err
	}
	return Grant{gate: g, wants: wants, ids: ids, whole: r.whole(), version: version}, nil
}

// whole reports whether the right to the read is one to all of its collections.
func (r *Reach) whole() bool {
	return len(r.namespaces()) == 0 && r.LabelSelector == "" && r.fields() == ""
}

// reveals reports whether what is answered tells of the content of objects beyond their metadata.
func (r *Reach) reveals() bool {
	if r.Content || r.Index != "" && !slices.Contains(define.MetadataIndexes, r.Index) {
		return true
	}
	if r.FieldSelector == "" {
		return false
	}
	s, err := fields.ParseSelector(r.FieldSelector)
	return err != nil || slices.ContainsFunc(s.Requirements(), func(q fields.Requirement) bool {
		return !slices.Contains(define.MetadataFields, q.Field)
	})
}

// verbs are those that a read of a collection takes in place of the ones of any other.
func (g Gate) verbs(r *Reach, id delta.Collection, verbs []string) []string {
	if g.Encryption.Lists(id.Group, id.Resource) && !slices.Contains(verbs, get) && r.reveals() {
		return append(slices.Clip(verbs), get)
	}
	return verbs
}

// wants are the rights that the verbs take. A selector only makes a read narrower, so it counts
// where the read without it is not permitted: to those who see only what it lets through.
func (g Gate) wants(r *Reach, ids []delta.Collection, verbs ...string) []authority.Want {
	namespaces := r.namespaces()
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	fieldSelector := r.fields()
	only := name(fieldSelector)
	wants := make([]authority.Want, 0, len(ids)*len(namespaces)*len(verbs))
	for _, id := range ids {
		for _, namespace := range namespaces {
			for _, verb := range g.verbs(r, id, verbs) {
				all := attributes(verb, id)
				all.Namespace = namespace
				w := authority.Want{all}
				if fieldSelector != "" || r.LabelSelector != "" {
					all.Name, all.FieldSelector, all.LabelSelector = only, fieldSelector, r.LabelSelector
					w = append(w, all)
				}
				wants = append(wants, w)
			}
		}
	}
	return wants
}

// Indexes permits a verb on the indexes of a resource in a cluster; to create one takes the right
// to list the whole collection too, of which it shows values.
func (g Gate) Indexes(ctx context.Context, verb, resource string, ids ...delta.Collection) error {
	if g.Authority == nil {
		return nil
	}
	wants := []authority.Want{authority.Named(verb, Indexes, resource)}
	if verb == "create" {
		whole := Reach{}
		wants = append(wants, g.wants(&whole, ids, get, list)...)
	}
	return g.Authority.Allow(ctx, wants...)
}

// Still asks again after a wait, if something has changed meanwhile.
func (g *Grant) Still(ctx context.Context) error {
	if g.gate.Authority == nil || g.gate.Authority.Version() == g.version {
		return nil
	}
	if g.sight != nil {
		again, err := g.gate.look(ctx, g.sight)
		if err == nil {
			*g = again
		}
		return err
	}
	if g.keys != nil {
		return g.gate.objects(ctx, g.id, g.keys)
	}
	return g.gate.Authority.Allow(ctx, g.wants...)
}

// Whole reports whether the caller may list all of a collection.
func (g Gate) Whole(ctx context.Context, id delta.Collection) (bool, error) {
	if g.Authority == nil {
		return true, nil
	}
	whole, _, err := g.Authority.Holds(ctx, authority.Want{attributes(list, id)})
	return whole, err
}

// Unindexed leaves of what is said about the objects that an index has no values of what the caller
// may see: they are those of the whole collection, so others get the name of the index alone.
func (g *Grant) Unindexed(ctx context.Context, unindexed []*indexv1.UnindexedObjects) []*indexv1.UnindexedObjects {
	if len(unindexed) == 0 || g.sight != nil || g.sees(ctx) {
		return unindexed // what is visible is all that was counted
	}
	out := make([]*indexv1.UnindexedObjects, len(unindexed))
	for i, u := range unindexed {
		out[i] = &indexv1.UnindexedObjects{Index: u.GetIndex(), Collection: u.GetCollection()}
	}
	return out
}

// sees reports whether the caller may list all of the grant's collections.
func (g *Grant) sees(ctx context.Context) bool {
	if g.gate.Authority == nil || g.whole {
		return true
	}
	ids := g.ids
	if g.keys != nil {
		ids = []delta.Collection{g.id}
	}
	for _, id := range ids {
		if ok, err := g.gate.Whole(ctx, id); err != nil || !ok {
			return false
		}
	}
	return true
}

// Failed leaves of the error of an index that has no values for some objects what the caller may
// see: it counts and names objects of the whole collection.
func (g *Grant) Failed(ctx context.Context, collection string, err error) error {
	_, failed := errors.AsType[*store.FailedError](err)
	if !failed && !errors.Is(err, fault.ErrIndexFailed) || g.sees(ctx) {
		return err
	}
	return fault.New(fault.ErrIndexFailed, "an index in "+collection+" has no values for some objects", "collection", collection)
}
