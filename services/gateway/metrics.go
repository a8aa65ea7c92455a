package gateway

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/gateway/request"
)

type metrics struct {
	answered *prometheus.CounterVec
	watches  prometheus.Gauge
}

// byIndex counts a read that the index answers.
func (m *metrics) byIndex(read *request.Read) {
	m.answered.WithLabelValues(string(read.Verb), "index", "").Inc()
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_gateway_requests_total",
			Help: "Requests by verb (get, list, watch, other), by whom they were answered (index, api server, gateway), and why the index did not.",
		}, []string{"verb", "by", "reason"}),
		watches: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "deltaplane_gateway_watches", Help: "Watches that are answered from the index now.",
		}),
	}
	return m, errors.Join(r.Register(m.answered), r.Register(m.watches))
}
