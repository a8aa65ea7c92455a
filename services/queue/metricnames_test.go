package queue

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	goldentest.Metrics(t, "metrics.txt", serve(t, Config{}, e).tel.Registry)
}
