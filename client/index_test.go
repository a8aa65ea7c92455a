package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

func contains(err error, text string) bool { return strings.Contains(err.Error(), text) }

// replay is an index service whose watches are scripts: one per stream.
type replay struct {
	indexv1.UnimplementedIndexServiceServer
	requests []*indexv1.WatchRequest
	streams  []func(indexv1.IndexService_WatchServer) error
}

func (r *replay) Watch(req *indexv1.WatchRequest, s indexv1.IndexService_WatchServer) error {
	n := len(r.requests)
	r.requests = append(r.requests, req)
	return r.streams[n](s)
}

func says(end error, msgs ...*indexv1.WatchResponse) func(indexv1.IndexService_WatchServer) error {
	return func(s indexv1.IndexService_WatchServer) error {
		for _, m := range msgs {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return end
	}
}

func at(seq uint64) *deltav1.Position { return &deltav1.Position{Epoch: 1, Sequence: seq, Term: 4} }

func events(pos *deltav1.Position, typ deltav1.DeltaType, keys ...string) *indexv1.WatchResponse {
	e := &indexv1.Events{}
	for _, key := range keys {
		e.Events = append(e.Events, &indexv1.Event{Type: typ, Object: &indexv1.Object{Key: key}, Position: pos})
	}
	return &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Events{Events: e}, Position: pos}
}

func TestAWatchIsResumedWhereItBroke(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gone := status.Error(codes.Unavailable, "gone")
		initialEnd := func(seq uint64) *indexv1.WatchResponse {
			return &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_InitialStateEnd{InitialStateEnd: &indexv1.InitialStateEnd{}}, Position: at(seq)}
		}
		r := &replay{streams: []func(indexv1.IndexService_WatchServer) error{
			says(gone, events(nil, deltav1.DeltaType_DELTA_TYPE_ADDED, "ns/a")),                                              // breaks within the initial state
			says(gone, events(nil, deltav1.DeltaType_DELTA_TYPE_ADDED, "ns/b"), initialEnd(5)),                               // begins again
			says(nil, events(at(7), deltav1.DeltaType_DELTA_TYPE_DELETED, "ns/b")),                                           // resumes behind 5
			says(gone, &indexv1.WatchResponse{Kind: &indexv1.WatchResponse_Gap{Gap: &indexv1.Gap{Reason: "epoch changed"}}}), // cannot
			says(rpc.Status(rpc.InvalidArgument("collection", "unknown"), nil), initialEnd(9)),
		}}
		conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, r) })
		defer stop()
		var got []string
		var last error
		for e, err := range client.NewIndex(conn).Watch(t.Context(), "dev/pods.v1", client.WatchOptions{}) {
			if err != nil {
				last = err
				break
			}
			got = append(got, fmt.Sprintf("%d %s%s@%d", e.Type, e.Object.Key, e.Reason, e.Position.Sequence))
		}
		want := []string{
			"1 ns/a@0",
			"6 initial state broke off@0", "1 ns/b@0", "4 @5",
			"3 ns/b@7",
			"6 epoch changed@0",
			"6 initial state broke off@0", "4 @9",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("events (-want +got)\n%s", diff)
		}
		var resumed []uint64
		for _, req := range r.requests {
			resumed = append(resumed, req.GetResume().GetSequence())
		}
		if diff := cmp.Diff([]uint64{0, 0, 5, 7, 0}, resumed); diff != "" {
			t.Errorf("resumed behind (-want +got)\n%s", diff)
		}
		var e *client.Error
		if !errors.As(last, &e) || e.Code != codes.InvalidArgument || e.Fields["collection"] != "unknown" {
			t.Errorf("ended with %v, want the refusal with its field", last)
		}
	})
}

func TestAWatchEndsWithItsContextOrItsReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := func(s indexv1.IndexService_WatchServer) error {
			_ = s.Send(events(at(1), deltav1.DeltaType_DELTA_TYPE_ADDED, "ns/a"))
			<-s.Context().Done()
			return nil
		}
		r := &replay{streams: []func(indexv1.IndexService_WatchServer) error{wait, wait}}
		conn, stop := serve(t, func(reg grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(reg, r) })
		defer stop()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		for _, err := range client.NewIndex(conn).Watch(ctx, "pods", client.WatchOptions{}) {
			if err != nil {
				t.Errorf("error %v, want none at the end of the context", err)
			}
			n++
			cancel()
		}
		for range client.NewIndex(conn).Watch(t.Context(), "pods", client.WatchOptions{}) {
			n++
			break
		}
		if n != 2 {
			t.Errorf("%d events, want 2", n)
		}
	})
}

func TestAListingGoesOnBehindALostSnapshot(t *testing.T) {
	t.Parallel()
	errGone := errors.New("snapshot gone")
	gone := []rpc.Rule{{Is: errGone, Code: codes.FailedPrecondition, Reason: "SNAPSHOT_GONE", Metadata: func(error) map[string]string {
		return map[string]string{"page_token": "b2", "snapshot": "expired"}
	}}}
	pages := map[string]*indexv1.ListResponse{
		"":   {Objects: []*indexv1.Object{{Key: "a"}}, NextPageToken: "b", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "5"}},
		"b2": {Objects: []*indexv1.Object{{Key: "b"}}, Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: "6"}},
	}
	restarted, begun := false, 0
	s := &shelf{list: func(req *indexv1.ListRequest) (*indexv1.ListResponse, error) {
		if req.GetPageToken() == "" {
			begun++
		}
		if req.GetPageToken() == "b" && !restarted {
			restarted = true
			return nil, rpc.Status(errGone, gone)
		}
		if req.GetPageToken() == "b" {
			return pages["b2"], nil
		}
		return pages[req.GetPageToken()], nil
	}}
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, s) })
	defer stop()
	x := client.NewIndex(conn)
	var keys []string
	for obj, err := range x.All(t.Context(), "nodes", client.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, obj.Key)
	}
	if diff := cmp.Diff([]string{"a", "b"}, keys); diff != "" {
		t.Errorf("All (-want +got)\n%s", diff)
	}
	restarted, begun = false, 0
	objs, rev, err := x.List(t.Context(), "nodes", client.ListOptions{}) // one snapshot: begins again
	if err != nil || len(objs) != 2 || rev.RV != "6" || begun != 2 {
		t.Errorf("List = %v at %v, %v, begun %d times, want twice", objs, rev, err, begun)
	}
}

func TestABarrierOnlyRises(t *testing.T) {
	t.Parallel()
	b := client.Barrier{}
	for _, rev := range []client.Revision{{Epoch: 2, RV: "10"}, {Epoch: 2, RV: "9"}, {Epoch: 1, RV: "99"}, {RV: "100"}, {}} {
		b.Raise("c", rev)
	}
	if got, want := b["c"], (client.Revision{Epoch: 2, RV: "100"}); got != want {
		t.Errorf("barrier %v, want %v", got, want)
	}
	b.Merge(client.Barrier{"c": {Epoch: 3, RV: "1"}, "d": {Epoch: 1, RV: "1"}})
	if got, want := b, (client.Barrier{"c": {Epoch: 3, RV: "1"}, "d": {Epoch: 1, RV: "1"}}); !cmp.Equal(got, want) {
		t.Errorf("merged %v, want %v", got, want)
	}
}

// counter is an index service that only counts.
type counter struct {
	indexv1.UnimplementedIndexServiceServer
	asked *indexv1.CountRequest
}

func (c *counter) Count(_ context.Context, req *indexv1.CountRequest) (*indexv1.CountResponse, error) {
	c.asked = req
	return &indexv1.CountResponse{Count: 2}, nil
}

func TestCountAsksForAllThatListDoes(t *testing.T) {
	t.Parallel()
	c := &counter{}
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, c) })
	defer stop()
	n, _, err := client.NewIndex(conn).Count(t.Context(), "pods", client.ListOptions{Namespace: "a", Labels: "app=web", FieldSelector: "spec.nodeName=n1"})
	if err != nil || n != 2 || c.asked.GetNamespace() != "a" || c.asked.GetLabelSelector() != "app=web" || c.asked.GetFieldSelector() != "spec.nodeName=n1" {
		t.Errorf("Count = %d, %v, asked %v", n, err, c.asked)
	}
}

func TestAQueryOnAServerWithoutStreamsCallsByItself(t *testing.T) {
	t.Parallel()
	c := &counter{}
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, c) })
	defer stop()
	for i := range 300 {
		q := client.NewQuery(conn, client.QueryConfig{})
		_, _, err := client.NewIndex(q).Count(t.Context(), "pods", client.ListOptions{})
		q.Close()
		if err != nil {
			t.Fatalf("query %d: %v", i, err)
		}
	}
}
