package client

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Indexer declares one index; see [Index.AddIndexers]. Make it with [ByLabel],
// [ByField], [ByOwner] or [ByCEL].
type Indexer struct{ def *indexv1.IndexerDefinition }

// ByLabel files objects under the value of a label.
func ByLabel(name, label string) Indexer {
	return Indexer{&indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Label{Label: label}}}
}

// ByField files objects under the values at a path: "spec.nodeName",
// "spec.containers[].image" for each element of a list,
// "metadata.annotations['a.b/c']" for a key that holds dots. Its path can then
// be used in field selectors.
func ByField(name, path string) Indexer {
	return Indexer{&indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Field{Field: path}}}
}

// Owners choose among the owner references of an object. The zero value takes
// all of them.
type Owners struct {
	// ControllerOnly takes only the controller reference.
	ControllerOnly bool
	// Kind, when set, takes only owners of the kind.
	Kind string
}

// ByOwner files objects under the UID of their owners.
func ByOwner(name string, which Owners) Indexer {
	return Indexer{&indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_OwnerUid{
		OwnerUid: &indexv1.OwnerSource{ControllerOnly: which.ControllerOnly, Kind: which.Kind},
	}}}
}

// ByCEL files objects under what a CEL expression over `object` returns, a
// string or a list of strings: "object.spec.containers.map(c, c.image)".
// Objects on which it fails are not in the index ([Unindexed]), so it should provide
// for what may be absent: "object.?spec.?nodeName".
func ByCEL(name, expression string) Indexer {
	return Indexer{&indexv1.IndexerDefinition{Name: name, Source: &indexv1.IndexerDefinition_Cel{Cel: expression}}}
}

// IndexerState tells whether an index answers reads.
type IndexerState int32

// The states of an index.
const (
	// IndexerBuilding: reads fail with [ErrIndexBuilding] for a while.
	IndexerBuilding = IndexerState(indexv1.IndexerState_INDEXER_STATE_BUILDING)
	// IndexerReady: it is complete.
	IndexerReady = IndexerState(indexv1.IndexerState_INDEXER_STATE_READY)
	// IndexerFailed: the definition cannot be used on the replica, or there is no
	// room for the index; reads fail with [ErrIndexFailed].
	IndexerFailed = IndexerState(indexv1.IndexerState_INDEXER_STATE_FAILED)
)

// String is the state in words of logs: "building".
func (s IndexerState) String() string {
	return strings.ToLower(strings.TrimPrefix(indexv1.IndexerState(s).String(), "INDEXER_STATE_"))
}

// IndexerStatus is how an index is doing on the replica that answered.
type IndexerStatus struct {
	// Name of the index, and where it finds its values: "field spec.nodeName".
	Name, Description string
	// BuiltIn: the collection has it without being told.
	BuiltIn bool
	State   IndexerState
	// Values is how many different ones there are, Entries how many pairs of a
	// value and a key, Bytes about what they take in memory.
	Values, Entries, Bytes int64
	// Errors is how many objects the index has no values for, since its path or
	// expression fails on them; Unindexed are the first ten keys, and LastError is why,
	// for one of them.
	Errors    int64
	Unindexed []string
	LastError string
	// CompleteFrom is the revision from which the index is complete; zero while it
	// is being built.
	CompleteFrom Revision
}

// Indexers lists the indexes of a collection, by name.
func (x *Index) Indexers(ctx context.Context, collection string) ([]IndexerStatus, error) {
	resp, err := x.c.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: collection})
	if err != nil {
		return nil, wrap(err, "list indexers %s", collection)
	}
	return fromIndexers(resp.GetIndexers()), nil
}

// AddIndexers declares indexes, all or none, on every replica and permanently;
// those that are declared already stay as they are, so a program may declare
// what it needs each time it starts. With "*/" in front of the resource
// ("*/pods.v1") they hold for every cluster, also for later ones. It waits up to
// the given time (zero: the server's default, 3 s) until the answering replica
// has built them. Errors: [ErrIndexConflict] for a name that has another
// definition, [ErrTooManyIndexes]; an [Error] with Fields for a name, path or
// expression that cannot be used.
func (x *Index) AddIndexers(ctx context.Context, collection string, wait time.Duration, list ...Indexer) ([]IndexerStatus, error) {
	req := &indexv1.AddIndexersRequest{Collection: collection}
	if wait > 0 {
		req.Wait = durationpb.New(wait)
	}
	for _, i := range list {
		if i.def == nil {
			return nil, fmt.Errorf("client: add indexers %s: an indexer was not made with one of the functions", collection)
		}
		req.Indexers = append(req.Indexers, i.def)
	}
	resp, err := x.c.AddIndexers(ctx, req)
	if err != nil {
		return nil, wrap(err, "add indexers %s", collection)
	}
	return fromIndexers(resp.GetIndexers()), nil
}

// RemoveIndexers takes declared indexes away, all or none; the collection is
// named as it was to AddIndexers. The error is [ErrIndexNotFound] for one that
// is not declared there.
func (x *Index) RemoveIndexers(ctx context.Context, collection string, names ...string) error {
	_, err := x.c.RemoveIndexers(ctx, &indexv1.RemoveIndexersRequest{Collection: collection, Names: names})
	return wrap(err, "remove indexers %s", collection)
}

func fromIndexers(in []*indexv1.Indexer) []IndexerStatus {
	out := make([]IndexerStatus, len(in))
	for i, x := range in {
		out[i] = IndexerStatus{
			Name: x.GetName(), Description: x.GetDescription(), BuiltIn: x.GetBuiltIn(), State: IndexerState(x.GetState()),
			Values: x.GetValues(), Entries: x.GetEntries(), Bytes: x.GetBytes(), Errors: x.GetErrors(), Unindexed: x.GetUnindexedKeys(), LastError: x.GetLastError(),
			CompleteFrom: fromRevision(x.GetCompleteFrom()),
		}
	}
	return out
}
