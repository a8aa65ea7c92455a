package indexer_test

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// queryStream is a Query stream whose answers are kept until they are asked for.
type queryStream struct {
	t      *testing.T
	stream indexv1.IndexService_QueryClient
	early  map[uint64]*indexv1.QueryResponse
}

func ask(t *testing.T, r *replica) *queryStream {
	t.Helper()
	stream, err := r.Query(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &queryStream{t: t, stream: stream, early: map[uint64]*indexv1.QueryResponse{}}
}

func (a *queryStream) send(req *indexv1.QueryRequest) {
	a.t.Helper()
	if err := a.stream.Send(req); err != nil {
		a.t.Fatal(err)
	}
}

func (a *queryStream) answer(tag uint64) *indexv1.QueryResponse {
	a.t.Helper()
	for a.early[tag] == nil {
		resp, err := a.stream.Recv()
		if err != nil {
			a.t.Fatalf("waiting for the answer to %d: %v", tag, err)
		}
		if a.early[resp.GetTag()] != nil {
			a.t.Fatalf("two answers to %d", resp.GetTag())
		}
		a.early[resp.GetTag()] = resp
	}
	resp := a.early[tag]
	delete(a.early, tag)
	return resp
}

// failed checks an answer that is an error.
func (a *queryStream) failed(resp *indexv1.QueryResponse, code codes.Code, reason, field string) {
	a.t.Helper()
	e := resp.GetError()
	if codes.Code(e.GetCode()) != code || e.GetReason() != reason {
		a.t.Errorf("answer to %d is %v, want %v %s", resp.GetTag(), resp, code, reason)
	}
	if _, ok := e.GetFieldViolations()[field]; field != "" && !ok {
		a.t.Errorf("violations are %v, want one of %s", e.GetFieldViolations(), field)
	}
}

func same(t *testing.T, what string, got, want proto.Message) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s on the stream differs from the unary call (-want +got): %s", what, diff)
	}
}

func TestEveryCallOnAQueryStreamIsAnsweredAsTheUnaryOne(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"TCP", "TLS"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start(t, append(fleet(), pod("big/pod", options{node: "n1", pad: 60_000}))...)
			r := w.index(t, func(c *indexer.Config) {
				if over == "TLS" {
					c.RPC.TLS = certificate(t)
				}
			})
			w.caughtUp(t, r)
			ctx := t.Context()
			a := ask(t, r)
			tag := uint64(1 << 40)
			call := func(req *indexv1.QueryRequest) *indexv1.QueryResponse {
				tag++
				req.Tag = tag
				a.send(req)
				return a.answer(tag)
			}
			mask := &fieldmaskpb.FieldMask{Paths: []string{"metadata.name", "status"}}
			for _, req := range []*indexv1.GetRequest{
				{Collection: "pods", Key: "a/one"},
				{Collection: "pods", Key: "big/pod"},
				{Collection: "pods", Key: "a/one", View: indexv1.View_VIEW_KEYS},
				{Collection: "pods", Key: "a/one", FieldMask: mask},
				{Collection: "pods", Key: "a/one", Consistency: at(w.w.Epoch(), 3)},
			} {
				want, err := r.Get(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "Get", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Get{Get: req}}).GetGet(), want)
			}
			for _, req := range []*indexv1.ByIndexRequest{
				{Collection: "pods", Index: "node", Values: []string{"n1"}},
				{Collection: "pods", Index: "node", Values: []string{"n1", "n2"}, View: indexv1.View_VIEW_KEYS},
				{Collection: "pods", Index: "node", Values: []string{"n1"}, LabelSelector: "app=web", Namespaces: []string{"a"}},
			} {
				want, err := r.ByIndex(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "ByIndex", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_ByIndex{ByIndex: req}}).GetByIndex(), want)
			}
			batch := &indexv1.BatchGetRequest{Collection: "pods", Keys: []string{"a/one", "x/y", "big/pod"}}
			wantBatch, err := r.BatchGet(ctx, batch)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "BatchGet", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_BatchGet{BatchGet: batch}}).GetBatchGet(), wantBatch)
			list := &indexv1.ListRequest{Collection: "pods", PageSize: 2, FieldMask: mask}
			first := call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_List{List: list}}).GetList()
			list.PageToken = first.GetNextPageToken()
			wantList, err := r.List(ctx, list) // a token of the stream is good for a unary call
			if err != nil {
				t.Fatal(err)
			}
			same(t, "List", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_List{List: list}}).GetList(), wantList)
			index := &indexv1.IndexRequest{Collection: "pods", Index: "label", Object: pod("x/y", options{labels: "app=web"}).Payload}
			wantIndex, err := r.Index(ctx, index)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "Index", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Index{Index: index}}).GetIndex(), wantIndex)
			keys := &indexv1.IndexKeysRequest{Collection: "pods", Index: "node", Value: "n1"}
			wantKeys, err := r.IndexKeys(ctx, keys)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "IndexKeys", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_IndexKeys{IndexKeys: keys}}).GetIndexKeys(), wantKeys)
			values := &indexv1.ListIndexFuncValuesRequest{Collection: "pods", Index: "label"}
			wantValues, err := r.ListIndexFuncValues(ctx, values)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "ListIndexFuncValues", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_ListIndexFuncValues{ListIndexFuncValues: values}}).GetListIndexFuncValues(), wantValues)
			for _, count := range []*indexv1.CountRequest{{Collection: "pods"}, {Collection: "pods", LabelSelector: "app"}} {
				want, err := r.Count(ctx, count)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "Count", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Count{Count: count}}).GetCount(), want)
			}
			wait := &indexv1.WaitForRevisionRequest{Revisions: []*deltav1.CollectionRevision{{Collection: "pods"}}}
			wantWait, err := r.WaitForRevision(ctx, wait)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "WaitForRevision", call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_WaitForRevision{WaitForRevision: wait}}).GetWaitForRevision(), wantWait)

			_, err = r.Get(ctx, &indexv1.GetRequest{Collection: "pods", Key: "a/none"})
			e := call(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/none"}}}).GetError()
			if codes.Code(e.GetCode()) != rpc.Code(err) || e.GetReason() != rpc.Reason(err) || e.GetMessage() != rpc.Message(err) || !cmp.Equal(e.GetMetadata(), rpc.Info(err).GetMetadata()) {
				t.Errorf("error = %v, want that of %v", e, err)
			}
			if err := a.stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := a.stream.Recv(); !errors.Is(err, io.EOF) {
				t.Errorf("the stream ends with %v after its client closed it", err)
			}
		})
	}
}

func TestAQueryStreamAnswersOutOfOrderAndCancels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	a := ask(t, r)
	get := func(tag uint64, c *indexv1.Consistency, timeout time.Duration) *indexv1.QueryRequest {
		req := &indexv1.QueryRequest{Tag: tag, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: c}}}
		if timeout != 0 {
			req.Timeout = durationpb.New(timeout)
		}
		return req
	}
	future := at(w.w.Epoch(), w.rv+1)
	future.Timeout = durationpb.New(30 * time.Second)
	a.send(get(1, future, 0))
	a.send(get(2, nil, 0))
	if a.answer(2).GetGet() == nil || a.early[1] != nil {
		t.Error("a call that waits holds up the one behind it")
	}
	a.send(get(3, future, 50*time.Millisecond))
	a.failed(a.answer(3), codes.DeadlineExceeded, "REVISION_NOT_REACHED", "")
	a.send(get(4, future, 0))
	a.send(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Cancel{Cancel: 4}})
	a.failed(a.answer(4), codes.Canceled, "", "")
	a.send(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Cancel{Cancel: 99}}) // nobody's: no answer
	w.put(t, pod("a/one", options{node: "n7"}))
	if got := a.answer(1).GetGet(); got.GetRevision().GetResourceVersion() != strconv.Itoa(w.rv) {
		t.Errorf("the call that waited got %v", got)
	}
	a.send(&indexv1.QueryRequest{Tag: 5})
	a.failed(a.answer(5), codes.InvalidArgument, "INVALID_ARGUMENT", "call")
	a.send(get(6, nil, -time.Second))
	a.failed(a.answer(6), codes.InvalidArgument, "INVALID_ARGUMENT", "timeout")
	a.send(&indexv1.QueryRequest{Tag: 7, Call: &indexv1.QueryRequest_List{List: &indexv1.ListRequest{Collection: "pods", PageSize: -1}}})
	a.failed(a.answer(7), codes.InvalidArgument, "INVALID_ARGUMENT", "page_size")

	two := get(7, nil, 0)
	count, err := proto.Marshal(&indexv1.QueryRequest{Call: &indexv1.QueryRequest_Count{Count: &indexv1.CountRequest{Collection: "pods"}}})
	if err != nil {
		t.Fatal(err)
	}
	two.ProtoReflect().SetUnknown(count) // as a client with a later contract may send
	a.send(two)
	a.failed(a.answer(7), codes.InvalidArgument, "INVALID_ARGUMENT", "call")

	later := at(w.w.Epoch(), w.rv+1)
	a.send(get(8, later, 0))
	a.send(get(8, nil, 0))
	_, err = a.stream.Recv()
	wantStatus(t, "a tag used twice", err, codes.InvalidArgument, "INVALID_ARGUMENT", "tag")
}

func TestAQueryStreamIsNotReadBeyondTheCallsItMayHave(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.MaxQueryCalls = 3 })
	w.caughtUp(t, r)
	a := ask(t, r)
	future := at(w.w.Epoch(), w.rv+1)
	future.Timeout = durationpb.New(30 * time.Second)
	for tag := range uint64(4) {
		a.send(&indexv1.QueryRequest{Tag: tag, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: future}}})
	}
	a.send(&indexv1.QueryRequest{Tag: 9, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/one"}}})
	got := make(chan *indexv1.QueryResponse, 8)
	go func() {
		for {
			resp, err := a.stream.Recv()
			if err != nil {
				close(got)
				return
			}
			got <- resp
		}
	}()
	select {
	case resp := <-got:
		t.Fatalf("%v was answered beyond the limit", resp)
	case <-time.After(200 * time.Millisecond):
	}
	w.put(t, pod("a/one", options{}))
	for range 5 {
		if resp := <-got; resp.GetGet() == nil {
			t.Errorf("answer = %v", resp)
		}
	}
	if err := a.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if resp, open := <-got; open {
		t.Errorf("one answer too many: %v", resp)
	}
}

func TestAReplicaThatStopsAnswersWhatItHasAndTellsItsQueryStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	a := ask(t, r)
	future := at(w.w.Epoch(), w.rv+1)
	future.Timeout = durationpb.New(30 * time.Second)
	a.send(&indexv1.QueryRequest{Tag: 1, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/one", Consistency: future}}})
	a.send(&indexv1.QueryRequest{Tag: 2, Call: &indexv1.QueryRequest_Get{Get: &indexv1.GetRequest{Collection: "pods", Key: "a/one"}}})
	a.answer(2)
	stopped := make(chan struct{})
	go func() { r.stop(); close(stopped) }()
	a.failed(a.answer(1), codes.Unavailable, "STOPPING", "")
	_, err := a.stream.Recv()
	wantStatus(t, "the stream", err, codes.Unavailable, "STOPPING", "")
	<-stopped
}

func TestAQueryReaderThatDoesNotReadHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, pod("n/a", options{node: "n1", pad: 900_000}), pod("n/b", options{node: "n1", pad: 900_000}))
	r := w.index(t, nil)
	w.caughtUp(t, r)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.Query(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for tag := range uint64(200) {
		req := &indexv1.QueryRequest{Tag: tag, Call: &indexv1.QueryRequest_List{List: &indexv1.ListRequest{Collection: "pods"}}}
		if err := stream.Send(req); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: "pods", Key: "n/a", View: indexv1.View_VIEW_KEYS}); err != nil {
			t.Fatal(err)
		}
	}
	cancel() // and the replica's stop finds no goroutine of the stream
}
