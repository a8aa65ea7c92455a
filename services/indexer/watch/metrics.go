package watch

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// watchMetrics counts what happens to slow readers.
type watchMetrics struct {
	overruns  *prometheus.CounterVec
	coalesced *prometheus.CounterVec
}

func newWatchMetrics(reg prometheus.Registerer) (*watchMetrics, error) {
	m := &watchMetrics{
		overruns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_watch_overruns_total",
			Help: "Readers that fell behind by more than is kept, by what they got: coalesce, bootstrap, disconnect.",
		}, []string{"outcome"}),
		coalesced: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_watch_coalesced_events_total",
			Help: "Events that told only the latest of a key, by collection.",
		}, []string{"collection"}),
	}
	for _, outcome := range []string{"coalesce", "bootstrap", "disconnect"} {
		m.overruns.WithLabelValues(outcome)
	}
	return m, errors.Join(reg.Register(m.overruns), reg.Register(m.coalesced))
}

func (m *watchMetrics) overran(outcome string) { m.overruns.WithLabelValues(outcome).Inc() }

var (
	perWatched         = []string{"collection"}
	gaugeWatchers      = prometheus.NewDesc("deltaplane_indexer_watchers", "Open watches.", perWatched, nil)
	gaugeWatchLag      = prometheus.NewDesc("deltaplane_indexer_watch_lag_seconds", "Age of the oldest change that an open watch has not taken; what is kept no more counts from when it was dropped.", perWatched, nil)
	gaugeWatchLagCount = prometheus.NewDesc("deltaplane_indexer_watch_lag_changes", "Changes of the collection since the oldest one kept that an open watch has not taken.", perWatched, nil)
	gaugeWatchBehind   = prometheus.NewDesc("deltaplane_indexer_watchers_behind", "Open watches that have missed changes and were not yet told what of it is left.", perWatched, nil)
	gaugeWatchGroups   = prometheus.NewDesc("deltaplane_indexer_watch_groups", "Different selections that are watched.", perWatched, nil)
	gaugeStates        = prometheus.NewDesc("deltaplane_indexer_watch_initial_states", "Initial states, by stage: sending, waiting.", []string{"stage"}, nil)
)

// lag is how far the slowest watch of the collection is behind.
func (h *hub) lag(now time.Time) (age time.Duration, changes uint64, behind, groups int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		oldest, since, n := g.lag()
		behind += n
		if !oldest.IsZero() {
			age = max(age, now.Sub(oldest))
		}
		if since > 0 {
			changes = max(changes, h.snap.LastChange()+1-since)
		}
	}
	return age, changes, behind, len(h.groups)
}

// kept is what messages take that not every watch has taken, beside payloads.
func (h *hub) kept() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.groups {
		g.mu.Lock()
		n += g.cost
		g.mu.Unlock()
	}
	return n
}

// watchGauges read how far watches are behind when asked.
type watchGauges struct{ s *Watches }

// Describe implements prometheus.Collector.
func (watchGauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{gaugeWatchers, gaugeWatchLag, gaugeWatchLagCount, gaugeWatchBehind, gaugeWatchGroups, gaugeStates} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g watchGauges) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	var all series.Fold
	for _, c := range g.s.collections.Names().All {
		send := func(d *prometheus.Desc, how series.How, v float64) {
			all.Add(d, prometheus.GaugeValue, how, v, c.Label)
		}
		h := hubOf(c)
		age, changes, behind, groups := h.lag(now)
		send(gaugeWatchers, series.Sum, float64(h.watchers.Load()))
		send(gaugeWatchLag, series.Max, age.Seconds())
		send(gaugeWatchLagCount, series.Max, float64(changes))
		send(gaugeWatchBehind, series.Sum, float64(behind))
		send(gaugeWatchGroups, series.Sum, float64(groups))
	}
	all.Send(ch)
	sending, waiting := g.s.lines.len()
	ch <- prometheus.MustNewConstMetric(gaugeStates, prometheus.GaugeValue, float64(sending), "sending")
	ch <- prometheus.MustNewConstMetric(gaugeStates, prometheus.GaugeValue, float64(waiting), "waiting")
}
