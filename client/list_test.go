package client_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// asked is an index service that remembers what it was asked, and answers as told.
type asked struct {
	indexv1.UnimplementedIndexServiceServer
	requests []proto.Message
	list     func(n int) (*indexv1.ListResponse, error)
	byIndex  *indexv1.ByIndexResponse
}

func (a *asked) List(_ context.Context, r *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	a.requests = append(a.requests, r)
	if a.list == nil {
		return &indexv1.ListResponse{}, nil
	}
	return a.list(len(a.requests))
}

func (a *asked) ByIndex(_ context.Context, r *indexv1.ByIndexRequest) (*indexv1.ByIndexResponse, error) {
	a.requests = append(a.requests, r)
	return a.byIndex, nil
}

func (a *asked) Count(_ context.Context, r *indexv1.CountRequest) (*indexv1.CountResponse, error) {
	a.requests = append(a.requests, r)
	return &indexv1.CountResponse{Count: 3}, nil
}

func (a *asked) Index(_ context.Context, r *indexv1.IndexRequest) (*indexv1.IndexResponse, error) {
	a.requests = append(a.requests, r)
	return &indexv1.IndexResponse{Objects: []*indexv1.Object{{Key: "a"}}, Values: []string{"v"}, QuarantinedKeys: []string{"a"}}, nil
}

func (a *asked) ListIndexFuncValues(_ context.Context, r *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	a.requests = append(a.requests, r)
	if r.GetPageToken() == "" {
		return &indexv1.ListIndexFuncValuesResponse{Values: []*indexv1.IndexValue{{Value: "a", Keys: 2}}, NextPageToken: "more"}, nil
	}
	return &indexv1.ListIndexFuncValuesResponse{Values: []*indexv1.IndexValue{{Value: "b", Keys: 1}}, Revision: revision("5")}, nil
}

func (a *asked) client(t *testing.T) *client.Index {
	t.Helper()
	conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, a) })
	t.Cleanup(stop)
	return client.NewIndex(conn)
}

// A field of the contract that is added later, and cannot be set by the options, fails this.
func TestEveryFieldOfAReadCanBeSet(t *testing.T) {
	t.Parallel()
	a := &asked{byIndex: &indexv1.ByIndexResponse{}}
	x, ctx := a.client(t), t.Context()
	read := client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "5"}, Timeout: time.Second, Exact: true, View: client.ViewKeys, Fields: []string{"metadata.name"}, Strict: true, VisibleOnly: true}
	o := client.ListOptions{
		ReadOptions: read, Namespace: "n", Namespaces: []string{"m"}, Labels: "a=b", FieldSelector: "c=d", Clusters: []string{"*"}, PageSize: 7,
		SkipUnsynced: true,
	}
	_, err := x.Page(ctx, "pods.v1", o, "token")
	_, _, err2 := x.Count(ctx, "pods.v1", client.ListOptions{
		ReadOptions: read, Namespace: "n", Namespaces: []string{"m"}, Labels: "a=b", FieldSelector: "c=d", Clusters: []string{"*"}, Index: "i", Values: []string{"v"},
	})
	o.Namespace, o.Index, o.Values = "", "i", []string{"v", "w"}
	_, err3 := x.Page(ctx, "pods.v1", o, "token")
	_, err4 := x.ByExample(ctx, "pods", "i", []byte("{}"), read)
	_, _, err5 := x.IndexValues(ctx, "pods", "i", "p", read)
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	// Count has one value and many; many will do. The values are asked for in the server's pages.
	spared := map[protoreflect.FullName]bool{"deltaplane.index.v1.CountRequest.value": true, "deltaplane.index.v1.ListIndexFuncValuesRequest.page_size": true}
	for _, r := range a.requests {
		m := r.ProtoReflect()
		for i := range m.Descriptor().Fields().Len() {
			f := m.Descriptor().Fields().Get(i)
			first := f.Name() == "page_token" && m.Descriptor().Name() == "ListIndexFuncValuesRequest"
			if !m.Has(f) && !spared[f.FullName()] && !first {
				t.Errorf("%s cannot be set", f.FullName())
			}
		}
	}
}

func TestAReaderIsToldWhatAnIndexHasNoValuesFor(t *testing.T) {
	t.Parallel()
	a := &asked{byIndex: &indexv1.ByIndexResponse{Unindexed: []*indexv1.UnindexedObjects{{Collection: "dev/pods.v1", Index: "i", Count: 12, Keys: []string{"a", "b"}}}}}
	var told []client.Unindexed
	o := client.ReadOptions{OnUnindexed: func(u client.Unindexed) { told = append(told, u) }}
	if _, _, err := a.client(t).ByIndex(t.Context(), "pods", "i", []string{"v"}, o); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]client.Unindexed{{Collection: "dev/pods.v1", Index: "i", Count: 12, Keys: []string{"a", "b"}}}, told); diff != "" {
		t.Errorf("told (-want +got)\n%s", diff)
	}
}

func TestAListingOverClustersTellsWhatIsOfWhich(t *testing.T) {
	t.Parallel()
	revisions := []*deltav1.CollectionRevision{
		{Collection: "one/pods.v1", Revision: revision("5"), Upper: revision("7")}, {Collection: "two/pods.v1", Revision: revision("9")},
	}
	a := &asked{list: func(n int) (*indexv1.ListResponse, error) {
		if n == 1 {
			return &indexv1.ListResponse{NextPageToken: "2", Remaining: 2, Revisions: revisions, Objects: []*indexv1.Object{{Key: "a", Collection: "one/pods.v1", Payload: []byte("{}")}}}, nil
		}
		return &indexv1.ListResponse{Revisions: revisions, QuarantinedKeys: []string{"a"}, Objects: []*indexv1.Object{
			{Key: "a", Collection: "two/pods.v1"}, {Key: "b", Collection: "two/pods.v1", Payload: []byte("{}")},
		}}, nil
	}}
	objs, at, err := a.client(t).ListClusters(t.Context(), "pods.v1", client.ListOptions{Clusters: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Object{
		{Key: "a", Collection: "one/pods.v1", Payload: []byte("{}")},
		{Key: "a", Collection: "two/pods.v1", Quarantined: true},
		{Key: "b", Collection: "two/pods.v1", Payload: []byte("{}")},
	}
	if diff := cmp.Diff(want, objs); diff != "" {
		t.Errorf("objects (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(client.Reading{"one/pods.v1": between("5", "7"), "two/pods.v1": between("9", "9")}, at); diff != "" {
		t.Errorf("revisions (-want +got)\n%s", diff)
	}
}

func between(revision, upper string) client.Bounds {
	return client.Bounds{Revision: client.Revision{Epoch: 1, RV: revision}, Upper: client.Revision{Epoch: 1, RV: upper}}
}

// In a view of keys an object that could not be read looks like any other.
func TestAQuarantinedKeyIsMarkedInItsClusterAlone(t *testing.T) {
	t.Parallel()
	a := &asked{list: func(int) (*indexv1.ListResponse, error) {
		return &indexv1.ListResponse{
			Objects: []*indexv1.Object{
				{Key: "a", Collection: "one/pods.v1"}, {Key: "b", Collection: "one/pods.v1"}, {Key: "a", Collection: "two/pods.v1"}, {Key: "b", Collection: "two/pods.v1"},
			},
			QuarantinedKeys: []string{"b", "a"},
			Quarantined:     []*indexv1.QuarantinedKey{{Collection: "one/pods.v1", Key: "b"}, {Collection: "two/pods.v1", Key: "a"}},
		}, nil
	}}
	objs, _, err := a.client(t).ListClusters(t.Context(), "pods.v1", client.ListOptions{Clusters: []string{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []client.Object{
		{Key: "a", Collection: "one/pods.v1"},
		{Key: "b", Collection: "one/pods.v1", Quarantined: true},
		{Key: "a", Collection: "two/pods.v1", Quarantined: true},
		{Key: "b", Collection: "two/pods.v1"},
	}
	if diff := cmp.Diff(want, objs); diff != "" {
		t.Errorf("objects (-want +got)\n%s", diff)
	}
	a.list = func(int) (*indexv1.ListResponse, error) {
		return &indexv1.ListResponse{
			Objects:         []*indexv1.Object{{Key: "a", Collection: "one/pods.v1"}, {Key: "a", Collection: "two/pods.v1"}},
			QuarantinedKeys: []string{"a"}, Quarantined: []*indexv1.QuarantinedKey{{Collection: "two/pods.v1", Key: "a"}},
		}, nil
	}
	if objs, _, err = a.client(t).ListClusters(t.Context(), "pods.v1", client.ListOptions{Clusters: []string{"*"}}); err != nil || objs[0].Quarantined || !objs[1].Quarantined {
		t.Errorf("of the same key in two clusters: %+v, %v; want the second marked", objs, err)
	}
}

func TestAPageWhoseSnapshotIsGoneTellsWhereToGoOn(t *testing.T) {
	t.Parallel()
	st, err := status.New(codes.FailedPrecondition, "gone").WithDetails(&errdetails.ErrorInfo{
		Reason: "SNAPSHOT_GONE", Domain: rpc.Domain, Metadata: map[string]string{"page_token": "go on"},
	})
	if err != nil {
		t.Fatal(err)
	}
	a := &asked{list: func(int) (*indexv1.ListResponse, error) { return nil, st.Err() }}
	p, err := a.client(t).Page(t.Context(), "pods", client.ListOptions{}, "old")
	if !errors.Is(err, client.ErrSnapshotGone) || p.Next != "go on" {
		t.Errorf("Page = %+v, %v, want ErrSnapshotGone and a token", p, err)
	}
}

func TestValuesOfAnIndexAreReadToTheEnd(t *testing.T) {
	t.Parallel()
	a := &asked{byIndex: &indexv1.ByIndexResponse{}}
	x := a.client(t)
	values, rev, err := x.IndexValues(t.Context(), "pods", "node", "", client.ReadOptions{})
	if err != nil || rev.RV != "5" || !cmp.Equal(values, []client.IndexValue{{Value: "a", Keys: 2}, {Value: "b", Keys: 1}}) {
		t.Errorf("IndexValues = %v, %v, %v", values, rev, err)
	}
	got, err := x.ByExample(t.Context(), "pods", "node", []byte("{}"), client.ReadOptions{})
	if err != nil || len(got.Objects) != 1 || !got.Objects[0].Quarantined || !cmp.Equal(got.Values, []string{"v"}) {
		t.Errorf("ByExample = %+v, %v", got, err)
	}
	for name, err := range map[string]error{
		"namespace": func() error {
			_, err := x.Page(t.Context(), "pods", client.ListOptions{Index: "i", Values: []string{"v"}, Namespace: "a", Namespaces: []string{"b"}}, "")
			return err
		}(),
		"a list that may leave out clusters": func() error {
			_, _, err := x.ListClusters(t.Context(), "pods", client.ListOptions{Clusters: []string{"*"}, SkipUnsynced: true})
			return err
		}(),
		"all that may leave out clusters": func() (err error) {
			for _, err = range x.All(t.Context(), "pods", client.ListOptions{Clusters: []string{"*"}, SkipUnsynced: true}) {
				if err != nil {
					break
				}
			}
			return err
		}(),
		"a count that may leave out clusters": func() error {
			_, _, err := x.Count(t.Context(), "pods", client.ListOptions{Clusters: []string{"*"}, SkipUnsynced: true})
			return err
		}(),
	} {
		if e, ok := errors.AsType[*client.Error](err); !ok || len(e.Fields) != 1 {
			t.Errorf("%s: %v, want the field at fault", name, err)
		}
	}
}

func TestAnIndexWithoutANameIsNotEveryObject(t *testing.T) {
	t.Parallel()
	a := &asked{}
	for _, values := range [][]string{nil, {}} {
		_, _, err := a.client(t).ByIndex(t.Context(), "dev/pods.v1", "", values, client.ReadOptions{})
		if rpc.Code(err) != codes.InvalidArgument || rpc.Violations(err)["index"] == "" {
			t.Errorf("by index without a name: %v, want INVALID_ARGUMENT that names index", err)
		}
	}
	if len(a.requests) > 0 {
		t.Errorf("the server was asked %v", a.requests)
	}
}
