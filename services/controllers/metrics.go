package controllers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/tracing"
)

// metrics carry the names of client-go's work queue and of controller-runtime
// where those exist; what the queue service counts itself (adds, depth,
// retries) is not repeated here.
type metrics struct {
	waited, worked           *prometheus.HistogramVec
	unfinished, longest      *prometheus.GaugeVec
	reconciles, errs, panics *prometheus.CounterVec
	took                     *prometheus.HistogramVec
	active, most             *prometheus.GaugeVec
	lost, sweeps             *prometheus.CounterVec

	mu      sync.Mutex // guards running
	running map[run]time.Time
}

type run struct {
	controller, key string
	token           uint64
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{running: map[run]time.Time{}}
	var all []prometheus.Collector
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		all = append(all, v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		all = append(all, v)
		return v
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		all = append(all, v)
		return v
	}
	upstream := prometheus.ExponentialBuckets(10e-9, 10, 12)
	m.waited = histogram("workqueue_queue_duration_seconds", "How long a key was ready before its reconcile began. name: the controller.", upstream, "name")
	m.worked = histogram("workqueue_work_duration_seconds", "How long a reconcile took. name: the controller.", upstream, "name")
	m.unfinished = gauge("workqueue_unfinished_work_seconds", "Sum of the ages of running reconciles. name: the controller.", "name")
	m.longest = gauge("workqueue_longest_running_processor_seconds", "Age of the oldest running reconcile. name: the controller.", "name")
	m.reconciles = counter("controller_runtime_reconcile_total", "Reconciles. result: success, error, requeue, requeue_after, release, dead, abandon.", "controller", "result")
	m.errs = counter("controller_runtime_reconcile_errors_total", "Reconciles that returned an error.", "controller")
	m.panics = counter("controller_runtime_reconcile_panics_total", "Reconciles that panicked.", "controller")
	m.took = histogram("controller_runtime_reconcile_time_seconds", "How long a reconcile took.", prometheus.ExponentialBuckets(0.001, 2, 17), "controller")
	m.active = gauge("controller_runtime_active_workers", "Reconciles that run.", "controller")
	m.most = gauge("controller_runtime_max_concurrent_reconciles", "Reconciles that may run at once.", "controller")
	m.lost = counter("deltaplane_controllers_leases_lost_total", "Leases that ended before they were settled.", "controller")
	m.sweeps = counter("deltaplane_controllers_sweeps_total",
		"Rounds over every key. reason: generation, resync, overflow, new_consumer, new_epoch, lag, log_lost; result: success, error.", "controller", "reason", "result")
	var errs []error
	for _, c := range all {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// results are controller-runtime's words for outcomes.
var results = map[client.Outcome]string{
	client.OutcomeForget: "success", client.OutcomeDone: "success", client.OutcomeRateLimited: "requeue",
	client.OutcomeAfter: "requeue_after", client.OutcomeRelease: "release", client.OutcomeDead: "dead", client.OutcomeAbandon: "abandon",
}

// observe makes a worker's callbacks those that count.
func (m *metrics) observe(w *client.WorkerConfig, name string, concurrency int) {
	m.most.WithLabelValues(name).Set(float64(concurrency))
	for _, result := range results { // so that rates exist from the start
		m.reconciles.WithLabelValues(name, result)
	}
	m.errs.WithLabelValues(name)
	m.panics.WithLabelValues(name)
	m.lost.WithLabelValues(name)
	w.OnStarted = func(item client.Item) {
		m.active.WithLabelValues(name).Inc()
		tracing.Observe(m.waited.WithLabelValues(name), max(0, time.Since(item.ReadyAt).Seconds()), item.Span())
		m.mu.Lock()
		m.running[run{name, item.Key, item.Token}] = time.Now()
		m.mu.Unlock()
	}
	w.OnFinished = func(item client.Item, outcome client.Outcome, err error, took time.Duration) {
		m.mu.Lock()
		delete(m.running, run{name, item.Key, item.Token})
		m.mu.Unlock()
		m.active.WithLabelValues(name).Dec()
		tracing.Observe(m.worked.WithLabelValues(name), took.Seconds(), item.Span())
		tracing.Observe(m.took.WithLabelValues(name), took.Seconds(), item.Span())
		result := results[outcome]
		if err != nil && outcome == client.OutcomeRateLimited {
			result = "error"
		}
		m.reconciles.WithLabelValues(name, result).Inc()
		if err != nil && outcome != client.OutcomeRelease {
			m.errs.WithLabelValues(name).Inc()
		}
		if _, ok := errors.AsType[*client.PanicError](err); ok {
			m.panics.WithLabelValues(name).Inc()
		}
	}
	w.OnLost = func(string) { m.lost.WithLabelValues(name).Inc() }
}

func (m *metrics) sweptFor(name string) func(string, int, error) {
	return func(reason string, _ int, err error) {
		result := "success"
		if err != nil {
			result = "error"
		}
		m.sweeps.WithLabelValues(name, reason, result).Inc()
	}
}

// follow keeps the ages of running reconciles current, as client-go does.
func (m *metrics) follow(ctx context.Context) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	seen := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		sum, longest := map[string]float64{}, map[string]float64{}
		m.mu.Lock()
		for r, began := range m.running {
			age := time.Since(began).Seconds()
			sum[r.controller] += age
			longest[r.controller] = max(longest[r.controller], age)
			seen[r.controller] = true
		}
		m.mu.Unlock()
		for name := range seen {
			m.unfinished.WithLabelValues(name).Set(sum[name])
			m.longest.WithLabelValues(name).Set(longest[name])
		}
	}
}
