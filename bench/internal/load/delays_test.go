package load

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestDelaysAreReadFromNativeBuckets(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "delay_seconds", Help: "x", NativeHistogramBucketFactor: 1.1})
	registry.MustRegister(h)
	d := &Delays{Registry: registry, Metric: "delay_seconds"}
	for _, scale := range []float64{1e-3, 1e-1} { // the second time nothing of the first is left
		for i := range 1000 {
			h.Observe(float64(i+1) / 1000 * scale)
		}
		got, err := d.Since()
		if err != nil || got["count"] != 1000 {
			t.Fatalf("got %v, %v; want 1000", got, err)
		}
		for name, want := range map[string]float64{"p50": .5 * scale * 1e3, "p99": .99 * scale * 1e3} {
			if off := math.Abs(got[name]-want) / want; off > .05 {
				t.Errorf("%s of 1..1000 is %.4f ms, want %.4f", name, got[name], want)
			}
		}
	}
	if got, err := d.Since(); err != nil || got["count"] != 0 || got["p99"] != 0 {
		t.Errorf("nothing happened: %v, %v", got, err)
	}
	d.Metric = "another"
	if _, err := d.Since(); err == nil {
		t.Error("an unknown metric was read")
	}
}
