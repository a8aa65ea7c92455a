package client

import (
	"context"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// ListOptions choose objects of a collection. What is set must all hold; the zero
// value takes every object.
type ListOptions struct {
	ReadOptions
	// Namespace, when set, is the only one looked at; it excludes Namespaces, of
	// which there may be 100.
	Namespace  string
	Namespaces []string
	// Labels and FieldSelector are selectors as kubectl writes them: "app=web,tier!=db",
	// "spec.nodeName=n1,status.phase!=Running". Fields are metadata.name,
	// metadata.namespace and the paths of field indexes. Either has at most 1,000 terms.
	Labels, FieldSelector string
	// Index, when set, takes only objects filed under any of Values, of which there
	// are 1 to 100. Each object comes once, however many of them it has.
	Index  string
	Values []string
	// Clusters to look in, or "*" alone for every one. The collection then names the
	// resource without a cluster ("pods.v1"); objects come cluster by cluster, each
	// with its Collection, and there is a revision for each. AtLeast cannot be used:
	// wait for each collection with [Index.WaitFor] first.
	Clusters []string
	// SkipUnsynced leaves out clusters whose collection cannot be read, where the call
	// would fail with [ErrNotSynced]. It is for [Index.Page], which names them; calls
	// that cannot refuse it.
	SkipUnsynced bool
	// PageSize is how many objects one call returns, at most 5,000. Default: the
	// server's, 500, and 5,000 by an index.
	PageSize int
}

// Page is one page of a listing, in key order.
type Page struct {
	Objects []Object
	// Next is the token of the page behind it; empty at the end.
	Next string
	// Bounds are what all pages of one listing were read at. With Clusters they are
	// zero, and Reading has those of each collection.
	Bounds  Bounds
	Reading Reading
	// Remaining is how many objects follow: exact when only namespaces choose, else an
	// upper bound. It is not known by an index, and 0.
	Remaining int64
	// LeftOut names the collections that SkipUnsynced has left out: of pages that
	// follow also such as could not be read any more, of which earlier ones may have
	// some objects.
	LeftOut []string
}

// whole refuses what may leave out clusters, for calls that do not name them.
func (o ListOptions) whole() error {
	if o.SkipUnsynced {
		return rpc.Status(rpc.InvalidArgument("skip_unsynced", "is taken by Page alone, which names what is left out"), nil)
	}
	return nil
}

func (o ListOptions) byIndex() bool { return o.Index != "" || len(o.Values) > 0 }

// paged is an answer in pages.
type paged interface {
	GetObjects() []*indexv1.Object
	GetNextPageToken() string
	GetRevision() *deltav1.Revision
	GetUpper() *deltav1.Revision
	GetQuarantinedKeys() []string
	GetQuarantined() []*indexv1.QuarantinedKey
	GetRevisions() []*deltav1.CollectionRevision
	GetLeftOut() []string
}

func (x *Index) page(ctx context.Context, collection string, o ListOptions, token string) (Page, error) {
	if !o.byIndex() {
		resp, err := x.c.List(ctx, &indexv1.ListRequest{
			Collection: collection, Namespace: o.Namespace, Namespaces: o.Namespaces, LabelSelector: o.Labels, FieldSelector: o.FieldSelector,
			PageSize: int32(o.PageSize), PageToken: token, Consistency: o.consistency(), View: indexv1.View(o.View), FieldMask: o.mask(), Clusters: o.Clusters,
			SkipUnsynced: o.SkipUnsynced, Strict: o.Strict, VisibleOnly: o.VisibleOnly,
		})
		o.unindexed(resp.GetUnindexed())
		p := fromPage(resp, err)
		p.Remaining = resp.GetRemaining()
		return p, err
	}
	namespaces := o.Namespaces
	if o.Namespace != "" {
		if len(namespaces) > 0 {
			return Page{}, rpc.Status(rpc.InvalidArgument("namespaces", "excludes namespace"), nil)
		}
		namespaces = []string{o.Namespace}
	}
	resp, err := x.c.ByIndex(ctx, &indexv1.ByIndexRequest{
		Collection: collection, Index: o.Index, Values: o.Values, Namespaces: namespaces, LabelSelector: o.Labels, FieldSelector: o.FieldSelector,
		PageSize: int32(o.PageSize), PageToken: token, Consistency: o.consistency(), View: indexv1.View(o.View), FieldMask: o.mask(), Clusters: o.Clusters,
		SkipUnsynced: o.SkipUnsynced, Strict: o.Strict, VisibleOnly: o.VisibleOnly,
	})
	o.unindexed(resp.GetUnindexed())
	return fromPage(resp, err), err
}

func fromPage(resp paged, err error) Page {
	if err != nil {
		return Page{}
	}
	p := Page{
		Objects: fromObjects(resp.GetObjects(), resp.GetQuarantinedKeys(), resp.GetQuarantined()), Next: resp.GetNextPageToken(), Bounds: fromBounds(resp.GetRevision(), resp.GetUpper()),
		LeftOut: resp.GetLeftOut(),
	}
	if list := resp.GetRevisions(); len(list) > 0 {
		p.Reading = fromReading(list)
	}
	return p
}

// fromObjects also marks those that could not be read: they have no payload and
// their keys are named, in the order of the objects; over several clusters with
// their collections, by servers that know how.
func fromObjects(in []*indexv1.Object, keys []string, named []*indexv1.QuarantinedKey) []Object {
	out := make([]Object, len(in))
	next := 0
	for i, o := range in {
		out[i] = fromObject(o)
		if next < len(keys) && keys[next] == o.GetKey() && len(o.GetPayload()) == 0 &&
			(len(named) != len(keys) || named[next].GetCollection() == o.GetCollection()) {
			out[i].Quarantined = true
			next++
		}
	}
	return out
}

// Count returns how many objects match, and the bounds they were counted at,
// which are zero with Clusters. An object under several of Values counts once.
func (x *Index) Count(ctx context.Context, collection string, o ListOptions) (int64, Bounds, error) {
	if err := o.whole(); err != nil {
		return 0, Bounds{}, wrap(err, "count %s", collection)
	}
	resp, err := x.c.Count(ctx, &indexv1.CountRequest{
		Collection: collection, Namespace: o.Namespace, Namespaces: o.Namespaces, LabelSelector: o.Labels, FieldSelector: o.FieldSelector,
		Index: o.Index, Values: o.Values, Clusters: o.Clusters, Consistency: o.consistency(), Strict: o.Strict, VisibleOnly: o.VisibleOnly,
	})
	if err != nil {
		return 0, Bounds{}, wrap(err, "count %s", collection)
	}
	o.unindexed(resp.GetUnindexed())
	return resp.GetCount(), fromBounds(resp.GetRevision(), resp.GetUpper()), nil
}

// Similar is the answer of [Index.ByExample].
type Similar struct {
	// Objects share a value with the example, each once, in key order.
	Objects []Object
	// Values are the example's.
	Values []string
	Bounds Bounds
}

// ByExample returns the objects that share a value of an index with an example, an
// object in JSON, which need not exist.
func (x *Index) ByExample(ctx context.Context, collection, index string, example []byte, o ReadOptions) (Similar, error) {
	resp, err := x.c.Index(ctx, &indexv1.IndexRequest{Collection: collection, Index: index, Object: example, Consistency: o.consistency(), View: indexv1.View(o.View), FieldMask: o.mask(), Strict: o.Strict, VisibleOnly: o.VisibleOnly})
	if err != nil {
		return Similar{}, wrap(err, "by example %s %s", collection, index)
	}
	o.unindexed(resp.GetUnindexed())
	return Similar{fromObjects(resp.GetObjects(), resp.GetQuarantinedKeys(), nil), resp.GetValues(), fromBounds(resp.GetRevision(), resp.GetUpper())}, nil
}
