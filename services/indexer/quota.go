package indexer

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// quota is a number of things that calls hold and give back: so many all
// together, and so many each client. It is safe for concurrent use.
type quota struct {
	all, each limit
	is        error                  // what a refusal is
	limited   *prometheus.CounterVec // counts refusals, by limit

	mu   sync.Mutex
	held int
	by   map[string]int // by client; none are left out

	tight atomic.Bool // nothing is lent; written under mu
	_     [64]byte    // every answer writes what follows, and reads what is before
	lent  atomic.Int64
}

// lentShare is the part of all, one in so many, that is lent.
const lentShare = 16

// limit is the most of something, by the name of its setting; zero is no bound.
type limit struct {
	name string
	most int
}

func (l *limit) passed(n int) bool { return l.most > 0 && n > l.most }

// take takes n for a client, or nothing and names the limit that it would pass.
// What is nobody's, for client "", counts for all alone.
func (q *quota) take(client string, n int) *limit {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tighten(q.held + n) // first: nothing is lent behind the next look
	switch {
	case q.all.passed(q.held + n + int(q.lent.Load())):
		q.tighten(q.held)
		return &q.all
	case client != "" && q.each.passed(q.by[client]+n):
		q.tighten(q.held)
		return &q.each
	}
	q.held += n
	if client != "" {
		if q.by == nil {
			q.by = map[string]int{}
		}
		q.by[client] += n
	}
	return nil
}

// give gives back what was taken.
func (q *quota) give(client string, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.held -= n
	q.tighten(q.held)
	if client == "" {
		return
	}
	if q.by[client] -= n; q.by[client] == 0 {
		delete(q.by, client)
	}
}

// tighten says whether the share that is lent is still free. q.mu is held.
func (q *quota) tighten(held int) {
	if tight := q.all.passed(held + q.all.most/lentShare); tight != q.tight.Load() {
		q.tight.Store(tight)
	}
}

// lend takes n for a moment, without asking whose it is: as long as little is
// lent, and all is far from its limit, that costs an atomic step. Where it says
// false, take has to be asked.
func (q *quota) lend(n int) bool {
	lent := q.lent.Add(int64(n))
	if q.all.passed(lentShare*int(lent)) || q.tight.Load() {
		q.lent.Add(int64(-n))
		return false
	}
	return true
}

// giveLent gives back what was lent.
func (q *quota) giveLent(n int) { q.lent.Add(int64(-n)) }

// used is how much is held, and lent.
func (q *quota) used() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held + int(q.lent.Load())
}

// refuse makes the error of a limit that was met.
func (q *quota) refuse(l *limit, what string) error {
	q.limited.WithLabelValues(l.name).Inc()
	return newFault(q.is, fmt.Sprintf("%s: %s is %d", what, l.name, l.most), "limit", strconv.Itoa(l.most), "limit_name", l.name)
}

// hold takes n for a client; free gives it back, once.
func (q *quota) hold(client string, n int, what string) (free func(), err error) {
	if l := q.take(client, n); l != nil {
		return nil, q.refuse(l, what)
	}
	return func() { q.give(client, n) }, nil
}

// newLimited counts what quotas refuse.
func newLimited(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	limited := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_limited_total",
		Help: "Watches, calls and answers refused, by limit: max_watchers, max_client_watchers, max_request_bytes, max_client_request_bytes.",
	}, []string{"limit"})
	return limited, reg.Register(limited)
}
