package controller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/internal/tracing"
)

// metrics count what one controller does. Nil counts nothing.
type metrics struct {
	reconciles *prometheus.CounterVec
	took       prometheus.Observer
	running    prometheus.Gauge
	events     *prometheus.CounterVec
	added      prometheus.Counter
	leading    prometheus.Gauge
}

func newMetrics(o Options) (*metrics, error) {
	if o.Metrics == nil {
		return nil, nil //nolint:nilnil // nil counts nothing
	}
	is := prometheus.Labels{"controller": o.Name}
	took := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "deltaplane_controller_reconcile_seconds", Help: "How long a reconcile took.", Buckets: prometheus.ExponentialBuckets(0.001, 2, 17), ConstLabels: is,
	})
	m := &metrics{
		reconciles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_controller_reconciles_total", Help: "Reconciles that ended. outcome: forget, after, rate_limited, release, dead.", ConstLabels: is,
		}, []string{"outcome"}),
		took:    took,
		running: prometheus.NewGauge(prometheus.GaugeOpts{Name: "deltaplane_controller_reconciles_running", Help: "Reconciles that run.", ConstLabels: is}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_controller_events_total", Help: "Events. event: the kinds of controller.Event.", ConstLabels: is,
		}, []string{"event"}),
		added:   prometheus.NewCounter(prometheus.CounterOpts{Name: "deltaplane_controller_keys_added_total", Help: "Keys added to the queue because of changes.", ConstLabels: is}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{Name: "deltaplane_controller_leading", Help: "1 while this replica turns changes into keys.", ConstLabels: is}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.reconciles, took, m.running, m.events, m.added, m.leading} {
		errs = append(errs, o.Metrics.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *metrics) event(k EventKind) {
	if m != nil {
		m.events.WithLabelValues(string(k)).Inc()
	}
}

func (m *metrics) began() {
	if m != nil {
		m.running.Inc()
	}
}

func (m *metrics) ended(outcome string, took time.Duration, span trace.SpanContext) {
	if m != nil {
		m.running.Dec()
		m.reconciles.WithLabelValues(outcome).Inc()
		tracing.Observe(m.took, took.Seconds(), span)
	}
}

func (m *metrics) keys(n int) {
	if m != nil {
		m.added.Add(float64(n))
	}
}

func (m *metrics) leads(is bool) {
	if m == nil {
		return
	}
	m.leading.Set(0)
	if is {
		m.leading.Set(1)
	}
}
