package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/telemetry/series"
)

// gauges reports what queues hold when Prometheus collects. It knows a queue of one
// partition that had a transaction here lately. It asks the store for any other, so
// that an idle replica reports the truth without looking in between, and for a queue
// in several partitions, since a transaction reports one of them. When the store does
// not answer, it reports what it saw last.
type gauges struct {
	Sources
	depth, delayed, leases, dead *prometheus.Desc
	unfinished, longest          *prometheus.Desc
}

const (
	// fresh is how long what a transaction or a look at the store told is good.
	fresh = 5 * time.Second
	// lookFor bounds how long a scrape waits for the store.
	lookFor = 2 * time.Second
	// lookers is how many queues are asked about at once.
	lookers = 8
)

// Sources is what gauges ask.
type Sources struct {
	// InUse are the queues that have dispatchers here.
	InUse func() map[string]Used
	// Counts is what a queue holds by the store; false when that is not known in full.
	Counts func(ctx context.Context, queue string) (workqueue.Counts, bool)
	// Held calls f for every lease held through this server, with its queue and since when.
	Held func(f func(queue string, since time.Time))
}

// Used is a queue in use.
type Used struct {
	Metrics    *Queue
	Partitions int
}

// NewGauges are the gauges of what queues hold.
func NewGauges(s Sources) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, []string{"name"}, nil) }
	return &gauges{
		Sources:    s,
		depth:      desc("workqueue_depth", "Keys that wait, those added again while held included; of the store, the same on every replica."),
		delayed:    desc("deltaplane_queue_delayed", "Keys that wait for a due time; of the store, the same on every replica."),
		leases:     desc("deltaplane_queue_leases", "Keys that are held; of the store, the same on every replica."),
		dead:       desc("deltaplane_queue_dead", "Keys that are dead; of the store, the same on every replica."),
		unfinished: desc("workqueue_unfinished_work_seconds", "Time that keys held through this server have been held, together."),
		longest:    desc("workqueue_longest_running_processor_seconds", "Time that the key held longest through this server has been held."),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.depth, g.delayed, g.leases, g.dead, g.unfinished, g.longest} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	queues := g.InUse()
	looked := g.refresh(queues)
	work := g.held()
	var all series.Fold
	for name, used := range queues {
		add := func(d *prometheus.Desc, how series.How, v float64) {
			all.Add(d, prometheus.GaugeValue, how, v, used.Metrics.label)
		}
		c, ok := looked[name]
		if !ok {
			c = used.Metrics.last()
		}
		add(g.depth, series.Sum, float64(c.Ready+c.Dirty))
		add(g.delayed, series.Sum, float64(c.Delayed))
		add(g.leases, series.Sum, float64(c.Processing))
		add(g.dead, series.Sum, float64(c.Dead))
		add(g.unfinished, series.Sum, work[name].sum)
		add(g.longest, series.Max, work[name].longest)
	}
	all.Send(ch)
}

// refresh asks the store about queues of which it is not known what they hold,
// and returns what it answered.
func (g *gauges) refresh(queues map[string]Used) map[string]workqueue.Counts {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor) //nolint:forbidigo // a scrape carries no context
	defer cancel()
	var all errgroup.Group
	all.SetLimit(lookers)
	var mu sync.Mutex
	looked := map[string]workqueue.Counts{} // guarded by mu
	for name, l := range queues {
		if l.Partitions == 1 && !l.Metrics.stale() {
			continue
		}
		all.Go(func() error {
			if c, ok := g.Counts(ctx, name); ok {
				l.Metrics.saw(c)
				mu.Lock()
				looked[name] = c
				mu.Unlock()
			}
			return nil
		})
	}
	_ = all.Wait()
	return looked
}

// last is what the queue held when it was last seen.
func (l *Queue) last() workqueue.Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

func (l *Queue) stale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.seen) > fresh
}

// Invalidate has the next scrape ask the store.
func (l *Queue) Invalidate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = time.Time{}
}

// LastSeen is when what the queue held was last seen.
func (l *Queue) LastSeen() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen
}

// work is how long keys of a queue have been held, in seconds.
type work struct{ sum, longest float64 }

// held is the work under way through this server, by queue.
func (g *gauges) held() map[string]work {
	byQueue := map[string]work{}
	now := time.Now()
	g.Held(func(queue string, since time.Time) {
		w, age := byQueue[queue], now.Sub(since).Seconds()
		byQueue[queue] = work{w.sum + age, max(w.longest, age)}
	})
	return byQueue
}
