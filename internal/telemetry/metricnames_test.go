package telemetry_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// What every service has, where it has certificates and its callers have tokens.
func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Certificates: map[string]string{"server": "none"}})
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("0123456789abcdef ops\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := rpc.NewServer(rpc.ServerConfig{StreamWorkers: -1, Auth: rpc.AuthConfig{TokenFile: tokens}}, rpc.Options{Registry: tel.Registry}); err != nil {
		t.Fatal(err)
	}
	goldentest.Metrics(t, "metrics.txt", tel.Registry)
}
