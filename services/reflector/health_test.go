package reflector_test

import (
	"context"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

func TestHealthSaysWhatReadinessSays(t *testing.T) {
	t.Parallel()
	a := newAPI(t)
	var permitted atomic.Bool
	a.onList = func(int, url.Values) (int, string) {
		if !permitted.Load() {
			return 403, status(403, "Forbidden", "not yet")
		}
		return 200, list("10", "", item("a", 1))
	}
	svc, _ := start(t, quick(), a.URL, embeddedtest.NATS(t).URL())
	addr, err := svc.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	agree := func(want bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			got, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: reflectorv1.ReflectorService_ServiceDesc.ServiceName})
			if err != nil {
				t.Fatal(err)
			}
			serving := got.GetStatus() == healthpb.HealthCheckResponse_SERVING
			if serving == want && svc.Ready(t.Context()).Ready == want {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("health is %v, readiness %+v, want %v", got, svc.Ready(t.Context()), want)
			}
		}
	}
	failing(t, reflectorv1.NewReflectorServiceClient(conn), "pods", "FORBIDDEN")
	agree(false)
	permitted.Store(true)
	agree(true)
}
