package metrics

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
	"github.com/deltaplane/deltaplane/internal/tracing"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Set counts what queues do, under client-go's names and with their meaning.
// Counters and histograms are of what this server did: over replicas they add up.
// Gauges of the store (depth, delayed, leases, dead) are the same on every replica
// and do not; those of leased keys are this server's. There is no label for the
// priority, which controller-runtime has: the store keeps no counts by level.
type Set struct {
	adds, retries, expired, redelivered             *prometheus.CounterVec
	died, overflows, lostExt, repaired              *prometheus.CounterVec
	settles, errors                                 *prometheus.CounterVec
	waited, worked, transactionOps, transactionTime *prometheus.HistogramVec
	streams, Refusing                               *prometheus.GaugeVec
	Unused                                          prometheus.Counter
	byQueue                                         []interface{ DeletePartialMatch(prometheus.Labels) int }
	names                                           *series.Names
}

// New registers metrics. ClockSteps counts steps of the store's clock; nil where they
// are not counted.
func New(reg prometheus.Registerer, clockSteps func() int64) (*Set, error) {
	var all []prometheus.Collector
	var byQueue []interface{ DeletePartialMatch(prometheus.Labels) int }
	name := []string{"name"}
	seconds := prometheus.ExponentialBuckets(1e-6, 10, 10) // client-go's
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: n, Help: help}, append(name, labels...))
		all, byQueue = append(all, c), append(byQueue, c)
		return c
	}
	histogram := func(n, help string, buckets []float64) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: n, Help: help, Buckets: buckets}, name)
		all, byQueue = append(all, h), append(byQueue, h)
		return h
	}
	m := &Set{
		byQueue:         byQueue,
		names:           series.NewNames(series.MaxQueues),
		adds:            counter("workqueue_adds_total", "Keys added; adds of keys that waited already are not counted."),
		retries:         counter("workqueue_retries_total", "Delayed and rate-limited adds, also those without a delay."),
		waited:          histogram("workqueue_queue_duration_seconds", "From add to lease.", seconds),
		worked:          histogram("workqueue_work_duration_seconds", "From lease to settlement.", seconds),
		settles:         counter("deltaplane_queue_settlements_total", "Settlements, by result: settled, requeued, lost, not_leased.", "result"),
		expired:         counter("deltaplane_queue_leases_expired_total", "Leases that ended unsettled; their keys wait again."),
		redelivered:     counter("deltaplane_queue_leases_redelivered_total", "Leases of keys whose holder before was lost."),
		repaired:        counter("deltaplane_queue_leases_repaired_total", "Keys found held without a lease, as after lost data; each got one."),
		lostExt:         counter("deltaplane_queue_extensions_lost_total", "Leases that could not be extended any more."),
		died:            counter("deltaplane_queue_buried_total", "Keys that became dead."),
		overflows:       counter("deltaplane_queue_shed_total", "Calls refused because too many waited for a transaction."),
		transactionOps:  histogram("deltaplane_queue_turn_operations", "Operations in one transaction of the store.", prometheus.ExponentialBuckets(1, 2, 11)),
		transactionTime: histogram("deltaplane_queue_turn_seconds", "Time of one transaction of the store.", prometheus.ExponentialBuckets(1e-5, 2.5, 14)),
		errors: counter("deltaplane_queue_turn_errors_total",
			"Transactions that failed, by reason: full, unknown, denied, unavailable, other.", "reason"),
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "deltaplane_queue_streams", Help: "Open streams, by kind: work, produce.",
		}, []string{"kind"}),
	}
	m.Refusing = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "deltaplane_queue_store_refuses_adds", Help: "1 while the store refuses adds, by reason: full, evicts, disk (and everything else too).",
	}, []string{"reason"})
	m.Unused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "deltaplane_queue_unused_deleted_total", Help: "Queues that this server deleted because nobody used them.",
	})
	for _, reason := range []string{"full", "evicts", "disk"} {
		m.Refusing.WithLabelValues(reason)
	}
	for _, kind := range []string{"work", "produce"} {
		m.streams.WithLabelValues(kind)
	}
	steps := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "deltaplane_queue_clock_steps_total", Help: "Steps of the clock that this server kept away from queues: of a partition's Redis, or of the machine of the memory engine.",
	}, func() float64 {
		if clockSteps == nil {
			return 0
		}
		return float64(clockSteps())
	})
	for _, c := range append(all, steps, m.streams, m.Refusing, m.Unused) {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// Forget removes the series of a queue, unless they are those of the rest.
func (m *Set) Forget(name string) {
	if name == series.Rest {
		return
	}
	m.names.Forget(name)
	of := prometheus.Labels{"name": name}
	for _, v := range m.byQueue {
		v.DeletePartialMatch(of)
	}
}

// OpenStream counts a stream until the function it returns is called.
func (m *Set) OpenStream(kind string) (end func()) {
	g := m.streams.WithLabelValues(kind)
	g.Inc()
	return g.Dec
}

// Queue is the metrics of one queue, looked up once.
type Queue struct {
	adds, Retries, expired, redelivered, died, Overflows, LostExt, Repaired prometheus.Counter
	waited, worked, transactionOps, transactionTime                         prometheus.Observer
	settles                                                                 [workqueue.Held + 1]prometheus.Counter
	errors                                                                  *prometheus.CounterVec
	label                                                                   string
	did                                                                     activity

	mu     sync.Mutex
	counts workqueue.Counts // of the whole queue as last seen; guarded by mu, as is all that follows
	seen   time.Time
	empty  chan struct{} // closed when nothing is left, if anybody waits for it
}

// Queue is the metrics of a queue. They are looked up: keep them.
func (m *Set) Queue(name string) *Queue {
	name = m.names.Of(name)
	l := &Queue{
		label: name, did: activity{since: time.Now()},
		adds: m.adds.WithLabelValues(name), Retries: m.retries.WithLabelValues(name), expired: m.expired.WithLabelValues(name),
		redelivered: m.redelivered.WithLabelValues(name), died: m.died.WithLabelValues(name), Overflows: m.overflows.WithLabelValues(name),
		LostExt: m.lostExt.WithLabelValues(name), Repaired: m.repaired.WithLabelValues(name), waited: m.waited.WithLabelValues(name), worked: m.worked.WithLabelValues(name),
		transactionOps: m.transactionOps.WithLabelValues(name), transactionTime: m.transactionTime.WithLabelValues(name),
		errors: m.errors.MustCurryWith(prometheus.Labels{"name": name}),
	}
	for status, result := range map[workqueue.Status]string{
		workqueue.Settled: "settled", workqueue.Requeued: "requeued", workqueue.Lost: "lost", workqueue.NotLeased: "not_leased",
	} {
		l.settles[status] = m.settles.WithLabelValues(name, result)
	}
	return l
}

// Transaction counts one transaction; r is nil when it failed, and holds the counts of the
// whole queue.
func (l *Queue) Transaction(ops int, took time.Duration, r *workqueue.Result) {
	l.transactionTime.Observe(took.Seconds())
	if r == nil {
		return
	}
	l.transactionOps.Observe(float64(ops))
	l.saw(r.Counts)
	Count(l.adds, r.Added)
	l.did.adds.Add(int64(r.Added))
	Count(l.Retries, r.Retried)
	Count(l.expired, r.Expired)
	Count(l.died, r.Died)
}

// Count adds n, unless it is zero.
func Count(c prometheus.Counter, n int) {
	if n > 0 {
		c.Add(float64(n))
	}
}

// Failed counts a transaction that failed.
func (l *Queue) Failed(err error) {
	reason := "other"
	for is, r := range map[error]string{
		engine.ErrFull: "full", engine.ErrUnknown: "unknown", engine.ErrDenied: "denied", engine.ErrUnavailable: "unavailable",
	} {
		if errors.Is(err, is) {
			reason = r
		}
	}
	l.errors.WithLabelValues(reason).Inc()
}

// Leased counts leases granted at a time of the store's clock.
func (l *Queue) Leased(now int64, leases []workqueue.Lease) {
	again := 0
	for i := range leases {
		waited := max(now-leases[i].AddedAt, 0)
		tracing.Observe(l.waited, float64(waited)/1e6, newest(leases[i].Traces))
		l.did.waited.Add(waited)
		if leases[i].Attempt > 1 {
			again++
		}
	}
	Count(l.redelivered, again)
	l.did.leases.Add(int64(len(leases)))
}

// newest is the newest cause of a lease, where that is recorded.
func newest(traces []string) (of trace.SpanContext) {
	if n := len(traces); n > 0 && tracing.Sampled(traces[n-1]) {
		of = tracing.Parse(traces[n-1])
	}
	return of
}

// Settled counts a settlement. A token is the time of its lease, or barely
// above it, so it tells how long the work took.
func (l *Queue) Settled(s workqueue.Status, now int64, token uint64) {
	if int(s) >= len(l.settles) || l.settles[s] == nil {
		return
	}
	l.settles[s].Inc()
	if s == workqueue.Settled || s == workqueue.Requeued {
		worked := max(now-int64(token), 0)
		l.worked.Observe(float64(worked) / 1e6)
		l.did.settlements.Add(1)
		l.did.worked.Add(worked)
	}
}

// saw notes what the queue holds.
func (l *Queue) saw(c workqueue.Counts) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts, l.seen = c, time.Now()
	if l.empty != nil && Idle(c) {
		close(l.empty)
		l.empty = nil
	}
}

// Idle says that no key is ready or held.
func Idle(c workqueue.Counts) bool { return c.Ready == 0 && c.Processing == 0 && c.Dirty == 0 }

// Emptied is closed when a transaction of this server next leaves nothing ready or held.
func (l *Queue) Emptied() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.empty == nil {
		l.empty = make(chan struct{})
	}
	return l.empty
}
