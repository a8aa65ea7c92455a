package watch

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// Config bounds watches; see indexer.Config.
type Config struct {
	MaxWatchers, MaxClientWatchers int
	MaxInitialStates               int
	RingBytes                      int
}

// Watches serve what happens to collections.
type Watches struct {
	cfg         Config
	collections *follow.Collections
	gate        grant.Gate
	waits       *consistency.Waits
	metrics     *watchMetrics
	watchers    limit.Quota
	requests    *limit.Quota  // bytes that requests hold while they wait
	scans       chan struct{} // one place: what slow readers missed is looked for one collection at a time
	lines       lines         // of the initial states
}

// New returns watches of collections, for those whom the gate permits. The collections are to be
// opened with Observe.
func New(cfg Config, all *follow.Collections, waits *consistency.Waits, gate grant.Gate, requests *limit.Quota, limited *prometheus.CounterVec, reg prometheus.Registerer) (*Watches, error) {
	s := &Watches{
		cfg: cfg, collections: all, gate: gate, waits: waits, requests: requests, scans: make(chan struct{}, 1), lines: newLines(&cfg),
		watchers: limit.Quota{
			Is: fault.ErrTooManyWatchers, Limited: limited, All: limit.Limit{Name: "max_watchers", Most: cfg.MaxWatchers}, Each: limit.Limit{Name: "max_client_watchers", Most: cfg.MaxClientWatchers},
		},
	}
	var err error
	if s.metrics, err = newWatchMetrics(reg); err != nil {
		return nil, err
	}
	return s, reg.Register(watchGauges{s})
}

// Observe makes the hub of a collection.
func (s *Watches) Observe(c *follow.Collection) follow.Observer {
	return newHub(c, s.cfg.RingBytes, s.requests, s.scans, s.waits.Stopping)
}

// hubOf is the hub of a collection that watches observe.
func hubOf(c *follow.Collection) *hub { return c.Observer().(*hub) }

// Memory is what messages take that not every watch has taken, beside payloads.
func (s *Watches) Memory() int {
	n := 0
	for _, c := range s.collections.Names().All {
		n += hubOf(c).kept()
	}
	return n
}

// Watching is how many watches of a collection are open.
func Watching(c *follow.Collection) int64 { return hubOf(c).watchers.Load() }
