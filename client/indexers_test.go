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

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// catalog is an index service that knows indexes only.
type catalog struct {
	indexv1.UnimplementedIndexServiceServer
	add    *indexv1.AddIndexersRequest
	remove *indexv1.RemoveIndexersRequest
	err    error
}

func (c *catalog) indexers() []*indexv1.Indexer {
	return []*indexv1.Indexer{
		{Name: "a", Description: "label app", State: indexv1.IndexerState_INDEXER_STATE_READY, Values: 2, Entries: 5, Bytes: 100, CompleteFrom: &deltav1.Revision{Epoch: 3, ResourceVersion: "7"}},
		{Name: "b", Description: "cel x", State: indexv1.IndexerState_INDEXER_STATE_FAILED, Errors: 1, LastError: "why"},
	}
}

func (c *catalog) ListIndexers(context.Context, *indexv1.ListIndexersRequest) (*indexv1.ListIndexersResponse, error) {
	return &indexv1.ListIndexersResponse{Indexers: c.indexers()}, c.err
}

func (c *catalog) AddIndexers(_ context.Context, req *indexv1.AddIndexersRequest) (*indexv1.AddIndexersResponse, error) {
	c.add = req
	return &indexv1.AddIndexersResponse{Indexers: c.indexers()}, c.err
}

func (c *catalog) RemoveIndexers(_ context.Context, req *indexv1.RemoveIndexersRequest) (*indexv1.RemoveIndexersResponse, error) {
	c.remove = req
	return &indexv1.RemoveIndexersResponse{}, c.err
}

func TestIndexesAreDeclaredListedAndRemoved(t *testing.T) {
	t.Parallel()
	c := &catalog{}
	conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, c) })
	defer stop()
	x := client.NewIndex(conn)
	got, err := x.AddIndexers(t.Context(), "*/pods.v1", 2*time.Second,
		client.ByLabel("a", "app"), client.ByField("b", "spec.containers[].image"), client.ByOwner("c", client.Owners{ControllerOnly: true, Kind: "Job"}), client.ByCEL("d", "object.x"))
	if err != nil {
		t.Fatal(err)
	}
	want := []client.IndexerStatus{
		{Name: "a", Description: "label app", State: client.IndexerReady, Values: 2, Entries: 5, Bytes: 100, CompleteFrom: client.Revision{Epoch: 3, RV: "7"}},
		{Name: "b", Description: "cel x", State: client.IndexerFailed, Errors: 1, LastError: "why"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("AddIndexers (-want +got):\n%s", diff)
	}
	listed, err := x.Indexers(t.Context(), "pods")
	if diff := cmp.Diff(want, listed); diff != "" || err != nil {
		t.Errorf("Indexers: %v (-want +got):\n%s", err, diff)
	}
	sent := c.add.GetIndexers()
	if c.add.GetCollection() != "*/pods.v1" || c.add.GetWait().AsDuration() != 2*time.Second || len(sent) != 4 ||
		sent[0].GetLabel() != "app" || sent[1].GetField() != "spec.containers[].image" || sent[3].GetCel() != "object.x" ||
		!proto.Equal(sent[2].GetOwnerUid(), &indexv1.OwnerSource{ControllerOnly: true, Kind: "Job"}) {
		t.Errorf("sent %v", c.add)
	}
	if err := x.RemoveIndexers(t.Context(), "*/pods.v1", "a", "b"); err != nil || !cmp.Equal(c.remove.GetNames(), []string{"a", "b"}) {
		t.Errorf("RemoveIndexers sent %v, %v", c.remove, err)
	}
	if _, err := x.AddIndexers(t.Context(), "pods", 0, client.Indexer{}); err == nil {
		t.Error("an indexer that says nothing was sent")
	}
}

func TestErrorsOfIndexesAreNamed(t *testing.T) {
	t.Parallel()
	c := &catalog{}
	conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, c) })
	defer stop()
	x := client.NewIndex(conn)
	for reason, want := range map[string]error{
		"INDEX_CONFLICT": client.ErrIndexConflict, "TOO_MANY_INDEXES": client.ErrTooManyIndexes,
		"INDEX_BUILDING": client.ErrIndexBuilding, "INDEX_FAILED": client.ErrIndexFailed, "INDEX_NOT_FOUND": client.ErrIndexNotFound,
	} {
		st, err := status.New(codes.Unavailable, "text").WithDetails(&errdetails.ErrorInfo{Domain: rpc.Domain, Reason: reason})
		if err != nil {
			t.Fatal(err)
		}
		c.err = st.Err()
		if _, err := x.AddIndexers(t.Context(), "pods", 0, client.ByLabel("a", "b")); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", reason, err, want)
		}
	}
}
