package indexer

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// laggingGauges are the values of deltaplane_indexer_lagging by collection.
func laggingGauges(t *testing.T, s *server) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	if err := r.Register(followGauges{s.collections}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "deltaplane_indexer_lagging" {
			for _, m := range f.GetMetric() {
				values[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// A collection that lags is so in its part of health, in a metric and in its status; the others and the service are well.
func TestHealthMetricAndStatusSayThatACollectionLags(t *testing.T) {
	t.Parallel()
	s := serving(t, func(c *Config) { c.RPC.Listen = "127.0.0.1:0" })
	pods := []podFacts{{namespace: "a", name: "one", node: "n1"}}
	lags := s.fill(t, "eu", pods)
	well := s.fill(t, "us", pods)
	for _, c := range []*collection{lags, well} {
		c.replayed.Store(true)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.rpc.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	addr, err := s.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const serves, ill = grpc_health_v1.HealthCheckResponse_SERVING, grpc_health_v1.HealthCheckResponse_NOT_SERVING
	check := func(when string, want bool) {
		t.Helper()
		s.publishHealth(ctx)
		service, of := indexv1.IndexService_ServiceDesc.ServiceName, serves
		if want {
			of = ill
		}
		for name, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
			service: serves, service + "/us/pods.v1": serves, service + "/eu/pods.v1": of,
		} {
			got, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: name})
			if err != nil || got.GetStatus() != want {
				t.Errorf("%s: health of %s is %v, %v, want %v", when, name, got.GetStatus(), err, want)
			}
		}
		values := laggingGauges(t, s)
		if value, ok := values["eu/pods.v1"]; !ok || (value == 1) != want {
			t.Errorf("%s: the metric says %v", when, values)
		}
		if value, ok := values["us/pods.v1"]; !ok || value != 0 {
			t.Errorf("%s: the metric says %v", when, values)
		}
		answer, err := s.ListCollections(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range answer.GetCollections() {
			if c.GetLagging() != (want && c.GetCluster() == "eu") {
				t.Errorf("%s: status %v", when, c)
			}
		}
	}
	check("while it goes on", false)
	lags.frozen.Store(time.Now().UnixNano())
	check("behind a hole for a moment", false)
	since := time.Now().Add(-laggingAfter - time.Second)
	lags.frozen.Store(since.UnixNano())
	check("behind a hole for long", true)
	answer, err := s.ListCollections(ctx, nil)
	if err != nil || !answer.GetCollections()[0].GetFrozenSince().AsTime().Equal(since) {
		t.Errorf("status %v, %v, want frozen since %v", answer, err, since)
	}
	lags.frozen.Store(0)
	check("when it is over", false)
}
