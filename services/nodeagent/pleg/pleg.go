package pleg

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Runtime is what is asked. Its methods are called by several goroutines at once
// and end when their context does. Pods and PodStatus must agree: a container that
// one of them leaves out or sees in another state permanently would seem to come and
// go for ever.
type Runtime interface {
	// Pods lists the node's pods, with dead containers and sandboxes when all is set.
	Pods(ctx context.Context, all bool) ([]container.Pod, error)
	// PodStatus is one pod in full, and a status without containers and sandboxes
	// when there is nothing of it. The names may be empty: the UID says which.
	PodStatus(ctx context.Context, uid types.UID, namespace, name string) (*container.PodStatus, error)
	// Events calls back with each event of the runtime's stream, one after the
	// other, until the stream ends. [container.ErrNoEvents] says that there is none.
	Events(ctx context.Context, event func(container.Event)) error
}

// Kind is what an event says; see the constants.
type Kind = rules.Kind

// The kinds of events. ContainerChanged is never published.
const (
	ContainerStarted = rules.ContainerStarted
	ContainerDied    = rules.ContainerDied
	ContainerRemoved = rules.ContainerRemoved
	ContainerChanged = rules.ContainerChanged
	PodSync          = rules.PodSync
)

// Event says that something happened to a pod. ContainerID names the container or
// sandbox, and is empty for PodSync.
type Event struct {
	PodUID      types.UID
	Kind        Kind
	ContainerID string
}

// PLEG is a pod lifecycle event generator. Make one with [New] and run it once.
type PLEG struct {
	cfg     Config
	runtime Runtime
	log     *slog.Logger
	metrics *metrics
	cache   *Cache
	events  chan Event

	requests *requests
	// answers, news and ends reach the loop from the goroutines that ask and listen.
	answers chan answer
	news    chan news
	ends    chan end
	// lost says that news had no room for an event.
	lost    atomic.Bool
	running sync.WaitGroup

	// What follows is the loop's alone.
	records   *rules.Records
	pods      map[types.UID]*pod
	inspector inspector
	stream    stream
	census    census
	// nextList is when the next list is due; undelivered what Events had no room for, and up to which
	// stamp.
	nextList, nextBump, nextAge time.Time
	undelivered                 map[types.UID]rules.Stamp
	// forced says that a list is due whatever nextList says.
	forced bool
	// full says that the last delivery found no room.
	full bool

	// mu guards health, which the loop alone writes.
	mu     sync.Mutex
	health health
}

// health is what the loop tells of itself.
type health struct {
	// listed is the start of the last list that succeeded, zero for none.
	listed time.Time
	// streamed says that the event stream is trusted, since when it is not.
	streamed bool
	since    time.Time
}

// New returns a PLEG over a runtime. Metrics are registered with reg unless it is
// nil; the error says which knobs are wrong or which metrics could not be registered.
func New(cfg Config, rt Runtime, log *slog.Logger, reg prometheus.Registerer) (*PLEG, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("pleg config: %w", err)
	}
	m, err := newMetrics(reg)
	if err != nil {
		return nil, fmt.Errorf("pleg metrics: %w", err)
	}
	p := &PLEG{
		cfg: cfg, runtime: rt, log: log, metrics: m, cache: newCache(),
		events:   make(chan Event, cfg.Capacity),
		requests: newRequests(cfg.Requests),
		// An answer for every inspection that can be under way: asking never waits for the loop.
		answers:     make(chan answer, cfg.Parallel),
		news:        make(chan news, cfg.Capacity),
		ends:        make(chan end),
		records:     rules.NewRecords(),
		pods:        map[types.UID]*pod{},
		undelivered: map[types.UID]rules.Stamp{},
		inspector:   inspector{open: map[*inspection]struct{}{}},
		census:      newCensus(),
	}
	p.cache.waits = p.waits
	return p, nil
}

// Events are what happened, to be read by one reader. A full channel delays events and loses none.
func (p *PLEG) Events() <-chan Event { return p.events }

// Cache holds the statuses of the pods, as fresh as the events.
func (p *PLEG) Cache() *Cache { return p.cache }

// RequestRelist asks for a look at one pod now rather than with the next list,
// after something was done to it. It never waits; with 200 pods waiting
// already, the request is dropped, and the next list serves it.
func (p *PLEG) RequestRelist(uid types.UID) {
	if !p.requests.relist(uid, time.Now()) {
		p.log.Warn("no room for a request to relist a pod", slog.String(telemetry.KeyUID, string(uid)))
	}
}

// RequestReinspect asks that the pod is looked at with the next list, whether it
// changed or not, and told of by at least a PodSync.
func (p *PLEG) RequestReinspect(uid types.UID) { p.requests.reinspect(uid) }

// Healthy is nil while lists of the runtime succeed often enough.
func (p *PLEG) Healthy() error {
	p.mu.Lock()
	h := p.health
	p.mu.Unlock()
	return p.cfg.pace().Healthy(time.Now(), h.listed, h.streamed, h.since)
}
