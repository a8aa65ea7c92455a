package indexer_test

import (
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	r := w.index(t, nil)
	w.caughtUp(t, r)
	goldentest.Metrics(t, "metrics.txt", r.tel.Registry)
}
