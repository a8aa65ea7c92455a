package controllers

import (
	"context"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/internal/devcluster"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func TestMain(m *testing.M) {
	// A connection to a real API server outlives its client by a minute.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"))
}

// cluster runs a dev cluster until the test ends and returns a client of it.
func cluster(t *testing.T, cfg devcluster.Config) *kube.Client {
	t.Helper()
	kc, _ := clusterOf(t, cfg)
	return kc
}

// clusterOf also returns the cluster, whose nodes can be stopped.
func clusterOf(t *testing.T, cfg devcluster.Config) (*kube.Client, *devcluster.Cluster) {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	dc, err := devcluster.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- dc.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("dev cluster: %v", err)
		}
	})
	<-dc.Ready()
	kc, err := kube.Load(kube.Config{URL: dc.URL()})
	if err != nil {
		t.Fatal(err)
	}
	return kc, dc
}
