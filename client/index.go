package client

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Index reads collections. It is safe for concurrent use. Collections are named
// in full ("dev/pods.v1") or by any short form the server accepts.
type Index struct{ c indexv1.IndexServiceClient }

// NewIndex returns a client on a connection to an indexer.
func NewIndex(conn grpc.ClientConnInterface) *Index {
	return &Index{c: indexv1.NewIndexServiceClient(conn)}
}

// Object is one stored object. Payload is its JSON, as the view asked; it must
// not be changed.
type Object struct {
	Key, UID, ResourceVersion string
	Payload                   []byte
}

// The views of a read.
const (
	ViewFull     = indexv1.View_VIEW_FULL
	ViewMetadata = indexv1.View_VIEW_METADATA
	ViewKeys     = indexv1.View_VIEW_KEYS
)

// ReadOptions say how current a read must be and how much it returns. The zero
// value takes any synced state, and whole objects.
type ReadOptions struct {
	// AtLeast is the least revision the answer may be of; see [Item.AtLeast].
	AtLeast Revision
	// Timeout is how long the server may wait for that. Default: the server's, 3 s.
	Timeout time.Duration
	// View is ViewFull, ViewMetadata or ViewKeys. Default ViewFull.
	View indexv1.View
	// Fields are paths to keep, "metadata.name"; it excludes View.
	Fields []string
}

func (o ReadOptions) consistency() *indexv1.Consistency {
	if o.AtLeast.IsZero() {
		return nil
	}
	c := &indexv1.Consistency{AtLeast: toRevision(o.AtLeast)}
	if o.Timeout > 0 {
		c.Timeout = durationpb.New(o.Timeout)
	}
	return c
}

func (o ReadOptions) mask() *fieldmaskpb.FieldMask {
	if len(o.Fields) == 0 {
		return nil
	}
	return &fieldmaskpb.FieldMask{Paths: o.Fields}
}

// Get returns one object and the revision it was read at. Errors:
// [ErrKeyNotFound], [ErrCollectionNotFound], [ErrNotSynced], [ErrRevisionNotReached].
func (x *Index) Get(ctx context.Context, collection, key string, o ReadOptions) (Object, Revision, error) {
	resp, err := x.c.Get(ctx, &indexv1.GetRequest{Collection: collection, Key: key, Consistency: o.consistency(), View: o.View, FieldMask: o.mask()})
	if err != nil {
		return Object{}, Revision{}, wrap(err, "get %s %s", collection, key)
	}
	return fromObject(resp.GetObject()), fromRevision(resp.GetRevision()), nil
}

// Find is Get for a key that may be absent: found is false then, and the
// revision is the one that does not hold it.
func (x *Index) Find(ctx context.Context, collection, key string, o ReadOptions) (obj Object, found bool, rev Revision, err error) {
	objs, _, rev, err := x.BatchGet(ctx, collection, []string{key}, o)
	if err != nil || len(objs) == 0 {
		return Object{}, false, rev, err
	}
	return objs[0], true, rev, nil
}

// BatchGet returns the objects of up to 1,000 keys from one snapshot, in the
// order asked for, and the keys that do not exist. A quarantined key makes it
// fail with [ErrKeyQuarantined].
func (x *Index) BatchGet(ctx context.Context, collection string, keys []string, o ReadOptions) (objs []Object, missing []string, rev Revision, err error) {
	resp, err := x.c.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: collection, Keys: keys, Consistency: o.consistency(), View: o.View, FieldMask: o.mask()})
	if err != nil {
		return nil, nil, Revision{}, wrap(err, "batch get %s", collection)
	}
	if bad := resp.GetQuarantinedKeys(); len(bad) > 0 {
		return nil, nil, Revision{}, &Error{Op: "batch get " + collection + " " + bad[0], Reason: "KEY_QUARANTINED", err: ErrKeyQuarantined}
	}
	return fromObjects(resp.GetObjects()), resp.GetMissingKeys(), fromRevision(resp.GetRevision()), nil
}

// ListOptions choose objects of a collection.
type ListOptions struct {
	ReadOptions
	// Namespace, when set, is the only one looked at; it excludes Namespaces, of
	// which there may be 100.
	Namespace  string
	Namespaces []string
	// Labels and FieldSelector are selectors as kubectl writes them.
	Labels, FieldSelector string
	// PageSize is how many objects one call returns. Default: the server's.
	PageSize int
}

// List returns every object that matches, in key order, and the revision they
// were read at. The pages come from one snapshot; when it is gone before the end
// (a replica restarted), the listing begins again.
func (x *Index) List(ctx context.Context, collection string, o ListOptions) ([]Object, Revision, error) {
	for attempt := 1; ; attempt++ {
		objs, rev, err := x.list(ctx, collection, o)
		if err == nil || !errors.Is(err, errSnapshotGone) || attempt == 5 {
			return objs, rev, err
		}
	}
}

func (x *Index) list(ctx context.Context, collection string, o ListOptions) ([]Object, Revision, error) {
	var all []Object
	for token := ""; ; {
		resp, err := x.page(ctx, collection, o, token)
		if err != nil {
			return nil, Revision{}, wrap(err, "list %s", collection)
		}
		all = append(all, fromObjects(resp.GetObjects())...)
		if token = resp.GetNextPageToken(); token == "" {
			return all, fromRevision(resp.GetRevision()), nil
		}
	}
}

// All yields every object that matches, in key order, a page at a time. When a
// page's snapshot is gone it goes on behind the last key in a newer one, so the
// whole need not be of one revision. It ends after an error.
func (x *Index) All(ctx context.Context, collection string, o ListOptions) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		err := x.pages(ctx, collection, o, func(objs []Object, _ Revision) error {
			for _, obj := range objs {
				if !yield(obj, nil) {
					return errEnough
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(Object{}, err)
		}
	}
}

var errEnough = errors.New("client: enough")

func (x *Index) pages(ctx context.Context, collection string, o ListOptions, visit func([]Object, Revision) error) error {
	gone := 0
	for token := ""; ; {
		resp, err := x.page(ctx, collection, o, token)
		if next := rpc.Info(err).GetMetadata()["page_token"]; next != "" && rpc.Reason(err) == "SNAPSHOT_GONE" && gone < 5 {
			token = next
			gone++
			continue
		}
		if err != nil {
			return wrap(err, "list %s", collection)
		}
		gone = 0
		if err := visit(fromObjects(resp.GetObjects()), fromRevision(resp.GetRevision())); err != nil {
			return err
		}
		if token = resp.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

func (x *Index) page(ctx context.Context, collection string, o ListOptions, token string) (*indexv1.ListResponse, error) {
	return x.c.List(ctx, &indexv1.ListRequest{
		Collection: collection, Namespace: o.Namespace, LabelSelector: o.Labels, FieldSelector: o.FieldSelector,
		PageSize: int32(o.PageSize), PageToken: token, Consistency: o.consistency(), View: o.View, FieldMask: o.mask(),
		Namespaces: o.Namespaces,
	})
}

// ByIndex returns every object filed under any of up to 100 values of an index,
// each once, in key order, with the revision they were read at.
func (x *Index) ByIndex(ctx context.Context, collection, index string, values []string, o ReadOptions) ([]Object, Revision, error) {
	for attempt := 1; ; attempt++ {
		objs, rev, err := x.byIndex(ctx, collection, index, values, o)
		if err == nil || !errors.Is(err, errSnapshotGone) || attempt == 5 {
			return objs, rev, err
		}
	}
}

func (x *Index) byIndex(ctx context.Context, collection, index string, values []string, o ReadOptions) ([]Object, Revision, error) {
	var all []Object
	for token := ""; ; {
		resp, err := x.c.ByIndex(ctx, &indexv1.ByIndexRequest{
			Collection: collection, Index: index, Values: values, PageToken: token,
			Consistency: o.consistency(), View: o.View, FieldMask: o.mask(),
		})
		if err != nil {
			return nil, Revision{}, wrap(err, "by index %s %s", collection, index)
		}
		all = append(all, fromObjects(resp.GetObjects())...)
		if token = resp.GetNextPageToken(); token == "" {
			return all, fromRevision(resp.GetRevision()), nil
		}
	}
}

// IndexKeys returns the keys filed under a value of an index, sorted.
func (x *Index) IndexKeys(ctx context.Context, collection, index, value string, o ReadOptions) ([]string, Revision, error) {
	resp, err := x.c.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: collection, Index: index, Value: value, Consistency: o.consistency()})
	if err != nil {
		return nil, Revision{}, wrap(err, "index keys %s %s", collection, index)
	}
	return resp.GetKeys(), fromRevision(resp.GetRevision()), nil
}

// Count returns how many objects of the collection match.
func (x *Index) Count(ctx context.Context, collection string, o ListOptions) (int64, Revision, error) {
	resp, err := x.c.Count(ctx, &indexv1.CountRequest{
		Collection: collection, Namespace: o.Namespace, Namespaces: o.Namespaces, LabelSelector: o.Labels, FieldSelector: o.FieldSelector,
		Consistency: o.consistency(),
	})
	if err != nil {
		return 0, Revision{}, wrap(err, "count %s", collection)
	}
	return resp.GetCount(), fromRevision(resp.GetRevision()), nil
}

// WaitFor returns once a replica has reached the barrier, with the revisions
// it is at, or fails with [ErrRevisionNotReached] after the timeout (default 3
// s). Another replica may be behind: reads that must not be pass AtLeast.
func (x *Index) WaitFor(ctx context.Context, b Barrier, timeout time.Duration) (Barrier, error) {
	resp, err := x.c.WaitForRevision(ctx, &indexv1.WaitForRevisionRequest{Revisions: b.proto(), Timeout: durationpb.New(cmp.Or(timeout, 3*time.Second))})
	if err != nil {
		return nil, wrap(err, "wait for revision")
	}
	return fromBarrier(resp.GetRevisions()), nil
}

// Collections tells which collections the answering replica follows and how
// current each is.
func (x *Index) Collections(ctx context.Context) ([]*indexv1.CollectionStatus, error) {
	resp, err := x.c.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, wrap(err, "list collections")
	}
	return resp.GetCollections(), nil
}

func fromObject(o *indexv1.Object) Object {
	return Object{Key: o.GetKey(), UID: o.GetUid(), ResourceVersion: o.GetResourceVersion(), Payload: o.GetPayload()}
}

func fromObjects(in []*indexv1.Object) []Object {
	out := make([]Object, len(in))
	for i, o := range in {
		out[i] = fromObject(o)
	}
	return out
}
