package limit

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// Quota is a number of things that calls hold and give back: so many all
// together, and so many each client. It is safe for concurrent use.
type Quota struct {
	All, Each Limit
	Is        error                  // what a refusal is
	Limited   *prometheus.CounterVec // counts refusals, by limit

	mu   sync.Mutex
	held int
	by   map[string]int // by client; none are left out

	tight atomic.Bool // nothing is lent; written under mu
	_     [64]byte    // every answer writes what follows, and reads what is before
	lent  atomic.Int64
}

// lentShare is the part of all, one in so many, that is lent.
const lentShare = 16

// Limit is the most of something, by the name of its setting; zero is no bound.
type Limit struct {
	Name string
	Most int
}

func (l *Limit) passed(n int) bool { return l.Most > 0 && n > l.Most }

// Take takes n for a client, or nothing and names the limit that it would pass.
// What is nobody's, for client "", counts for all alone.
func (q *Quota) Take(client string, n int) *Limit {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tighten(q.held + n) // first: nothing is lent behind the next look
	switch {
	case q.All.passed(q.held + n + int(q.lent.Load())):
		q.tighten(q.held)
		return &q.All
	case client != "" && q.Each.passed(q.by[client]+n):
		q.tighten(q.held)
		return &q.Each
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

// Give gives back what was taken.
func (q *Quota) Give(client string, n int) {
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
func (q *Quota) tighten(held int) {
	if tight := q.All.passed(held + q.All.Most/lentShare); tight != q.tight.Load() {
		q.tight.Store(tight)
	}
}

// Lend takes n for a moment, without asking whose it is: as long as little is
// lent, and all is far from its limit, that costs an atomic step. Where it says
// false, take has to be asked.
func (q *Quota) Lend(n int) bool {
	lent := q.lent.Add(int64(n))
	if q.All.passed(lentShare*int(lent)) || q.tight.Load() {
		q.lent.Add(int64(-n))
		return false
	}
	return true
}

// giveLent gives back what was lent.
func (q *Quota) giveLent(n int) { q.lent.Add(int64(-n)) }

// Used is how much is held, and lent.
func (q *Quota) Used() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.held + int(q.lent.Load())
}

// Refuse makes the error of a limit that was met.
func (q *Quota) Refuse(l *Limit, what string) error {
	q.Limited.WithLabelValues(l.Name).Inc()
	return fault.New(q.Is, fmt.Sprintf("%s: %s is %d", what, l.Name, l.Most), "limit", strconv.Itoa(l.Most), "limit_name", l.Name)
}

// Hold takes n for a client; free gives it back, once.
func (q *Quota) Hold(client string, n int, what string) (free func(), err error) {
	if l := q.Take(client, n); l != nil {
		return nil, q.Refuse(l, what)
	}
	return func() { q.Give(client, n) }, nil
}

// NewCounter counts what quotas refuse.
func NewCounter(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	limited := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "deltaplane_indexer_limited_total",
		Help: "Watches, calls and answers refused, by limit: max_watchers, max_client_watchers, max_request_bytes, max_client_request_bytes.",
	}, []string{"limit"})
	return limited, reg.Register(limited)
}
