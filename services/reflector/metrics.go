package reflector

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// metrics counts what the reflections do. The reflector_* names are Kubernetes'; label "name" is
// the collection. What ListReflections knows is read from there by gauges.
type metrics struct {
	names                          *series.Names
	lists, watches, shortWatches   *prometheus.CounterVec
	listSeconds, watchSeconds      *prometheus.SummaryVec
	itemsPerList, itemsPerWatch    *prometheus.SummaryVec
	published, quarantined, failed *prometheus.CounterVec
	departures, watchEnds, leftOut *prometheus.CounterVec
	publishSeconds                 *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"name"}, labels...))
	}
	summary := func(name, help string) *prometheus.SummaryVec {
		return prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: name, Help: help}, []string{"name"})
	}
	m := &metrics{
		names:         series.NewNames(series.MaxCollections),
		lists:         counter("reflector_lists_total", "API lists done, by collection."),
		listSeconds:   summary("reflector_list_duration_seconds", "How long a complete list takes, by collection."),
		itemsPerList:  summary("reflector_items_per_list", "How many items a list returns, by collection."),
		watches:       counter("reflector_watches_total", "API watches opened, by collection."),
		shortWatches:  counter("reflector_short_watches_total", "Watches that ended within a second without an event, by collection."),
		watchSeconds:  summary("reflector_watch_duration_seconds", "How long a watch lasts, by collection."),
		itemsPerWatch: summary("reflector_items_per_watch", "How many events a watch returns, by collection."),
		published:     counter("deltaplane_reflector_published_total", "Records sent to the log, by collection and kind: delta, progress, synced, live.", "kind"),
		quarantined:   counter("deltaplane_reflector_quarantined_total", "Objects that could not be taken in, by collection."),
		failed:        counter("deltaplane_reflector_errors_total", "Failures, by collection and stage: resolve, lead, list, watch, publish.", "stage"),
		watchEnds: counter("deltaplane_reflector_watch_ends_total", "Ends of watches that were open, by collection and reason: CLOSED in good order by the server, LEFT by the "+
			"reflector, or as ListReflections calls it.", "reason"),
		departures: counter("deltaplane_reflector_departures_total", "Deletions told by a watch with a selector, by collection and by the answer to whether the object lives: "+
			"deleted, left, event (the key's next one says it); and none, forbidden, crowded, where nobody answered and the log calls them observed.", "answer"),
		leftOut: counter("deltaplane_reflector_left_out_total", "Objects of lists and events of watches that were read and are of other namespaces than those of the reflection, by collection."),
		publishSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "deltaplane_reflector_observed_to_acknowledged_seconds",
			Help:    "From reading a change from the source to the log's acknowledgement, by collection.",
			Buckets: []float64{.0002, .0005, .001, .002, .005, .01, .025, .05, .1, .5, 1, 5, 30},
		}, []string{"name"}),
	}
	for _, c := range []prometheus.Collector{
		m.lists, m.watches, m.shortWatches, m.listSeconds, m.watchSeconds, m.itemsPerList, m.itemsPerWatch,
		m.published, m.quarantined, m.failed, m.departures, m.watchEnds, m.leftOut, m.publishSeconds,
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// forget drops the series of a collection that is not mirrored any more, unless they are those
// of the rest.
func (m *metrics) forget(name string) {
	if name == series.Rest {
		return
	}
	m.names.Forget(name)
	of := prometheus.Labels{"name": name}
	for _, c := range []interface{ DeletePartialMatch(prometheus.Labels) int }{
		m.lists, m.watches, m.shortWatches, m.listSeconds, m.watchSeconds, m.itemsPerList, m.itemsPerWatch,
		m.published, m.quarantined, m.failed, m.departures, m.watchEnds, m.leftOut, m.publishSeconds,
	} {
		c.DeletePartialMatch(of)
	}
}

// gauges reads the reflections' states when metrics are asked for.
type gauges struct{ s *Service }

var (
	objectsDesc   = prometheus.NewDesc("deltaplane_reflector_objects", "Objects in the collection.", []string{"name"}, nil)
	pendingDesc   = prometheus.NewDesc("deltaplane_reflector_pending", "Changes read and not yet acknowledged by the log.", []string{"name"}, nil)
	lagDesc       = prometheus.NewDesc("deltaplane_reflector_lag_seconds", "From reading a change to its acknowledgement: of the oldest of the last batch, or of the next as long as it has waited.", []string{"name"}, nil)
	coalescedDesc = prometheus.NewDesc("deltaplane_reflector_coalesced_total", "Changes dropped in favour of a later one of the same key, because the log was slow.", []string{"name"}, nil)
	droppedDesc   = prometheus.NewDesc("deltaplane_reflector_dropped_total", "Changes left to a list, because the log was slow and too many keys waited.", []string{"name"}, nil)
	poisonedDesc  = prometheus.NewDesc("deltaplane_reflector_quarantined", "Objects that are quarantined now.", []string{"name"}, nil)
	listDesc      = prometheus.NewDesc("deltaplane_reflector_list_objects", "Objects of the list that runs; absent while none does.", []string{"name"}, nil)
	remainingDesc = prometheus.NewDesc("deltaplane_reflector_list_remaining", "Objects still to come in the list that runs; absent while that is not known.", []string{"name"}, nil)
	epochDesc     = prometheus.NewDesc("deltaplane_reflector_epoch", "Epoch of the log.", []string{"name"}, nil)
	termDesc      = prometheus.NewDesc("deltaplane_reflector_term", "Term of this reflector's own leadership; 0 while standby.", []string{"name"}, nil)
	leaderDesc    = prometheus.NewDesc("deltaplane_reflector_leader", "1 while this reflector leads the collection.", []string{"name"}, nil)
	watchingDesc  = prometheus.NewDesc("deltaplane_reflector_watching", "1 while the watch is open.", []string{"name"}, nil)
	failingDesc   = prometheus.NewDesc("deltaplane_reflector_failing", "1 while the reflection fails, by the reason that ListReflections names, such as LOG_FULL; absent while it does not.", []string{"name", "reason"}, nil)
	lastRVDesc    = prometheus.NewDesc("reflector_last_resource_version", "Last 15 digits of the watermark.", []string{"name"}, nil)
	silenceDesc   = prometheus.NewDesc("deltaplane_reflector_source_silence_seconds", "Since the source was last heard.", []string{"name"}, nil)
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		objectsDesc, pendingDesc, lagDesc, coalescedDesc, droppedDesc, poisonedDesc, listDesc, remainingDesc, epochDesc, termDesc, leaderDesc, watchingDesc, failingDesc, lastRVDesc, silenceDesc,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	var all series.Fold
	seen := map[string]bool{}
	for _, r := range g.s.all() {
		v := r.state.get()
		if seen[v.name] {
			continue // asked for twice, which one of them says
		}
		seen[v.name] = true
		name := g.s.metrics.names.Of(v.name)
		gauge := func(d *prometheus.Desc, how series.How, value float64) {
			all.Add(d, prometheus.GaugeValue, how, value, name)
		}
		gauge(objectsDesc, series.Sum, float64(v.objects))
		gauge(pendingDesc, series.Sum, float64(v.pending))
		gauge(lagDesc, series.Max, v.behind(time.Now()).Seconds())
		all.Add(coalescedDesc, prometheus.CounterValue, series.Sum, float64(v.coalesced), name)
		all.Add(droppedDesc, prometheus.CounterValue, series.Sum, float64(v.dropped), name)
		gauge(poisonedDesc, series.Sum, float64(v.poisoned))
		if !v.list.began.IsZero() {
			gauge(listDesc, series.Sum, float64(v.list.objects))
			if v.list.total > 0 {
				gauge(remainingDesc, series.Sum, float64(max(v.list.total-v.list.objects, 0)))
			}
		}
		gauge(epochDesc, series.Own, float64(v.revision.Epoch))
		gauge(termDesc, series.Own, float64(v.term))
		gauge(leaderDesc, series.Min, flag(v.term != 0))
		gauge(watchingDesc, series.Min, flag(v.phase == reflectorv1.ReflectionState_REFLECTION_STATE_WATCHING))
		if v.reason != "" {
			all.Add(failingDesc, prometheus.GaugeValue, series.Max, 1, name, v.reason)
		}
		digits := v.revision.RV[max(0, len(v.revision.RV)-15):]
		rv, _ := strconv.ParseFloat(digits, 64) // empty before the first list: 0
		gauge(lastRVDesc, series.Own, rv)
		if !v.sourceAt.IsZero() {
			gauge(silenceDesc, series.Max, time.Since(v.sourceAt).Seconds())
		}
	}
	all.Send(ch)
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
