// Package devclustertest starts dev clusters for tests.
package devclustertest

import (
	"context"
	"log/slog"
	"net/http"
	"testing"

	"github.com/deltaplane/deltaplane/internal/devcluster"
)

// Start runs a dev cluster on a free port until the test ends, and returns it when it
// listens. The cluster logs to the test. Config.Listen is ignored.
func Start(t testing.TB, cfg devcluster.Config) *devcluster.Cluster {
	t.Helper()
	cfg.Listen = "127.0.0.1:0"
	c, err := devcluster.New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v, want nil on a clean stop", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case <-c.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("Run() = %v before it was ready", err)
	}
	return c
}
