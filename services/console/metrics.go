package console

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/console/session"
)

type metrics struct {
	calls   *prometheus.CounterVec
	updates prometheus.Counter
}

func newMetrics(r prometheus.Registerer, sessions *session.Manager) (*metrics, error) {
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_console_calls_total", Help: "Calls of the console's pages by method and by code, those of streams when they end.",
		}, []string{"method", "code"}),
		updates: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_console_updates_total", Help: "Messages that were sent to the console's pages.",
		}),
	}
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
	}
	return m, errors.Join(
		r.Register(m.calls), r.Register(m.updates),
		r.Register(gauge("deltaplane_console_sessions", "Open pages of the console.", func() int { n, _ := sessions.Count(); return n })),
		r.Register(gauge("deltaplane_console_followed", "Watches and questions that the console keeps up for its pages.", func() int { _, n := sessions.Count(); return n })),
	)
}
