// Package servetest runs indexers for tests of what calls them.
package servetest

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer"
)

// Log is a connection to a NATS server of the test's own.
func Log(t testing.TB) *stream.Conn {
	t.Helper()
	conn, err := stream.Connect(t.Context(), stream.Config{Options: []stream.Option{embeddedtest.NATS(t).InProcess()}, TombstoneTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// Serve runs an indexer on a log until stop is called or the test ends. It finds new logs soon; a
// nil change leaves the rest of its configuration as it is by default.
func Serve(t testing.TB, log *stream.Conn, change func(*indexer.Config)) (addr string, stop func()) {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "indexer", LogOutput: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	cfg := indexer.Config{Admin: telemetry.AdminConfig{Listen: "off"}, DiscoverEvery: 20 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	svc, err := indexer.New(cfg, log, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("indexer: %v", err)
		}
	})
	t.Cleanup(stop)
	if addr, err = svc.Addr(t.Context()); err != nil {
		t.Fatal(err)
	}
	return addr, stop
}
