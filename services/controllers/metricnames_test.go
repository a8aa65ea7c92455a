package controllers

import (
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/internal/goldentest"
)

func TestTheMetricsAreThoseThatAreKept(t *testing.T) {
	t.Parallel()
	f := newFlow(t)
	s, _ := f.controllers("a", func(c *Config) { c.Controllers = []string{"job", "nodelifecycle", "podgc", "tainteviction"} })
	f.eventually("every controller runs", func() string {
		all := strings.Join(goldentest.Described(t, s.deps.Telemetry.Registry), "")
		for _, one := range []string{"job_controller_job_syncs_total", "node_collector_evictions_total", "pod_gc_collector_force_delete_pods_total", "taint_eviction_controller_pod_deletions_total"} {
			if !strings.Contains(all, one) {
				return "there is no " + one
			}
		}
		return ""
	})
	goldentest.Metrics(t, "metrics.txt", s.deps.Telemetry.Registry)
}
