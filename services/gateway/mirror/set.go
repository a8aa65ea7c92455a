package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// Config of a set.
type Config struct {
	// Cluster whose collections are mirrored.
	Cluster string
	// MaxAge is how long the latest view may not have been all that the index had.
	MaxAge time.Duration
	// WithoutManagedFields takes collections whose objects lack them.
	WithoutManagedFields bool
}

// Set is the mirrors of a cluster's collections. A mirror begins with the first request for it. It
// is safe for concurrent use.
type Set struct {
	cfg   Config
	index *client.Index
	kube  *kube.Client
	log   *slog.Logger
	life  context.Context //nolint:containedctx // of the mirrors
	first chan struct{}   // closed when the index has answered once

	mu      sync.Mutex
	known   map[delta.Collection]client.CollectionStatus // guarded by mu, as what follows
	polled  time.Time
	fault   error // of the last poll
	mirrors map[delta.Collection]*opened
}

// opened is a mirror, or why there is none.
type opened struct {
	stop   context.CancelFunc
	done   chan struct{} // closed when the rest is set
	mirror *Mirror
	err    error
	at     time.Time
}

// NewSet is a set whose mirrors end with ctx. [Set.Run] keeps it up to date.
func NewSet(ctx context.Context, cfg Config, index *client.Index, kc *kube.Client, log *slog.Logger) *Set {
	return &Set{
		cfg: cfg, index: index, kube: kc, log: log, life: ctx, first: make(chan struct{}),
		known: map[delta.Collection]client.CollectionStatus{}, mirrors: map[delta.Collection]*opened{},
	}
}

const (
	pollEvery   = time.Second
	pollTimeout = 5 * time.Second
	// openWait is how long the first requests for a collection wait for its mirror.
	openWait = 3 * time.Second
	// openRetry is how long a mirror that could not be opened is not tried again.
	openRetry = 5 * time.Second
)

// Run asks the index for its collections until ctx ends.
func (s *Set) Run(ctx context.Context) {
	for {
		s.poll(ctx)
		if !attempt.Sleep(ctx, pollEvery) {
			return
		}
	}
}

func (s *Set) poll(ctx context.Context) {
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	all, err := s.index.Collections(within)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault = err; err != nil {
		return
	}
	clear(s.known)
	for _, c := range all {
		if c.Cluster == s.cfg.Cluster {
			s.known[delta.Collection{Cluster: c.Cluster, Group: c.Group, Version: c.Version, Resource: c.Resource}] = c
		}
	}
	if s.polled.IsZero() {
		close(s.first)
	}
	s.polled = began
	for id, o := range s.mirrors {
		if _, ok := s.known[id]; !ok {
			o.stop()
			delete(s.mirrors, id)
		}
	}
}

// Check says why the index cannot be asked; nil when it can.
func (s *Set) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault != nil:
		return s.fault
	case s.polled.IsZero():
		return errUnasked
	}
	return nil
}

// Unsuitable says in a word why a resource may not be answered from the index now; empty when it
// may. At the start it waits a moment for the index: a watch that is forwarded stays at the API
// server.
func (s *Set) Unsuitable(ctx context.Context, group, version, resource string) string {
	select {
	case <-s.first:
	case <-ctx.Done():
	case <-time.After(openWait):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsuitable(delta.Collection{Cluster: s.cfg.Cluster, Group: group, Version: version, Resource: resource})
}

// Find is the mirror of a resource, with a view of it. Where there is none that may be answered
// from, the reason says why, in one of few words.
func (s *Set) Find(ctx context.Context, group, version, resource string) (m *Mirror, reason string) {
	id := delta.Collection{Cluster: s.cfg.Cluster, Group: group, Version: version, Resource: resource}
	s.mu.Lock()
	if reason = s.unsuitable(id); reason != "" {
		s.mu.Unlock()
		return nil, reason
	}
	o := s.mirrors[id]
	if o != nil && o.err != nil && time.Since(o.at) > openRetry {
		o = nil
	}
	if o == nil {
		var life context.Context
		o = &opened{done: make(chan struct{})}
		life, o.stop = context.WithCancel(s.life)
		s.mirrors[id] = o
		go s.open(life, id, s.known[id].Collection, o)
	}
	s.mu.Unlock()
	within, cancel := context.WithTimeout(ctx, openWait)
	defer cancel()
	select {
	case <-o.done:
	case <-within.Done():
		return nil, "opening"
	}
	if o.err != nil {
		return nil, "unopened"
	}
	v := o.mirror.View()
	if v == nil {
		v = o.mirror.Reach(within, 0)
	}
	switch {
	case v == nil:
		return nil, "opening"
	case o.mirror.Lags(), time.Since(o.mirror.Current()) > s.cfg.MaxAge:
		return nil, "behind"
	case o.mirror.Restored():
		return nil, "restored"
	}
	select {
	case <-v.history.Ended:
		return nil, "opening"
	default:
		return o.mirror, ""
	}
}

// Written are the mirrors that show what is written to a resource: those of all its versions, and
// events are in two groups.
func (s *Set) Written(group, resource string) (all []*Mirror) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, o := range s.mirrors {
		if id.Resource != resource || id.Group != group && resource != "events" {
			continue
		}
		select {
		case <-o.done:
			if o.mirror != nil {
				all = append(all, o.mirror)
			}
		default: // nothing was read of it yet, and the state it begins with is a later one
		}
	}
	return all
}

// Last is the mirror of a resource with what was known of it last, whatever its age, and when the
// API server was last heard; nil where nothing is known, or not all of it.
func (s *Set) Last(group, version, resource string) (*Mirror, time.Time) {
	id := delta.Collection{Cluster: s.cfg.Cluster, Group: group, Version: version, Resource: resource}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.mirrors[id]
	if s.partial(id) != "" || o == nil || o.mirror == nil || o.mirror.View() == nil {
		return nil, time.Time{}
	}
	return o.mirror, s.known[id].LiveAt
}

// Fit reports whether a mirror that was found may be answered from still.
func (s *Set) Fit(m *Mirror) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unsuitable(m.Resource.Collection(s.cfg.Cluster)) == "" && !m.Lags() && time.Since(m.Current()) <= s.cfg.MaxAge && !m.Restored()
}

// unsuitable says why a collection may not be answered from. s.mu is locked.
func (s *Set) unsuitable(id delta.Collection) string {
	c := s.known[id]
	switch reason := s.partial(id); {
	case time.Since(s.polled) > s.cfg.MaxAge:
		return "index"
	case reason != "":
		return reason
	case !c.Synced:
		return "unsynced"
	case c.Stale, !c.FrozenSince.IsZero():
		return "behind"
	}
	return ""
}

// partial says why a collection has not all that the API server has. s.mu is locked.
func (s *Set) partial(id delta.Collection) string {
	c, ok := s.known[id]
	switch {
	case !ok:
		return "unmirrored"
	case id.Resource == "leases" && id.Group == "coordination.k8s.io": // who holds one must not be guessed
		return "leases"
	case c.Quarantined > 0:
		return "quarantined"
	case !c.AllObjects, c.Dropped == nil, c.Dropped.MetadataOnly:
		return "partial"
	}
	for _, path := range c.Dropped.Paths {
		if path != delta.ManagedFields || !s.cfg.WithoutManagedFields {
			return "partial"
		}
	}
	return ""
}

// open finds out what a mirror must know, and runs it.
func (s *Set) open(ctx context.Context, id delta.Collection, name string, o *opened) {
	m, err := s.prepare(ctx, id, name)
	o.mirror, o.err, o.at = m, err, time.Now()
	close(o.done)
	if err != nil {
		o.stop()
		s.log.Warn("a collection is not answered from the index", slog.String(telemetry.KeyCollection, name), telemetry.Err(err))
		return
	}
	m.Run(ctx)
}

func (s *Set) prepare(ctx context.Context, id delta.Collection, name string) (*Mirror, error) {
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	aggregated, err := s.aggregated(asking, id)
	if err != nil {
		return nil, err
	}
	if aggregated {
		return nil, errAggregated
	}
	r, err := s.kube.Resolve(asking, id)
	if err != nil {
		return nil, err
	}
	kind, err := s.kube.ListKind(asking, r)
	if err != nil {
		return nil, err
	}
	return New(ctx, name, r, kind, s.index, s.kube, s.log), nil
}

var (
	errAggregated = errors.New("gateway: the resource is served by another server behind the API server")
	errUnasked    = errors.New("gateway: the index has not answered yet")
)

// aggregated reports whether another server answers for the resource, behind the API server. What
// its versions mean is its own.
func (s *Set) aggregated(ctx context.Context, id delta.Collection) (bool, error) {
	services := kube.Resource{Group: "apiregistration.k8s.io", Version: "v1", Name: "apiservices"}
	body, err := s.kube.Get(ctx, services.Ref("", id.Version+"."+id.Group))
	if kube.IsNotFound(err) {
		return false, nil // a server without aggregation
	}
	if err != nil {
		return false, err
	}
	var one struct {
		Spec struct{ Service *struct{ Name string } }
	}
	err = json.Unmarshal(body, &one)
	return one.Spec.Service != nil, err
}
