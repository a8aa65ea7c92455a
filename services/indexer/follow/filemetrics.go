package follow

import "github.com/prometheus/client_golang/prometheus"

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
