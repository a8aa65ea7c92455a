package client_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

var errBehind = errors.New("behind")

// indexReplica is an index that has reached every revision, or while it is frozen none.
type indexReplica struct {
	indexv1.UnimplementedIndexServiceServer
	name   string
	frozen atomic.Bool
	waits  atomic.Int64 // reads that wait, or have
	reads  atomic.Int64
	pages  atomic.Int64 // that were asked for by a token

	queries atomic.Int64
}

func (r *indexReplica) wait(ctx context.Context, c *indexv1.Consistency) error {
	r.reads.Add(1)
	if !r.frozen.Load() || c.GetAtLeast() == nil {
		return nil
	}
	r.waits.Add(1)
	timer := time.NewTimer(c.GetTimeout().AsDuration())
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return rpc.Status(errBehind, []rpc.Rule{{Is: errBehind, Code: codes.DeadlineExceeded, Reason: "REVISION_NOT_REACHED"}})
	}
}

func (r *indexReplica) Get(ctx context.Context, req *indexv1.GetRequest) (*indexv1.GetResponse, error) {
	if err := r.wait(ctx, req.GetConsistency()); err != nil {
		return nil, err
	}
	return &indexv1.GetResponse{Object: &indexv1.Object{Key: r.name}, Revision: req.GetConsistency().GetAtLeast()}, nil
}

func (r *indexReplica) List(ctx context.Context, req *indexv1.ListRequest) (*indexv1.ListResponse, error) {
	resp := &indexv1.ListResponse{Objects: []*indexv1.Object{{Key: r.name}}}
	if req.GetPageToken() != "" {
		r.pages.Add(1)
		return resp, nil
	}
	resp.NextPageToken = "next"
	return resp, r.wait(ctx, req.GetConsistency())
}

func (r *indexReplica) WaitForRevision(ctx context.Context, req *indexv1.WaitForRevisionRequest) (*indexv1.WaitForRevisionResponse, error) {
	err := r.wait(ctx, &indexv1.Consistency{AtLeast: &deltav1.Revision{}, Timeout: req.GetTimeout()})
	return &indexv1.WaitForRevisionResponse{Revisions: req.GetRevisions()}, err
}

// Query answers List.
func (r *indexReplica) Query(s grpc.BidiStreamingServer[indexv1.QueryRequest, indexv1.QueryResponse]) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	var sending sync.Mutex
	for {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		if req.GetList() == nil {
			continue // a cancellation: the call ends with the stream
		}
		r.queries.Add(1)
		calls.Go(func() {
			list, err := r.List(s.Context(), req.GetList())
			if err != nil {
				return
			}
			sending.Lock()
			defer sending.Unlock()
			_ = s.Send(&indexv1.QueryResponse{Tag: req.GetTag(), Answer: &indexv1.QueryResponse_List{List: list}})
		})
	}
}

// serveReplicas serves each on loopback, all behind the name that is dialled.
func serveReplicas(t *testing.T, all ...*indexReplica) *grpc.ClientConn {
	t.Helper()
	var at []resolver.Address
	for _, r := range all {
		srv := grpc.NewServer()
		indexv1.RegisterIndexServiceServer(srv, r)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { defer close(done); _ = srv.Serve(lis) }()
		t.Cleanup(func() { srv.Stop(); <-done })
		at = append(at, resolver.Address{Addr: lis.Addr().String()})
	}
	names := manual.NewBuilderWithScheme("replicas")
	names.InitialState(resolver.State{Addresses: at})
	conn, err := client.Dial("replicas:///index", rpc.DialConfig{Extra: []grpc.DialOption{grpc.WithResolvers(names)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	x := client.NewIndex(conn)
	for deadline := time.Now().Add(time.Minute); ; { // until all are connected
		missing := 0
		for _, r := range all {
			if r.reads.Load() == 0 {
				missing++
			}
		}
		if missing == 0 {
			return conn
		}
		if _, _, err := x.Get(t.Context(), "pods", "a/one", client.ReadOptions{}); time.Now().After(deadline) {
			t.Fatalf("get: %v; %d replicas were not asked", err, missing)
		}
	}
}

// longWait is a timeout that no test waits for.
const longWait = 10 * time.Minute

func TestAReadThatAFrozenReplicaCannotAnswerIsAnsweredByAnother(t *testing.T) {
	frozen, also, well := &indexReplica{name: "frozen"}, &indexReplica{name: "also"}, &indexReplica{name: "well"}
	conn := serveReplicas(t, frozen, also, well)
	frozen.frozen.Store(true)
	also.frozen.Store(true)
	x := client.NewIndex(conn)
	o := client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "7"}, Timeout: longWait}
	for frozen.waits.Load() == 0 || also.waits.Load() == 0 {
		obj, at, err := x.Get(t.Context(), "pods", "a/one", o)
		if err != nil || obj.Key != "well" || at.RV != "7" {
			t.Fatalf("get = %q at %v, %v; want that of the replica that is well", obj.Key, at, err)
		}
	}
	before := frozen.waits.Load() + also.waits.Load()
	for frozen.waits.Load()+also.waits.Load() == before {
		if _, err := x.WaitFor(t.Context(), client.Barrier{"pods": o.AtLeast}, longWait); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPagesFollowTheReplicaThatAnsweredInPlaceOfAFrozenOne(t *testing.T) {
	frozen, well := &indexReplica{name: "frozen"}, &indexReplica{name: "well"}
	conn := serveReplicas(t, frozen, well)
	frozen.frozen.Store(true)
	q := client.NewQuery(conn, client.QueryConfig{})
	defer func() { q.Close() }()
	o := client.ListOptions{ReadOptions: client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "7"}, Timeout: longWait}}
	for name, x := range map[string]*client.Index{"single calls": client.NewIndex(conn), "a stream of queries": client.NewIndex(q)} {
		frozen.waits.Store(0)
		for frozen.waits.Load() == 0 {
			if well.queries.Load() > 0 { // the stream is to that one: another may be to the other
				q.Close()
				q = client.NewQuery(conn, client.QueryConfig{})
				x = client.NewIndex(q)
				well.queries.Store(0)
			}
			objs, _, err := x.List(t.Context(), "pods", o)
			if err != nil || len(objs) != 2 || objs[0].Key != "well" || objs[1].Key != "well" {
				t.Fatalf("%s: list = %v, %v; want two pages of the replica that is well", name, objs, err)
			}
		}
	}
	if n := frozen.pages.Load(); n != 0 {
		t.Errorf("the frozen replica was asked for %d pages of the other's", n)
	}
}

func TestAReadOfTheOnlyReplicaWaitsThereAlone(t *testing.T) {
	only := &indexReplica{name: "only"}
	x := client.NewIndex(serveReplicas(t, only))
	only.frozen.Store(true)
	_, _, err := x.Get(t.Context(), "pods", "a/one", client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "7"}, Timeout: time.Second})
	if !errors.Is(err, client.ErrRevisionNotReached) {
		t.Errorf("get: %v, want %v", err, client.ErrRevisionNotReached)
	}
	if n := only.waits.Load(); n != 1 {
		t.Errorf("the replica was asked %d times, want once", n)
	}
}

func TestAReadThatNoReplicaCanAnswerSaysSoInTime(t *testing.T) {
	all := []*indexReplica{{name: "one"}, {name: "two"}}
	x := client.NewIndex(serveReplicas(t, all...))
	for _, r := range all {
		r.frozen.Store(true)
	}
	_, _, err := x.Get(t.Context(), "pods", "a/one", client.ReadOptions{AtLeast: client.Revision{Epoch: 1, RV: "7"}, Timeout: time.Second})
	if !errors.Is(err, client.ErrRevisionNotReached) {
		t.Errorf("get: %v, want %v", err, client.ErrRevisionNotReached)
	}
	if one, two := all[0].waits.Load(), all[1].waits.Load(); one != 1 || two != 1 {
		t.Errorf("they were asked %d and %d times, want once each", one, two)
	}
}
