package authority

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	allowed, denied, undecided prometheus.Counter
	reviews                    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, a *Authority) (*metrics, error) {
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_access_decisions_total", Help: "Decisions whether a caller may do something, by decision: allowed, denied, undecided.",
	}, []string{"decision"})
	m := &metrics{
		allowed: decisions.WithLabelValues("allowed"), denied: decisions.WithLabelValues("denied"), undecided: decisions.WithLabelValues("undecided"),
		reviews: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_access_reviews_total",
			Help: "Questions to clusters, by kind (access, token) and result (yes, no, error).",
		}, []string{"kind", "result"}),
	}
	return m, errors.Join(
		reg.Register(decisions), reg.Register(m.reviews),
		reg.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "deltaplane_access_callers", Help: "Callers whose decisions are remembered.",
		}, func() float64 { return float64(a.callers.len()) })),
		reg.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "deltaplane_access_audit_dropped_total", Help: "Lines of the audit log that were left out, since there were too many.",
		}, func() float64 { return float64(a.audit.lost()) })),
	)
}

func (m *metrics) reviewed(kind string, err error, yes bool) {
	result := "no"
	switch {
	case err != nil:
		result = "error"
	case yes:
		result = "yes"
	}
	m.reviews.WithLabelValues(kind, result).Inc()
}
