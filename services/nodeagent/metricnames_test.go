package nodeagent_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/goldentest"
	"github.com/deltaplane/deltaplane/services/nodeagent"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var reg *prometheus.Registry
	w.start(func(_ *nodeagent.Config, d *nodeagent.Deps) { reg = d.Telemetry.Registry })
	goldentest.Metrics(t, "metrics.txt", reg)
}
