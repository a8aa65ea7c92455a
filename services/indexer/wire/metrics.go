package wire

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// metrics counts the answers of Query streams.
type metrics struct {
	queries  *prometheus.CounterVec
	answered [queryFailed]prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, requests *limit.Quota) (*metrics, error) {
	m := &metrics{}
	m.queries = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_query_calls_total", Help: "Calls answered on Query streams, by call and gRPC code.",
	}, []string{"call", "code"})
	m.answered = answeredBy(m.queries)
	held := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "deltaplane_indexer_request_bytes", Help: "Memory that requests hold while they wait, as an estimate.",
	}, func() float64 { return float64(requests.Used()) })
	for _, c := range []prometheus.Collector{m.queries, held} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
