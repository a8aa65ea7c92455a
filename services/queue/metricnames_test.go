package queue_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	goldentest.Metrics(t, "metrics.txt", queuetest.Serve(t, queue.Config{}, e).Tel.Registry)
}
