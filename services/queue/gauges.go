package queue

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/workqueue"
)

// gauges tells what queues hold, when it is asked. A queue that had a turn
// here lately is known; of any other the store is asked then, so that an idle
// replica tells the truth without looking in between. So it is of a queue in
// several partitions, since a turn tells of one. When the store does not
// answer, the last that was seen is told.
type gauges struct {
	s                            *Service
	depth, delayed, leases, dead *prometheus.Desc
	unfinished, longest          *prometheus.Desc
}

const (
	// fresh is how long what a turn or a look at the store told is good.
	fresh = 5 * time.Second
	// lookFor bounds how long a scrape waits for the store.
	lookFor = 2 * time.Second
	// lookers is how many queues are asked about at once.
	lookers = 8
)

func newGauges(s *Service) *gauges {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, []string{"name"}, nil) }
	return &gauges{
		s:          s,
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
	g.s.mu.Lock()
	queues := maps.Clone(g.s.queues)
	g.s.mu.Unlock()
	looked := g.refresh(queues)
	work := g.held()
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		send := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, name)
		}
		c, ok := looked[name]
		if !ok {
			c = queues[name].line.last()
		}
		send(g.depth, float64(c.Ready+c.Dirty))
		send(g.delayed, float64(c.Delayed))
		send(g.leases, float64(c.Processing))
		send(g.dead, float64(c.Dead))
		send(g.unfinished, work[name].sum)
		send(g.longest, work[name].longest)
	}
}

// refresh asks the store about queues of which it is not known what they hold,
// and returns what it answered.
func (g *gauges) refresh(queues map[string]*lines) map[string]workqueue.Counts {
	ctx, cancel := context.WithTimeout(context.Background(), lookFor) //nolint:forbidigo // a scrape carries no context
	defer cancel()
	var all errgroup.Group
	all.SetLimit(lookers)
	var mu sync.Mutex
	looked := map[string]workqueue.Counts{} // guarded by mu
	for name, l := range queues {
		if len(l.all) == 1 && !l.line.stale() {
			continue
		}
		all.Go(func() error {
			if _, st, missing, err := g.s.status(ctx, name); err == nil && len(missing) == 0 {
				l.line.saw(st.Counts)
				mu.Lock()
				looked[name] = st.Counts
				mu.Unlock()
			}
			return nil
		})
	}
	_ = all.Wait()
	return looked
}

// last is what the queue held when it was last seen.
func (l *line) last() workqueue.Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts
}

func (l *line) stale() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.seen) > fresh
}

// work is how long keys of a queue have been held, in seconds.
type work struct{ sum, longest float64 }

// held is the work under way through this server, by queue.
func (g *gauges) held() map[string]work {
	byQueue := map[string]work{}
	now := time.Now()
	g.s.sessions.each(func(s *session) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for k, h := range s.leases {
			if h.deadline.Before(now) {
				continue
			}
			w, age := byQueue[k.d.name], now.Sub(h.since).Seconds()
			byQueue[k.d.name] = work{w.sum + age, max(w.longest, age)}
		}
	})
	return byQueue
}
