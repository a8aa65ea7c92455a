package follow

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// quietLog has the one fact that making collections asks for.
type quietLog struct{ Log }

func (quietLog) TombstoneTTL() time.Duration { return time.Hour }

func TestCollectionsBeyondTheBoundShareTheSeriesOfTheRest(t *testing.T) {
	t.Parallel()
	const beyond = 2
	reg := prometheus.NewRegistry()
	s, err := New(Config{}, quietLog{}, &telemetry.Telemetry{Log: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider(), Registry: reg})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(nil, func(*Collection) Observer { return nil }); err != nil {
		t.Fatal(err)
	}
	for i := range series.MaxCollections + beyond {
		c := s.Know(delta.Collection{Cluster: "dev", Version: "v1", Resource: fmt.Sprintf("r%d", i)})
		s.metrics.refused.WithLabelValues(c.Label).Inc()
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		of, rest := map[string]bool{}, -1.0
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); len(l) > 0 && l[0].GetName() == "collection" {
				of[l[0].GetValue()] = true
				if l[0].GetValue() == series.Rest {
					rest = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		if len(of) == 0 {
			continue
		}
		seen++
		if len(of) != series.MaxCollections+1 {
			t.Errorf("%s has series of %d collections, want %d", f.GetName(), len(of), series.MaxCollections+1)
		}
		if f.GetName() == "deltaplane_indexer_memory_refusals_total" && rest != beyond {
			t.Errorf("the rest was refused %v times, want %d", rest, beyond)
		}
	}
	if seen < 10 {
		t.Errorf("%d metrics have a collection: the test looks at the wrong label", seen)
	}
}
