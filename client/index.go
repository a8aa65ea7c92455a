package client

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Index reads collections. It is safe for concurrent use. Collections are named
// in full ("dev/pods.v1") or by any short form the server accepts.
type Index struct{ c indexv1.IndexServiceClient }

// NewIndex returns a client on a connection to an indexer. Where the connection has
// several replicas, a read that waits for AtLeast or Exact for a quarter of its
// timeout, at most 250 ms, is also asked of another one, and the first answer is taken.
//
// While many reads are under way at once, those that come on top go by one Query
// stream, which costs the server a third; see [Query]. Others are calls of their own, as
// are all of a server that knows no Query or refuses it. A connection that is a [Query]
// reads by stream always.
func NewIndex(conn grpc.ClientConnInterface) *Index {
	if _, ok := conn.(*Query); !ok {
		conn = newCrowded(conn)
	}
	return &Index{c: indexv1.NewIndexServiceClient(elsewhere{conn})}
}

// Object is one stored object. Payload is its JSON, as the view asked; it must
// not be changed.
type Object struct {
	Key, UID, ResourceVersion string
	Payload                   []byte
	// Collection is that of the object, in an answer that covers several clusters;
	// empty in others.
	Collection string
	// Quarantined: the newest version of the key could not be read, so that it has no
	// payload, and nobody can tell whether a selector would take it. List, what is like
	// it and Watch return such objects; Get and BatchGet fail with [ErrKeyQuarantined].
	Quarantined bool
}

// View is how much of an object an answer has.
type View int32

// The views. The zero value is ViewFull.
const (
	ViewFull     = View(indexv1.View_VIEW_FULL)
	ViewMetadata = View(indexv1.View_VIEW_METADATA)
	ViewKeys     = View(indexv1.View_VIEW_KEYS)
)

// ReadOptions say how current a read must be and how much it returns. The zero
// value takes any synced state, and whole objects.
type ReadOptions struct {
	// AtLeast is the least revision the answer may be of; see [Item.AtLeast].
	AtLeast Revision
	// Timeout is how long the server may wait for that and for Exact. Default: the server's, 3 s.
	Timeout time.Duration
	// Exact waits, as long, for an answer that is exactly the state at its revision;
	// see [Bounds]. Watches refuse it.
	Exact bool
	// View is ViewFull, ViewMetadata or ViewKeys. Default ViewFull.
	View View
	// Fields are paths to keep, "metadata.name"; it excludes View.
	Fields []string
	// Strict makes a read by an index, or by the field of one, fail with
	// [ErrIndexFailed] while the index has no values for some objects. Without it
	// they are left out, and OnUnindexed is called.
	Strict bool
	// VisibleOnly makes a read cover what the caller may see, where it is refused otherwise unless the
	// caller may see all that it covers. Get and BatchGet do not know it: they name their objects.
	VisibleOnly bool
	// OnUnindexed is called before the read returns, once for each index that the read
	// uses and that has no values for some objects; in a read of several pages, by each.
	OnUnindexed func(Unindexed)
}

// Unindexed are the objects for which an index has no values, since its path or
// expression fails on them. Reads by a value of the index leave them out; field
// selectors by its path take them.
type Unindexed struct {
	Collection, Index string
	// Count is how many they are, Keys their first ten keys.
	Count int64
	Keys  []string
}

// unindexed tells of what an answer names.
func (o ReadOptions) unindexed(list []*indexv1.UnindexedObjects) {
	for _, u := range list {
		if o.OnUnindexed != nil {
			o.OnUnindexed(Unindexed{Collection: u.GetCollection(), Index: u.GetIndex(), Count: u.GetCount(), Keys: u.GetKeys()})
		}
	}
}

func (o ReadOptions) consistency() *indexv1.Consistency {
	if o.AtLeast.IsZero() && !o.Exact {
		return nil
	}
	c := &indexv1.Consistency{AtLeast: toRevision(o.AtLeast), Exact: o.Exact}
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

// Get returns one object and the bounds it was read at. Errors: [ErrKeyNotFound],
// [ErrCollectionNotFound], [ErrNotSynced], [ErrRevisionNotReached], [ErrNotExact].
func (x *Index) Get(ctx context.Context, collection, key string, o ReadOptions) (Object, Bounds, error) {
	resp, err := x.c.Get(ctx, &indexv1.GetRequest{Collection: collection, Key: key, Consistency: o.consistency(), View: indexv1.View(o.View), FieldMask: o.mask()})
	if err != nil {
		return Object{}, Bounds{}, wrap(err, "get %s %s", collection, key)
	}
	return fromObject(resp.GetObject()), fromBounds(resp.GetRevision(), resp.GetUpper()), nil
}

// Find is Get for a key that may be absent: it returns nil then, and the bounds are
// those of the state that does not hold it.
func (x *Index) Find(ctx context.Context, collection, key string, o ReadOptions) (*Object, Bounds, error) {
	got, err := x.BatchGet(ctx, collection, []string{key}, o)
	if err != nil || len(got.Objects) == 0 {
		return nil, got.Bounds, err
	}
	return &got.Objects[0], got.Bounds, nil
}

// Batched is the answer of [Index.BatchGet].
type Batched struct {
	// Objects are those that exist, in the order asked for, and Missing the other keys.
	Objects []Object
	Missing []string
	Bounds  Bounds
}

// BatchGet returns the objects of up to 1,000 keys from one snapshot. A quarantined
// key makes it fail with [ErrKeyQuarantined].
func (x *Index) BatchGet(ctx context.Context, collection string, keys []string, o ReadOptions) (Batched, error) {
	resp, err := x.c.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: collection, Keys: keys, Consistency: o.consistency(), View: indexv1.View(o.View), FieldMask: o.mask()})
	if err != nil {
		return Batched{}, wrap(err, "batch get %s", collection)
	}
	if bad := resp.GetQuarantinedKeys(); len(bad) > 0 {
		return Batched{}, &Error{Op: "batch get " + collection + " " + bad[0], Reason: "KEY_QUARANTINED", err: ErrKeyQuarantined}
	}
	return Batched{fromObjects(resp.GetObjects(), nil, nil), resp.GetMissingKeys(), fromBounds(resp.GetRevision(), resp.GetUpper())}, nil
}

// ByIndex returns every object filed under any of up to 100 values of an index,
// each once, in key order, with the bounds they were read at. [Index.List] does
// the same with more to choose by.
func (x *Index) ByIndex(ctx context.Context, collection, index string, values []string, o ReadOptions) ([]Object, Bounds, error) {
	if index == "" { // to List it would mean every object
		return nil, Bounds{}, wrap(rpc.Status(rpc.InvalidArgument("index", "is required"), nil), "by index %s", collection)
	}
	return x.List(ctx, collection, ListOptions{ReadOptions: o, Index: index, Values: values})
}

// IndexKeys returns the keys filed under a value of an index, sorted.
func (x *Index) IndexKeys(ctx context.Context, collection, index, value string, o ReadOptions) ([]string, Bounds, error) {
	resp, err := x.c.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: collection, Index: index, Value: value, Consistency: o.consistency(), Strict: o.Strict, VisibleOnly: o.VisibleOnly})
	if err != nil {
		return nil, Bounds{}, wrap(err, "index keys %s %s", collection, index)
	}
	o.unindexed(resp.GetUnindexed())
	return resp.GetKeys(), fromBounds(resp.GetRevision(), resp.GetUpper()), nil
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

// CollectionStatus is how a collection is doing on the replica that answered.
type CollectionStatus struct {
	// Collection is the whole name, the others its parts; Group is empty for core.
	Collection, Cluster, Group, Version, Resource string
	// Synced: reads are answered.
	Synced bool
	// Bounds are those that a read would have.
	Bounds Bounds
	// Objects and Quarantined count the keys held, and those whose newest version could
	// not be read.
	Objects, Quarantined int64
	// Lag is how many records of the log are not applied, as far as known.
	Lag int64
	// LiveAt is when the reflector was last heard; zero before it was. Stale: that is too
	// long ago.
	LiveAt time.Time
	Stale  bool
	// FrozenSince is since when the revision stands still although the log goes on; zero
	// while it does not.
	FrozenSince time.Time
	// LastError in following the log; empty when well.
	LastError string
	// Dropped is what the reflector leaves out of objects; nil while it is not known.
	Dropped *DroppedFields
	// AllObjects: the reflector chooses no objects by namespace or selector. False while it is not
	// known.
	AllObjects bool
}

// DroppedFields are the fields that a collection's objects lack although the API server has them.
type DroppedFields struct {
	// Paths are sorted, such as "metadata.managedFields"; "\." is a dot inside a name.
	Paths []string
	// MetadataOnly: objects have kind, apiVersion and metadata alone.
	MetadataOnly bool
}

// WriteBack returns nil when an object that lacks these fields may be written back whole, else an
// error that names what the write would remove. The API server itself keeps managed fields.
func (d *DroppedFields) WriteBack() error {
	switch {
	case d == nil:
		return fmt.Errorf("%w: it is not known yet which", ErrDroppedFields)
	case d.MetadataOnly:
		return fmt.Errorf("%w: everything but metadata", ErrDroppedFields)
	}
	if lost := delta.RemovedByWrite(d.Paths); len(lost) > 0 {
		return fmt.Errorf("%w: %s", ErrDroppedFields, strings.Join(lost, ", "))
	}
	return nil
}

// WriteBackStatus is WriteBack for a write to the status subresource. An API server takes no spec
// from it.
func (d *DroppedFields) WriteBackStatus() error {
	if d == nil || d.MetadataOnly {
		return d.WriteBack()
	}
	status := slices.DeleteFunc(slices.Clone(d.Paths), func(path string) bool { return path == "spec" || strings.HasPrefix(path, "spec.") })
	return (&DroppedFields{Paths: status}).WriteBack()
}

// Collections tells which collections the answering replica follows and how
// current each is.
func (x *Index) Collections(ctx context.Context) ([]CollectionStatus, error) {
	resp, err := x.c.ListCollections(ctx, &indexv1.ListCollectionsRequest{})
	if err != nil {
		return nil, wrap(err, "list collections")
	}
	all := make([]CollectionStatus, len(resp.GetCollections()))
	for i, c := range resp.GetCollections() {
		all[i] = CollectionStatus{
			Collection: c.GetCollection(), Cluster: c.GetCluster(), Group: c.GetGroup(), Version: c.GetVersion(), Resource: c.GetResource(),
			Synced: c.GetSynced(), Bounds: fromBounds(c.GetRevision(), c.GetUpper()), Objects: c.GetObjects(), Quarantined: c.GetQuarantined(),
			Lag: c.GetLagRecords(), LiveAt: moment(c.GetLiveAt()), Stale: c.GetStale(), FrozenSince: moment(c.GetFrozenSince()), LastError: c.GetLastError(),
			AllObjects: c.GetAllObjects(),
		}
		if d := c.GetDropped(); d != nil {
			all[i].Dropped = &DroppedFields{Paths: d.GetPaths(), MetadataOnly: d.GetMetadataOnly()}
		}
	}
	return all, nil
}

// moment is a time of a message; zero for none.
func moment(at *timestamppb.Timestamp) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.AsTime()
}

func fromObject(o *indexv1.Object) Object {
	return Object{Key: o.GetKey(), UID: o.GetUid(), ResourceVersion: o.GetResourceVersion(), Payload: o.GetPayload(), Collection: o.GetCollection()}
}
