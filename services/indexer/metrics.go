package indexer

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// metrics counts what the indexer does. What can be read from a snapshot is
// read when it is asked for, by gauges.
type metrics struct {
	deltas   *prometheus.CounterVec
	latency  prometheus.Histogram
	visible  prometheus.Histogram
	watch    *watchMetrics
	pages    *prometheus.CounterVec
	queries  *prometheus.CounterVec
	answered [queryFailed]prometheus.Counter // of queries

	unreadable *prometheus.CounterVec
	files      *fileMetrics
	refused    *prometheus.CounterVec
	limited    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
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
		watch: newWatchMetrics(),
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_page_tokens_total", Help: "Page tokens used, by result: served, elsewhere (another replica made it), expired.",
		}, []string{"result"}),
	}
	m.queries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_query_calls_total", Help: "Calls answered on Query streams, by call and gRPC code.",
	}, []string{"call", "code"})
	m.answered = answeredBy(m.queries)
	m.unreadable = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_unreadable_records_total", Help: "Log records that could not be decoded, by collection.",
	}, []string{"collection"})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_memory_refusals_total", Help: "Times a collection was let go because it did not fit into the memory budget.",
	}, []string{"collection"})
	m.limited = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_limited_total",
		Help: "Watches, calls and answers refused, by limit: max_watchers, max_client_watchers, max_request_bytes, max_client_request_bytes.",
	}, []string{"limit"})
	m.files = newFileMetrics()
	for _, c := range []prometheus.Collector{m.deltas, m.latency, m.visible, m.watch.overruns, m.watch.coalesced, m.pages, m.queries, m.unreadable, m.refused, m.limited, m.files.written, m.files.took, m.files.starts} {
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

// observe records how long live deltas took until they were visible, and a span
// for those that are traced.
func (c *collection) observe(ctx context.Context, records []delta.Record, began, visible time.Time) {
	var links []trace.Link
	for i := range records {
		r := &records[i]
		if r.Kind != delta.KindDelta {
			continue
		}
		if !r.PublishedAt.IsZero() {
			c.metrics.latency.Observe(max(0, visible.Sub(r.PublishedAt).Seconds()))
		}
		if !r.StoredAt.IsZero() {
			c.metrics.visible.Observe(max(0, visible.Sub(r.StoredAt).Seconds()))
		}
		if strings.HasSuffix(r.Trace, "-01") && len(links) < 32 {
			from := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": r.Trace})
			links = append(links, trace.LinkFromContext(from))
		}
	}
	if links == nil {
		return
	}
	// One batch folds several deltas: it links to them rather than choosing a parent, unless there is only one.
	if len(links) == 1 {
		ctx = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext)
	}
	_, span := c.tracer.Start(ctx, "index.apply", trace.WithTimestamp(began), trace.WithLinks(links...),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
			attribute.String("deltaplane.collection", c.name), attribute.Int("deltaplane.records", len(records))))
	span.End(trace.WithTimestamp(visible))
}

// gauges read the state of every collection when asked.
type gauges struct{ s *Service }

var (
	perCollection  = []string{"collection"}
	gaugeObjects   = prometheus.NewDesc("deltaplane_indexer_objects", "Objects held.", perCollection, nil)
	gaugeBytes     = prometheus.NewDesc("deltaplane_indexer_payload_bytes", "Payload bytes held.", perCollection, nil)
	gaugeStored    = prometheus.NewDesc("deltaplane_indexer_stored_bytes", "Payload bytes as they are stored, by collection and tier: raw, compact.", []string{"collection", "tier"}, nil)
	gaugeMemory    = prometheus.NewDesc("deltaplane_indexer_memory_bytes", "Memory held for the collection, as an estimate.", perCollection, nil)
	gaugeDicts     = prometheus.NewDesc("deltaplane_indexer_dictionaries", "Dictionaries that stored payloads need.", perCollection, nil)
	gaugeRatio     = prometheus.NewDesc("deltaplane_indexer_compression_ratio", "Payload bytes compressed, over what became of them.", perCollection, nil)
	countTrained   = prometheus.NewDesc("deltaplane_indexer_dictionaries_made_total", "Dictionaries made from the collection's objects.", perCollection, nil)
	countDecode    = prometheus.NewDesc("deltaplane_indexer_decode_errors_total", "Stored payloads that could not be decoded.", perCollection, nil)
	gaugeRefused   = prometheus.NewDesc("deltaplane_indexer_memory_refused", "1 while the collection is not held because it does not fit into the memory budget.", perCollection, nil)
	gaugeBudget    = prometheus.NewDesc("deltaplane_indexer_memory_budget_bytes", "What all collections may take; absent without a bound.", nil, nil)
	gaugeFaults    = prometheus.NewDesc("deltaplane_indexer_quarantined_keys", "Keys whose newest version cannot be read.", perCollection, nil)
	gaugeSynced    = prometheus.NewDesc("deltaplane_indexer_synced", "1 when reads are answered.", perCollection, nil)
	gaugeLag       = prometheus.NewDesc("deltaplane_indexer_lag_records", "Log records behind the end of the log as last known.", perCollection, nil)
	gaugeSilence   = prometheus.NewDesc("deltaplane_indexer_silence_seconds", "Since the reflector was last heard on the log.", perCollection, nil)
	gaugeWatchers  = prometheus.NewDesc("deltaplane_indexer_watchers", "Open watches.", perCollection, nil)
	gaugeErrors    = prometheus.NewDesc("deltaplane_indexer_index_errors", "Keys an index function failed on, over all indexes.", perCollection, nil)
	gaugeLagging   = prometheus.NewDesc("deltaplane_indexer_lagging", "1 while the revision has stood still for more than 10 s behind a hole in the log: barriers are not met on this replica.", perCollection, nil)
	gaugeUnindexed = prometheus.NewDesc("deltaplane_indexer_index_unindexed_objects", "Objects that an index has no values for, since its path or expression fails on them; ListIndexers names the first.", []string{"collection", "index"}, nil)
	gaugeRequests  = prometheus.NewDesc("deltaplane_indexer_request_bytes", "Memory that requests hold while they wait, as an estimate.", nil, nil)
	gaugePinned    = prometheus.NewDesc("deltaplane_indexer_pinned_snapshots", "Snapshots kept for page tokens.", nil, nil)
)

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		gaugeObjects, gaugeBytes, gaugeFaults, gaugeSynced, gaugeLag, gaugeSilence, gaugeWatchers, gaugeErrors, gaugeLagging, gaugeUnindexed, gaugePinned, gaugeFileAge, gaugeFileBytes, gaugeUnsaved,
		gaugeWatchLag, gaugeWatchLagCount, gaugeWatchBehind, gaugeWatchGroups, gaugeStates,
		gaugeRequests, gaugeStored, gaugeMemory, gaugeDicts, gaugeRatio, countTrained, countDecode, gaugeRefused, gaugeBudget,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	for _, c := range g.s.names.Load().all {
		snap := c.store.Snapshot()
		failed, synced := 0, 0
		for _, x := range snap.Indexers() {
			failed += x.Failed
			ch <- prometheus.MustNewConstMetric(gaugeUnindexed, prometheus.GaugeValue, float64(x.Failed), c.name, x.Name)
		}
		if snap.State().Synced {
			synced = 1
		}
		send := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, c.name)
		}
		send(gaugeObjects, float64(snap.Len()))
		send(gaugeBytes, float64(snap.Bytes()))
		g.memory(ch, c)
		send(gaugeFaults, float64(snap.Faults()))
		send(gaugeSynced, float64(synced))
		send(gaugeLag, float64(c.lag(snap.State())))
		if fresh := snap.State().Fresh; !fresh.IsZero() {
			send(gaugeSilence, now.Sub(fresh).Seconds())
		}
		send(gaugeWatchers, float64(c.watchers.Load()))
		send(gaugeErrors, float64(failed))
		lagging := 0.0
		if c.lagging(c.now()) {
			lagging = 1
		}
		send(gaugeLagging, lagging)
		if g.s.files != nil {
			failing := 0.0
			if c.unsaved.Load() != nil {
				failing = 1
			}
			send(gaugeUnsaved, failing)
		}
		if saved := c.saved.Load(); saved != nil {
			send(gaugeFileAge, now.Sub(saved.at).Seconds())
			send(gaugeFileBytes, float64(saved.bytes))
		}
	}
	g.s.watchGauges(ch, now)
	if budget := g.s.cfg.MemoryBudget; budget > 0 {
		ch <- prometheus.MustNewConstMetric(gaugeBudget, prometheus.GaugeValue, float64(budget))
	}
	ch <- prometheus.MustNewConstMetric(gaugeRequests, prometheus.GaugeValue, float64(g.s.requests.used()))
	ch <- prometheus.MustNewConstMetric(gaugePinned, prometheus.GaugeValue, float64(g.s.pins.len()))
}
