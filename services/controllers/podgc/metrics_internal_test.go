package podgc

import (
	"errors"
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

func TestNamespacesBeyondTheBoundAreCountedTogether(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m, err := newMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	const beyond = 3
	for i := range series.MaxNamespaces + beyond {
		var p podgc.Pod
		p.Metadata.Namespace = fmt.Sprintf("ns-%d", i)
		m.tried(&p, podgc.Reason("terminated"), errors.New("not now"))
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n != series.MaxNamespaces+1 {
			t.Errorf("%s has %d series, want %d", f.GetName(), n, series.MaxNamespaces+1)
		}
		for _, metric := range f.GetMetric() {
			if metric.GetLabel()[0].GetValue() == series.Rest && metric.GetCounter().GetValue() != beyond {
				t.Errorf("%s of the rest is %v, want %d", f.GetName(), metric.GetCounter().GetValue(), beyond)
			}
		}
	}
	if len(families) != 2 {
		t.Errorf("%d metrics", len(families))
	}
}
