package indexer_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// A replica that is instructed to stop says so first, goes on for a while, with the
// log too, and sends its streams elsewhere last.
func TestAReplicaThatStopsSaysSoThenAnswersThenSendsItsStreamsElsewhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t, fleet()...)
	r := w.index(t, func(c *indexer.Config) { c.RPC = rpc.ServerConfig{DrainGrace: 3 * time.Second} })
	w.caughtUp(t, r)
	health, err := healthpb.NewHealthClient(connect(t, r.addr)).Watch(t.Context(), &healthpb.HealthCheckRequest{Service: indexv1.IndexService_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	await := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for {
			got, err := health.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if got.GetStatus() == want {
				return
			}
		}
	}
	await(healthpb.HealthCheckResponse_SERVING)
	v := watch(t, r, &indexv1.WatchRequest{Namespace: "a"})
	v.expect(t, "+a/one", "+a/two", "end")
	future := at(w.w.Epoch(), w.rv+1)
	future.Timeout = durationpb.New(30 * time.Second)
	answer := make(chan error, 1)
	go func() { // under way: it waits for what is not written yet
		resp, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: podsName, Key: "a/one", Consistency: future})
		if err == nil && resp.GetObject().GetResourceVersion() != future.GetAtLeast().GetResourceVersion() {
			t.Errorf("the call under way was answered with %v", resp)
		}
		answer <- err
	}()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.stop() }()
	await(healthpb.HealthCheckResponse_NOT_SERVING)
	w.put(t, pod("a/one", options{node: "n9"}))
	if err := <-answer; err != nil {
		t.Errorf("a call under way when the replica is told to stop: %v", err)
	}
	if _, err := r.Get(t.Context(), &indexv1.GetRequest{Collection: podsName, Key: "a/one"}); err != nil {
		t.Errorf("a call of a client that has not heard yet: %v", err)
	}
	v.expect(t, "~a/one") // so the streams were not ended before health turned
	err = v.ends()
	wantStatus(t, "the watch", err, codes.Unavailable, "STOPPING", "")
	if rpc.RetryDelay(err) <= 0 {
		t.Error("the watch is not told when to come again, so that all come at once")
	}
	<-stopped
}
