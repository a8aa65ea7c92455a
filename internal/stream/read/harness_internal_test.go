package read

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// connected is a connection to a server of the test's own.
func connected(t *testing.T, cfg link.Config) *link.Conn {
	t.Helper()
	cfg.URL = embeddedtest.NATS(t).URL()
	c, err := link.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
