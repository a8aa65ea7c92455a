package follow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// gauges read the state of every collection when asked.
type gauges struct{ s *Collections }

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
	gaugeErrors    = prometheus.NewDesc("deltaplane_indexer_index_errors", "Keys an index function failed on, over all indexes.", perCollection, nil)
	gaugeLagging   = prometheus.NewDesc("deltaplane_indexer_lagging", "1 while the revision has stood still for more than 10 s behind a hole in the log, or stands still before a record of a later build: barriers are not met on this replica.", perCollection, nil)
	gaugeUnindexed = prometheus.NewDesc("deltaplane_indexer_index_unindexed_objects", "Objects that an index has no values for, since its path or expression fails on them; ListIndexers names the first.", []string{"collection", "index"}, nil)
)

// Describe implements prometheus.Collector.
func (gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		gaugeObjects, gaugeBytes, gaugeFaults, gaugeSynced, gaugeLag, gaugeSilence, gaugeErrors, gaugeLagging, gaugeUnindexed, gaugeFileAge, gaugeFileBytes, gaugeUnsaved,
		gaugeStored, gaugeMemory, gaugeDicts, gaugeRatio, countTrained, countDecode, gaugeRefused, gaugeBudget,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	var all series.Fold
	for _, c := range g.s.names.Load().All {
		snap := c.store.Snapshot()
		failed := 0
		for _, x := range snap.Indexers() {
			failed += x.Failed
			index := x.Name
			if g.s.metrics.indexes.Of(c.Label+"/"+x.Name) == series.Rest {
				index = series.Rest
			}
			all.Add(gaugeUnindexed, prometheus.GaugeValue, series.Sum, float64(x.Failed), c.Label, index)
		}
		send := func(d *prometheus.Desc, how series.How, v float64) {
			all.Add(d, prometheus.GaugeValue, how, v, c.Label)
		}
		send(gaugeObjects, series.Sum, float64(snap.Len()))
		send(gaugeBytes, series.Sum, float64(snap.Bytes()))
		memory(&all, c)
		send(gaugeFaults, series.Sum, float64(snap.Faults()))
		send(gaugeSynced, series.Min, flag(snap.State().Synced))
		send(gaugeLag, series.Max, float64(c.Lag(snap.State())))
		if fresh := snap.State().Fresh; !fresh.IsZero() {
			send(gaugeSilence, series.Max, now.Sub(fresh).Seconds())
		}
		send(gaugeErrors, series.Sum, float64(failed))
		send(gaugeLagging, series.Max, flag(c.Lagging()))
		if g.s.files != nil {
			send(gaugeUnsaved, series.Max, flag(c.unsaved.Load() != nil))
		}
		if saved := c.saved.Load(); saved != nil {
			send(gaugeFileAge, series.Max, now.Sub(saved.at).Seconds())
			send(gaugeFileBytes, series.Sum, float64(saved.bytes))
		}
	}
	all.Send(ch)
	if budget := g.s.cfg.MemoryBudget; budget > 0 {
		ch <- prometheus.MustNewConstMetric(gaugeBudget, prometheus.GaugeValue, float64(budget))
	}
}

// memory adds what is known of the memory of a collection.
func memory(all *series.Fold, c *Collection) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, how series.How, v float64, labels ...string) {
		all.Add(d, t, how, v, append([]string{c.Label}, labels...)...)
	}
	st := c.keeper.Stats()
	send(gaugeStored, prometheus.GaugeValue, series.Sum, float64(st.Raw), string(TierRaw))
	send(gaugeStored, prometheus.GaugeValue, series.Sum, float64(st.Packed), string(TierCompact))
	send(gaugeMemory, prometheus.GaugeValue, series.Sum, float64(c.Memory()))
	send(gaugeDicts, prometheus.GaugeValue, series.Sum, float64(st.Dictionaries))
	if st.Out > 0 {
		send(gaugeRatio, prometheus.GaugeValue, series.Own, float64(st.In)/float64(st.Out))
	}
	send(countTrained, prometheus.CounterValue, series.Sum, float64(st.Trained))
	send(countDecode, prometheus.CounterValue, series.Sum, float64(st.Failed))
	send(gaugeRefused, prometheus.GaugeValue, series.Max, flag(c.refused.Load() != nil))
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
