package queue

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// metrics counts what queues do, under client-go's names.
type metrics struct {
	depth    *prometheus.GaugeVec
	delayed  *prometheus.GaugeVec
	leases   *prometheus.GaugeVec
	adds     *prometheus.CounterVec
	retries  *prometheus.CounterVec
	waited   *prometheus.HistogramVec
	worked   *prometheus.HistogramVec
	settles  *prometheus.CounterVec
	expired  *prometheus.CounterVec
	lostExt  *prometheus.CounterVec
	turnOps  *prometheus.HistogramVec
	turnTime *prometheus.HistogramVec
	errors   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, all *sessions) (*metrics, error) {
	name := []string{"name"}
	seconds := prometheus.ExponentialBuckets(1e-6, 10, 10) // client-go's
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: n, Help: help}, append(name, labels...))
	}
	gauge := func(n, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: n, Help: help}, name)
	}
	histogram := func(n, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: n, Help: help, Buckets: buckets}, name)
	}
	m := &metrics{
		depth:    gauge("workqueue_depth", "Keys that wait, those added again while held included."),
		delayed:  gauge("deltaplane_queue_delayed", "Keys that wait for a due time."),
		leases:   gauge("deltaplane_queue_leases", "Keys that are held."),
		adds:     counter("workqueue_adds_total", "Keys added; adds of keys that waited already are not counted."),
		retries:  counter("workqueue_retries_total", "Delayed and rate-limited adds."),
		waited:   histogram("workqueue_queue_duration_seconds", "From add to lease.", seconds),
		worked:   histogram("workqueue_work_duration_seconds", "From lease to settlement.", seconds),
		settles:  counter("deltaplane_queue_settlements_total", "Settlements, by result: settled, requeued, lost, not_leased.", "result"),
		expired:  counter("deltaplane_queue_leases_expired_total", "Leases that ended unsettled; their keys wait again."),
		lostExt:  counter("deltaplane_queue_extensions_lost_total", "Leases that could not be extended any more."),
		turnOps:  histogram("deltaplane_queue_turn_operations", "Operations in one turn of the store.", prometheus.ExponentialBuckets(1, 2, 11)),
		turnTime: histogram("deltaplane_queue_turn_seconds", "Time of one turn of the store.", prometheus.ExponentialBuckets(1e-5, 2.5, 14)),
		errors:   counter("deltaplane_queue_turn_errors_total", "Turns that failed."),
	}
	for _, c := range []prometheus.Collector{
		m.depth, m.delayed, m.leases, m.adds, m.retries, m.waited, m.worked, m.settles, m.expired, m.lostExt, m.turnOps, m.turnTime, m.errors,
		&unfinished{
			all:     all,
			sum:     prometheus.NewDesc("workqueue_unfinished_work_seconds", "Time that keys held through this server have been held, together.", name, nil),
			longest: prometheus.NewDesc("workqueue_longest_running_processor_seconds", "Time that the key held longest through this server has been held.", name, nil),
		},
	} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// line is the metrics of one queue, looked up once.
type line struct {
	depth, delayed, leases          prometheus.Gauge
	adds, retries, expired, lostExt prometheus.Counter
	errors                          prometheus.Counter
	waited, worked                  prometheus.Observer
	turnOps, turnTime               prometheus.Observer
	settles                         map[workqueue.Status]prometheus.Counter
}

func (m *metrics) line(name string) *line {
	l := &line{
		depth: m.depth.WithLabelValues(name), delayed: m.delayed.WithLabelValues(name), leases: m.leases.WithLabelValues(name),
		adds: m.adds.WithLabelValues(name), retries: m.retries.WithLabelValues(name),
		expired: m.expired.WithLabelValues(name), lostExt: m.lostExt.WithLabelValues(name), errors: m.errors.WithLabelValues(name),
		waited: m.waited.WithLabelValues(name), worked: m.worked.WithLabelValues(name),
		turnOps: m.turnOps.WithLabelValues(name), turnTime: m.turnTime.WithLabelValues(name),
		settles: map[workqueue.Status]prometheus.Counter{},
	}
	for status, result := range map[workqueue.Status]string{
		workqueue.Settled: "settled", workqueue.Requeued: "requeued", workqueue.Lost: "lost", workqueue.NotLeased: "not_leased",
	} {
		l.settles[status] = m.settles.WithLabelValues(name, result)
	}
	return l
}

// turn counts one turn; r is nil when it failed.
func (l *line) turn(ops int, took time.Duration, r *workqueue.Result) {
	l.turnTime.Observe(took.Seconds())
	if r == nil {
		l.errors.Inc()
		return
	}
	l.turnOps.Observe(float64(ops))
	l.depth.Set(float64(r.Counts.Ready + r.Counts.Dirty))
	l.delayed.Set(float64(r.Counts.Delayed))
	l.leases.Set(float64(r.Counts.Processing))
	l.adds.Add(float64(r.Added))
	l.retries.Add(float64(r.Retried))
	l.expired.Add(float64(r.Expired))
}

func (l *line) leased(now int64, leases []workqueue.Lease) {
	for i := range leases {
		l.waited.Observe(float64(max(now-leases[i].AddedAt, 0)) / 1e6)
	}
}

// settled counts a settlement. A token is the time of its lease, or barely
// above it, so it tells how long the work took.
func (l *line) settled(s workqueue.Status, now int64, token uint64) {
	l.settles[s].Inc()
	if s == workqueue.Settled || s == workqueue.Requeued {
		l.worked.Observe(float64(max(now-int64(token), 0)) / 1e6)
	}
}

// unfinished tells about keys that are held, when it is asked.
type unfinished struct {
	all          *sessions
	sum, longest *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (u *unfinished) Describe(ch chan<- *prometheus.Desc) { ch <- u.sum; ch <- u.longest }

// Collect implements prometheus.Collector.
func (u *unfinished) Collect(ch chan<- prometheus.Metric) {
	type work struct{ sum, longest float64 }
	byQueue := map[string]work{}
	now := time.Now()
	u.all.each(func(s *session) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for k, h := range s.leases {
			if h.deadline.Before(now) {
				continue
			}
			w, age := byQueue[k.queue], now.Sub(h.since).Seconds()
			byQueue[k.queue] = work{w.sum + age, max(w.longest, age)}
		}
	})
	for name, w := range byQueue {
		ch <- prometheus.MustNewConstMetric(u.sum, prometheus.GaugeValue, w.sum, name)
		ch <- prometheus.MustNewConstMetric(u.longest, prometheus.GaugeValue, w.longest, name)
	}
}
