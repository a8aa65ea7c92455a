package client_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/client"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// gathering answers counts when as many are under way as were waited for, by call or by stream.
type gathering struct {
	indexv1.UnimplementedIndexServiceServer
	gather func()
	stream func(indexv1.IndexService_QueryServer) error

	mu              sync.Mutex
	called, streams int
}

func (s *gathering) Count(context.Context, *indexv1.CountRequest) (*indexv1.CountResponse, error) {
	s.mu.Lock()
	s.called++
	s.mu.Unlock()
	s.gather()
	return &indexv1.CountResponse{Count: 7}, nil
}

func (s *gathering) Query(stream indexv1.IndexService_QueryServer) error {
	s.mu.Lock()
	s.streams++
	s.mu.Unlock()
	return s.stream(stream)
}

// reads makes as many reads at a time, all of which are under way before any is answered.
func (s *gathering) reads(t *testing.T, n int) {
	t.Helper()
	var under sync.WaitGroup
	under.Add(n)
	s.gather = func() { under.Done(); under.Wait() }
	conn, stop := serve(t, func(r grpc.ServiceRegistrar) { indexv1.RegisterIndexServiceServer(r, s) })
	defer stop()
	x := client.NewIndex(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			if got, _, err := x.Count(ctx, "pods", client.ListOptions{}); err != nil || got != 7 {
				t.Errorf("Count = %d, %v", got, err)
			}
		})
	}
	wg.Wait()
}

// answer answers the reads of a stream.
func (s *gathering) answer(stream indexv1.IndexService_QueryServer) error {
	var sending sync.Mutex
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has left
		}
		go func() {
			s.gather()
			sending.Lock()
			defer sending.Unlock()
			_ = stream.Send(&indexv1.QueryResponse{Tag: req.GetTag(), Answer: &indexv1.QueryResponse_Count{Count: &indexv1.CountResponse{Count: 7}}})
		}()
	}
}

func TestFewReadsAtATimeAreCallsAndManyShareAStream(t *testing.T) {
	t.Parallel()
	few, many := &gathering{}, &gathering{}
	few.stream, many.stream = few.answer, many.answer
	few.reads(t, 8)
	if few.called != 8 || few.streams != 0 {
		t.Errorf("8 reads at a time were %d calls and opened %d streams", few.called, few.streams)
	}
	many.reads(t, 40)
	if many.called != 8 || many.streams != 1 {
		t.Errorf("40 reads at a time were %d calls and opened %d streams, want 8 and 1", many.called, many.streams)
	}
}

func TestWhereStreamsAreRefusedEveryReadIsACall(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unimplemented, codes.PermissionDenied} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			s := &gathering{stream: func(indexv1.IndexService_QueryServer) error { return status.Error(code, "no streams") }}
			s.reads(t, 40)
			if s.called != 40 {
				t.Errorf("%d of 40 reads were calls", s.called)
			}
		})
	}
}

func TestReadsOfAStreamThatBreaksAreMadeAgain(t *testing.T) {
	t.Parallel()
	s := &gathering{}
	var once sync.Once
	s.stream = func(stream indexv1.IndexService_QueryServer) error {
		broken := false
		once.Do(func() { _, _ = stream.Recv(); broken = true })
		if broken {
			return status.Error(codes.Unavailable, "going away")
		}
		return s.answer(stream)
	}
	s.reads(t, 40)
	if s.called != 8 || s.streams < 2 {
		t.Errorf("%d calls and %d streams, want 8 and another stream", s.called, s.streams)
	}
}
