package queuetest

import (
	"context"
	"testing"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue"
)

// Address runs a service as its program does, with the engine that cfg names, until the test ends.
// It returns where the service listens, and logs to the test from a level on.
func Address(t testing.TB, cfg queue.Config, level string) string {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "queue", LogOutput: t.Output(), LogLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	s, err := queue.New(cfg, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("queue: %v", err)
		}
	})
	addr, err := s.Addr(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
