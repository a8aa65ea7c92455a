package gateway

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/goldentest"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(registry); err != nil {
		t.Fatal(err)
	}
	if _, err := newMonitor(registry); err != nil {
		t.Fatal(err)
	}
	goldentest.Metrics(t, "metrics.txt", registry)
}
