package indexer_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// wantMisfit checks that calls refuse, by field, keys or namespaces that the collection lacks.
func wantMisfit(t *testing.T, r *replica, key string, namespaces bool) {
	t.Helper()
	refused := func(what string, err error, field string) {
		t.Helper()
		if _, ok := rpc.Violations(err)[field]; !ok || rpc.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v (fields %v), want INVALID_ARGUMENT for %s", what, err, rpc.Violations(err), field)
		}
	}
	ctx := t.Context()
	_, err := r.Get(ctx, &indexv1.GetRequest{Collection: podsName, Key: key})
	refused("Get", err, "key")
	_, err = r.BatchGet(ctx, &indexv1.BatchGetRequest{Collection: podsName, Keys: []string{key}})
	refused("BatchGet", err, "keys[0]")
	stream, err := r.Query(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&indexv1.QueryRequest{Tag: 1, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: podsName, Key: key}}}); err != nil {
		t.Fatal(err)
	}
	if resp, err := stream.Recv(); err != nil || resp.GetError().GetCode() != int32(codes.InvalidArgument) || resp.GetError().GetFieldViolations()["key"] == "" {
		t.Errorf("Query: %v, %v, want INVALID_ARGUMENT for key", resp, err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if !namespaces {
		return
	}
	_, err = r.List(ctx, &indexv1.ListRequest{Collection: podsName, Namespace: "a"})
	refused("List", err, "namespace")
	_, err = r.List(ctx, &indexv1.ListRequest{Collection: podsName, FieldSelector: "metadata.namespace=a"})
	refused("List", err, "field_selector")
	_, err = r.List(ctx, &indexv1.ListRequest{Collection: "pods", Clusters: []string{"*"}, Namespace: "a"})
	refused("List of every cluster", err, "namespace")
	_, err = r.ByIndex(ctx, &indexv1.ByIndexRequest{Collection: podsName, Index: "label", Values: []string{"x"}, Namespaces: []string{"a"}})
	refused("ByIndex", err, "namespaces")
	_, err = r.Count(ctx, &indexv1.CountRequest{Collection: podsName, Namespaces: []string{"a", "b"}})
	refused("Count", err, "namespaces")
	watch, err := r.Watch(ctx, &indexv1.WatchRequest{Collection: podsName, Namespace: "a"})
	if err == nil {
		_, err = watch.Recv()
	}
	refused("Watch", err, "namespace")
}

func scopeOf(t *testing.T, r *replica) indexv1.KeyScope {
	t.Helper()
	resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
	if err != nil || len(resp.GetCollections()) != 1 {
		t.Fatalf("ListCollections: %v, %v", resp, err)
	}
	return resp.GetCollections()[0].GetScope()
}

func TestKeysThatACollectionCannotHaveAreRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		says    delta.Scope // the log
		objects []delta.Record
		want    delta.Scope
	}{
		"an empty cluster-scoped collection":          {says: delta.ClusterScoped, want: delta.ClusterScoped},
		"a cluster-scoped collection":                 {says: delta.ClusterScoped, objects: []delta.Record{pod("one", options{})}, want: delta.ClusterScoped},
		"cluster-scoped, by its objects":              {objects: []delta.Record{pod("one", options{})}, want: delta.ClusterScoped},
		"an empty namespaced collection":              {says: delta.Namespaced, want: delta.Namespaced},
		"namespaced, by its objects":                  {objects: []delta.Record{pod("a/one", options{})}, want: delta.Namespaced},
		"an empty one of which nobody says the scope": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.scope = tc.says
			w.start(t, tc.objects...)
			r := w.index(t, nil)
			w.caughtUp(t, r)
			switch tc.want {
			case delta.ClusterScoped:
				wantMisfit(t, r, "a/one", true)
				if got := scopeOf(t, r); got != indexv1.KeyScope_KEY_SCOPE_CLUSTER {
					t.Errorf("ListCollections says %v", got)
				}
			case delta.Namespaced:
				wantMisfit(t, r, "one", false)
				if got := scopeOf(t, r); got != indexv1.KeyScope_KEY_SCOPE_NAMESPACED {
					t.Errorf("ListCollections says %v", got)
				}
			default:
				for _, key := range []string{"one", "a/one"} {
					_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: podsName, Key: key})
					wantStatus(t, key, err, codes.NotFound, "KEY_NOT_FOUND", "")
				}
			}
		})
	}
}

// A definition that was deleted and made again with another scope is a new epoch of the log.
func TestANewEpochBringsItsOwnScope(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.scope = delta.ClusterScoped
	w.start(t)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	wantMisfit(t, r, "a/one", true)
	w.w = w.lead(t, pods, true)
	w.scope = ""
	w.sync(t)
	w.caughtUp(t, r)
	_, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: podsName, Key: "a/one"})
	wantStatus(t, "in an epoch of which nobody says the scope", err, codes.NotFound, "KEY_NOT_FOUND", "")
	w.scope = delta.Namespaced
	w.sync(t)
	w.caughtUp(t, r)
	wantMisfit(t, r, "one", false)
}

// The last record names the resource: an old reflector's says nothing, a new epoch starts over.
func TestListCollectionsTellsWhatElseAResourceIsCalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.index(t, nil)
	told := func(what string, want ...string) {
		t.Helper()
		w.caughtUp(t, r)
		resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
		if err != nil || len(resp.GetCollections()) != 1 {
			t.Fatalf("ListCollections: %v, %v", resp, err)
		}
		if got := resp.GetCollections()[0].GetNames(); !slices.Equal(got, want) {
			t.Errorf("%s: ListCollections tells %q, want %q", what, got, want)
		}
	}
	told("before anybody has said")
	for _, names := range [][]string{{"pod", "po"}, {"pod", "pd"}, {"pod"}} {
		w.names = names
		w.sync(t)
		told("said by the log", names...)
	}
	w.names = nil
	w.sync(t)
	told("an older reflector says nothing", "pod")
	w.w = w.lead(t, pods, true)
	w.sync(t)
	told("a new epoch of which nobody has said")
	w.names = []string{"po"}
	w.sync(t)
	told("said by the new epoch", "po")
}

func TestListCollectionsTellsWhatObjectsLack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.index(t, nil)
	told := func(what string, want *indexv1.DroppedFields) {
		t.Helper()
		w.caughtUp(t, r)
		resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
		if err != nil || len(resp.GetCollections()) != 1 {
			t.Fatalf("ListCollections: %v, %v", resp, err)
		}
		if got := resp.GetCollections()[0].GetDropped(); !proto.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%s: ListCollections tells %v, want %v", what, got, want)
		}
	}
	told("before anybody has said", nil)
	w.dropped = []string{delta.ManagedFields, "status.images"}
	w.sync(t)
	told("said by the log", &indexv1.DroppedFields{Paths: w.dropped})
	w.dropped = []string{}
	w.sync(t)
	told("a spec that leaves nothing out", &indexv1.DroppedFields{})
	w.dropped = []string{delta.EverythingButMetadata, delta.ManagedFields}
	w.sync(t)
	told("a mirror of metadata", &indexv1.DroppedFields{Paths: []string{delta.ManagedFields}, MetadataOnly: true})
	w.dropped = nil
	w.sync(t)
	told("an older reflector says nothing", &indexv1.DroppedFields{Paths: []string{delta.ManagedFields}, MetadataOnly: true})
	w.w = w.lead(t, pods, true)
	w.sync(t)
	told("a new epoch of which nobody has said", nil)
}

func TestListCollectionsTellsWhetherEveryObjectIsMirrored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.index(t, nil)
	told := func(what string, want bool) {
		t.Helper()
		w.caughtUp(t, r)
		resp, err := r.ListCollections(t.Context(), &indexv1.ListCollectionsRequest{})
		if err != nil || len(resp.GetCollections()) != 1 {
			t.Fatalf("ListCollections: %v, %v", resp, err)
		}
		if got := resp.GetCollections()[0].GetAllObjects(); got != want {
			t.Errorf("%s: all_objects is %v, want %v", what, got, want)
		}
	}
	told("before anybody has said", false)
	w.dropped, w.all = []string{}, true
	w.sync(t)
	told("a spec without selectors", true)
	w.all = false
	w.sync(t)
	told("a spec that chooses", false)
	w.all = true
	w.sync(t)
	w.dropped, w.all = nil, false
	w.w = w.lead(t, pods, true)
	w.sync(t)
	told("a new epoch of which nobody has said", false)
}
