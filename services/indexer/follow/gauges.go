package follow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	for _, c := range g.s.names.Load().All {
		snap := c.store.Snapshot()
		failed, synced := 0, 0
		for _, x := range snap.Indexers() {
			failed += x.Failed
			ch <- prometheus.MustNewConstMetric(gaugeUnindexed, prometheus.GaugeValue, float64(x.Failed), c.Name, x.Name)
		}
		if snap.State().Synced {
			synced = 1
		}
		send := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, c.Name)
		}
		send(gaugeObjects, float64(snap.Len()))
		send(gaugeBytes, float64(snap.Bytes()))
		g.memory(ch, c)
		send(gaugeFaults, float64(snap.Faults()))
		send(gaugeSynced, float64(synced))
		send(gaugeLag, float64(c.Lag(snap.State())))
		if fresh := snap.State().Fresh; !fresh.IsZero() {
			send(gaugeSilence, now.Sub(fresh).Seconds())
		}
		send(gaugeErrors, float64(failed))
		lagging := 0.0
		if c.Lagging() {
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
	if budget := g.s.cfg.MemoryBudget; budget > 0 {
		ch <- prometheus.MustNewConstMetric(gaugeBudget, prometheus.GaugeValue, float64(budget))
	}
}

// memory sends what is known of the memory of a collection.
func (g gauges) memory(ch chan<- prometheus.Metric, c *Collection) {
	send := func(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, t, v, append([]string{c.Name}, labels...)...)
	}
	st, refused := c.keeper.Stats(), 0.0
	if c.refused.Load() != nil {
		refused = 1
	}
	send(gaugeStored, prometheus.GaugeValue, float64(st.Raw), string(TierRaw))
	send(gaugeStored, prometheus.GaugeValue, float64(st.Packed), string(TierCompact))
	send(gaugeMemory, prometheus.GaugeValue, float64(c.Memory()))
	send(gaugeDicts, prometheus.GaugeValue, float64(st.Dictionaries))
	if st.Out > 0 {
		send(gaugeRatio, prometheus.GaugeValue, float64(st.In)/float64(st.Out))
	}
	send(countTrained, prometheus.CounterValue, float64(st.Trained))
	send(countDecode, prometheus.CounterValue, float64(st.Failed))
	send(gaugeRefused, prometheus.GaugeValue, refused)
}
