package indexer

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
)

// watchConfig bounds watches; see indexer.Config.
type watchConfig struct {
	MaxWatchers, MaxClientWatchers int
	MaxInitialStates               int
	RingBytes                      int
}

// watches serve what happens to collections.
type watches struct {
	cfg         watchConfig
	collections *follow.Collections
	waits       *consistency.Waits
	metrics     *watchMetrics
	watchers    limit.Quota
	requests    *limit.Quota  // bytes that requests hold while they wait
	scans       chan struct{} // one place: what slow readers missed is looked for one collection at a time
	lines       lines         // of the initial states
}

func newWatches(cfg watchConfig, all *follow.Collections, waits *consistency.Waits, requests *limit.Quota, limited *prometheus.CounterVec, reg prometheus.Registerer) (*watches, error) {
	s := &watches{
		cfg: cfg, collections: all, waits: waits, requests: requests, scans: make(chan struct{}, 1), lines: newLines(&cfg),
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

// observe makes the hub of a collection.
func (s *watches) observe(c *follow.Collection) follow.Observer {
	return newHub(c, s.cfg.RingBytes, s.requests, s.scans, s.waits.Stopping)
}

// hubOf is the hub of a collection that watches observe.
func hubOf(c *follow.Collection) *hub { return c.Observer().(*hub) }

// memory is what messages take that not every watch has taken, beside payloads.
func (s *watches) memory() int {
	n := 0
	for _, c := range s.collections.Names().All {
		n += hubOf(c).kept()
	}
	return n
}
