package queuetest

import (
	"context"
	"errors"
	"io"
	"strconv"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Seconds is a duration of the contract.
func Seconds(n float64) *durationpb.Duration {
	return durationpb.New(time.Duration(n * float64(time.Second)))
}

// Config configures the queue [Q].
func (r *Rig) Config(t testing.TB, cfg *queuev1.QueueConfig) *queuev1.ConfigureQueueResponse {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = Q
	}
	res, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// Drain starts a drain and hands its reports out; the channel is closed at its end.
func (r *Rig) Drain(t *testing.T, req *queuev1.DrainQueueRequest) <-chan *queuev1.DrainQueueResponse {
	t.Helper()
	if req.Queue == "" {
		req.Queue = Q
	}
	s, err := r.DrainQueue(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan *queuev1.DrainQueueResponse, 1000)
	go func() {
		defer close(out)
		for {
			m, err := s.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) && rpc.Code(err) != codes.Canceled {
					t.Error(err)
				}
				return
			}
			out <- m
		}
	}()
	return out
}

// Names are the queues of the store.
func (r *Rig) Names(t *testing.T) []string {
	t.Helper()
	names, err := r.Engine.Names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Lease gets a key, which must come.
func (r *Rig) Lease(t *testing.T) *queuev1.Lease {
	t.Helper()
	res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: Q, SessionId: "g", Wait: Seconds(25)})
	if err != nil || len(res.GetLeases()) != 1 {
		t.Fatalf("Get = %v, %v", res, err)
	}
	return res.GetLeases()[0]
}

// Finish settles a lease, which may have run out meanwhile.
func (r *Rig) Finish(t *testing.T, l *queuev1.Lease) {
	t.Helper()
	_, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "g", Settlements: []*queuev1.Settlement{{
		Queue: Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.DeleteItems(t.Context(), &queuev1.DeleteItemsRequest{Queue: Q, Keys: []string{l.GetKey()}}); err != nil {
		t.Fatal(err)
	}
}

// WaitFor waits until the store has a queue.
func (r *Rig) WaitFor(t *testing.T, name string) {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := r.Engine.Open(t.Context(), name); err == nil {
			return
		} else if time.Now().After(until) {
			t.Fatal(err)
		}
	}
}

// WaitQueue waits until the configured queue has been made.
func (r *Rig) WaitQueue(t *testing.T) {
	t.Helper()
	for began := time.Now(); ; {
		if _, err := r.Len(t.Context(), &queuev1.LenRequest{Queue: Q}); err == nil {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("the queue was not made")
		}
	}
}

// List reads a whole list in pages and tells how many they were.
func (r *Rig) List(t *testing.T, state queuev1.State, size int32) (keys []string, pages int) {
	t.Helper()
	for token := ""; ; pages++ {
		res, err := r.ListItems(t.Context(), &queuev1.ListItemsRequest{Queue: Q, State: state, PageSize: size, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(res); n > 2<<20 {
			t.Fatalf("a page of %d bytes: a stock client cannot receive more than 4 MiB", n)
		}
		if size > 0 && len(res.GetItems()) > int(size) {
			t.Fatalf("%d items in a page, asked for %d", len(res.GetItems()), size)
		}
		for _, it := range res.GetItems() {
			if state != queuev1.State_STATE_UNSPECIFIED && it.GetState() != state {
				t.Errorf("%q is %v, asked for %v", it.GetKey(), it.GetState(), state)
			}
			keys = append(keys, it.GetKey())
		}
		if token = res.GetNextPageToken(); token == "" {
			return keys, pages + 1
		}
	}
}

// Jobs are n keys as those of real objects.
func Jobs(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "default/job-" + strconv.Itoa(i)
	}
	return out
}
