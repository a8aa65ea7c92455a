package tracing

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
)

// Observe adds a value to a histogram, with an exemplar where it is that of a recorded span.
func Observe(to prometheus.Observer, value float64, span trace.SpanContext) {
	if span.IsSampled() {
		if exemplars, ok := to.(prometheus.ExemplarObserver); ok {
			exemplars.ObserveWithExemplar(value, prometheus.Labels{"trace_id": span.TraceID().String(), "span_id": span.SpanID().String()})
			return
		}
	}
	to.Observe(value)
}
