package follow

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// metrics counts what is read of the logs. What can be read from a snapshot is
// read when it is asked for, by gauges.
type metrics struct {
	names, indexes *series.Names // collections, and their indexes as collection/index

	deltas     *prometheus.CounterVec
	latency    prometheus.Histogram
	visible    prometheus.Histogram
	unreadable *prometheus.CounterVec
	unknown    *prometheus.CounterVec
	files      *fileMetrics
	refuted    *prometheus.CounterVec
	refused    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		names: series.NewNames(series.MaxCollections), indexes: series.NewNames(series.MaxIndexes),
		deltas: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_deltas_total",
			Help: "Records applied, by collection and result: added, updated, deleted, stale, same.",
		}, []string{"collection", "result"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "deltaplane_indexer_publish_to_visible_seconds",
			Help:    "From the moment the reflector published a delta to the snapshot that shows it.",
			Buckets: []float64{.0001, .0002, .0005, .001, .0015, .002, .005, .01, .025, .05, .1, .5, 1, 5},
		}),
		visible: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "deltaplane_indexer_stored_to_visible_seconds",
			Help:    "From the moment the log stored a delta, by the log's clock, to the snapshot that shows it: what log and indexer add without the reflector.",
			Buckets: []float64{.0001, .00015, .0002, .0003, .0005, .001, .0015, .002, .005, .01, .025, .05, .1, .5, 1, 5},
			// The finer buckets are sent to those who ask for native histograms.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160, NativeHistogramMinResetDuration: time.Hour,
		}),
		unreadable: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_unreadable_records_total", Help: "Log records that could not be decoded, by collection.",
		}, []string{"collection"}),
		refuted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_log_rereads_total",
			Help: "Times a log was read from its start again because what was read of it is not what its leader wrote, by collection.",
		}, []string{"collection"}),
		unknown: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_unknown_records_total",
			Help: "Log records of a later build, by collection and what of them is not known: version, type, encoding (reading stands still before them), kind, reason (passed over).",
		}, []string{"collection", "part"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_memory_refusals_total", Help: "Times a collection was let go because it did not fit into the memory budget.",
		}, []string{"collection"}),
		files: newFileMetrics(),
	}
	for _, c := range []prometheus.Collector{m.deltas, m.latency, m.visible, m.unreadable, m.unknown, m.refuted, m.refused, m.files.written, m.files.took, m.files.starts} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) applied(collection string, r store.Result) {
	for _, v := range [...]struct {
		result string
		n      int
	}{{"added", r.Added}, {"updated", r.Updated}, {"deleted", r.Deleted}, {"stale", r.Stale}, {"same", r.Same}} {
		if v.n > 0 {
			m.deltas.WithLabelValues(collection, v.result).Add(float64(v.n))
		}
	}
}

// mostTraced is how many deltas of a batch have a span.
const mostTraced = 32

// observe records how long live deltas took until they were visible, and a span for those that are
// traced.
func (c *Collection) observe(ctx context.Context, records []delta.Record, began, visible time.Time) {
	traced := 0
	for i := range records {
		r := &records[i]
		if r.Kind != delta.KindDelta {
			continue
		}
		var span trace.SpanContext
		if tracing.Sampled(r.Trace) && traced < mostTraced {
			traced++
			span = c.applied(ctx, r, len(records), began, visible)
		}
		if !r.PublishedAt.IsZero() {
			tracing.Observe(c.metrics.latency, max(0, visible.Sub(r.PublishedAt).Seconds()), span)
		}
		if !r.StoredAt.IsZero() {
			tracing.Observe(c.metrics.visible, max(0, visible.Sub(r.StoredAt).Seconds()), span)
		}
	}
}

// applied makes the span of one delta of a batch.
func (c *Collection) applied(ctx context.Context, r *delta.Record, records int, began, visible time.Time) trace.SpanContext {
	_, span := c.tracer.Start(tracing.With(ctx, r.Trace), "index", trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		tracing.KeyCollection.String(c.Name), tracing.KeyKey.String(string(r.Key)), tracing.KeyRV.String(r.RV), tracing.KeyRecords.Int(records)))
	span.End(trace.WithTimestamp(visible))
	return span.SpanContext()
}

// fileMetrics tell of checkpoints.
type fileMetrics struct {
	written *prometheus.CounterVec
	took    prometheus.Histogram
	starts  *prometheus.CounterVec
}

func newFileMetrics() *fileMetrics {
	m := &fileMetrics{
		written: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_checkpoints_total", Help: "Checkpoints written, by outcome: saved, failed.",
		}, []string{"outcome"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "deltaplane_indexer_checkpoint_duration_seconds",
			Help:    "Time to write one checkpoint; except at a stop it is written slowly on purpose.",
			Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_warm_starts_total",
			Help: "Collections that looked for their checkpoint, by outcome: used, none, damaged, format, foreign, old, budget, failed; refused when the log had changed under one that was used.",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{"saved", "failed"} {
		m.written.WithLabelValues(outcome)
	}
	return m
}

var (
	gaugeFileAge   = prometheus.NewDesc("deltaplane_indexer_checkpoint_age_seconds", "Since the collection's checkpoint was written.", perCollection, nil)
	gaugeUnsaved   = prometheus.NewDesc("deltaplane_indexer_checkpoint_failing", "1 while the collection's last checkpoint could not be written, as on a full disk.", perCollection, nil)
	gaugeFileBytes = prometheus.NewDesc("deltaplane_indexer_checkpoint_bytes", "Length of the collection's checkpoint.", perCollection, nil)
)
