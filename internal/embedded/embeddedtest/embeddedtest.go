// Package embeddedtest starts the embedded servers for a test and stops them
// when it ends.
package embeddedtest

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded"
)

// Redis starts a redis-server for t. Without one on PATH the test fails, and
// says what to install.
func Redis(t testing.TB) *embedded.Redis {
	t.Helper()
	r, err := embedded.StartRedis(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// NATS starts a NATS server for t that other processes can reach too.
func NATS(t testing.TB) *embedded.NATS {
	t.Helper()
	n, err := embedded.StartNATS(embedded.NATSConfig{Dir: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Stop)
	return n
}
