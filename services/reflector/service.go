package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Service is a reflector for one or several clusters. Make it with New, run it once.
type Service struct {
	cfg       Config
	log       *stream.Conn
	clusters  []*cluster // by name
	registry  *registry
	authority *authority.Authority // nil: every caller may do everything
	slog      *slog.Logger
	tracer    tracer
	metrics   *metrics
	faults    *logDeduplicator
	rpc       *rpc.Server
	admin     *telemetry.Admin

	loops sync.WaitGroup // everything that mirrors

	mu          sync.Mutex                           // guards the rest
	desired     map[string]*desired                  // by "cluster/name"
	reflections []*reflection                        // of all desired resources
	relists     map[string]uint64                    // revisions of requests, by collection
	removals    map[string]*removal                  // by collection
	found       map[string]map[delta.Collection]bool // what "*" found, by cluster
	moved       chan struct{}                        // closed when reflections begin, end or are resolved
	mirror      context.Context                      // of everything that mirrors; nil before Run
}

// New builds a reflector that mirrors what kc and the clients of cfg.Clusters serve onto log, and
// reports through tel. It contacts nobody. The error holds every fault of the configuration.
func New(cfg Config, log *stream.Conn, kc *kube.Client, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MirrorSecrets && !log.Encrypts(delta.Collection{Version: "v1", Resource: "secrets"}) {
		return nil, errPlainSecrets
	}
	s := &Service{
		cfg: cfg.withDefaults(), log: log, slog: tel.Log, tracer: newTracer(tel),
		desired: map[string]*desired{}, relists: map[string]uint64{}, removals: map[string]*removal{}, found: map[string]map[delta.Collection]bool{}, moved: make(chan struct{}),
	}
	for _, c := range append([]Cluster{{Name: s.cfg.Cluster, Kube: kc}}, s.cfg.Clusters...) {
		s.clusters = append(s.clusters, &cluster{name: c.Name, kube: c.Kube, catalog: newCatalog(c.Kube)})
	}
	s.faults = newDeduplicator(tel.Log, &s.loops, func() context.Context {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.mirror
	})
	s.registry = newRegistry(log, tel.Log, s.take)
	var err error
	if s.metrics, err = newMetrics(tel.Registry); err != nil {
		return nil, fmt.Errorf("reflector metrics: %w", err)
	}
	if err := tel.Registry.Register(gauges{s}); err != nil {
		return nil, fmt.Errorf("reflector metrics: %w", err)
	}
	bounds := map[string]int{}
	for _, m := range reflectorv1.ReflectorService_ServiceDesc.Methods {
		bounds["/"+reflectorv1.ReflectorService_ServiceDesc.ServiceName+"/"+m.MethodName] = 1 << 20
	}
	if s.authority, err = authority.New(s.cfg.Access, s.cfg.RPC.Auth, tel.Log, tel.Registry); err != nil {
		return nil, err
	}
	s.rpc, err = rpc.NewServer(s.cfg.RPC, rpc.Options{
		Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: rules, MessageBytes: bounds, Authorizer: s.authority.Authorizer(),
	})
	if err != nil {
		return nil, err
	}
	authority.Register(s.rpc.Aside(), s.authority)
	reflectorv1.RegisterReflectorServiceServer(s.rpc, &server{s: s})
	if s.admin, err = telemetry.NewAdmin(s.cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.OnRefusal(s.authority.RefusedPage)
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("authorization", telemetry.Degrades(s.rpc.CheckAuthorizer))
	s.admin.Ready("log", func(context.Context) error { return s.log.Away() })
	s.admin.Ready("encryption keys", telemetry.Degrades(func(context.Context) error { return log.CheckKeys() }))
	s.admin.Ready("source", s.checkSource)
	return s, nil
}

// Addr is where the ReflectorService listens; it waits until Run has opened it.
func (s *Service) Addr(ctx context.Context) (string, error) { return s.rpc.Addr(ctx) }

// Run mirrors and answers until ctx ends; then it gives up its leases and returns nil.
func (s *Service) Run(ctx context.Context) error {
	// Leases are given up at once, however long calls take to end.
	mirror, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.mirror = mirror
	s.mu.Unlock()
	err := s.rpc.Run(ctx, s.admin.Run, s.tellHealth, func(context.Context) error {
		for _, spec := range s.cfg.Resources {
			s.begin(spec, reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_CONFIGURED, nil)
		}
		s.loops.Go(func() { s.registry.bucket.Run(mirror) })
		return nil
	})
	cancel()
	s.loops.Wait()
	return err
}

// cluster finds one by name; nil when there is none.
func (s *Service) cluster(name string) *cluster {
	i := slices.IndexFunc(s.clusters, func(c *cluster) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return s.clusters[i]
}

// reflect adds a reflection whose resource is not known yet.
func (s *Service) reflect(w *desired, want Resource, origin reflectorv1.ReflectionOrigin) *reflection {
	resource, version, group := want.parts()
	asked := want.proto()
	want = want.complete()
	r := &reflection{
		cfg: s.cfg, want: want, log: s.log, kube: s.cluster(want.Cluster).kube, tracer: s.tracer, metrics: s.metrics, faults: s.faults, relist: make(chan struct{}, 1),
		col: delta.Collection{Cluster: want.Cluster, Group: group, Version: version, Resource: resource}, desired: w,
	}
	name := want.String()
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, name))
	r.begun = func(revision uint64) { s.listBegan(r.col.String(), revision) }
	r.state.v = view{
		name: name, holder: s.cfg.Holder, scope: want.Scope, namespaces: want.namespaces(), spec: asked, origin: origin,
		phase: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reflections = append(s.reflections, r)
	s.touch()
	return r
}

// drop takes reflections out of the list.
func (s *Service) drop(gone func(*reflection) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reflections = slices.DeleteFunc(s.reflections, func(r *reflection) bool {
		if !gone(r) {
			return false
		}
		s.metrics.forget(r.state.get().name)
		return true
	})
	s.touch()
}

// touch wakes every waiter for a change of the reflections; the caller holds the lock.
func (s *Service) touch() {
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *Service) change() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.moved
}

func (s *Service) all() []*reflection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reflections)
}

// Ready runs the checks of /readyz.
func (s *Service) Ready(ctx context.Context) telemetry.Readiness { return s.admin.Readiness(ctx) }

// checkSource is ready while any reflection is not failing: one that cannot be listed, or whose log
// is full, must not hold the others back. It is a detail then.
func (s *Service) checkSource(context.Context) error {
	all := s.all()
	if len(all) == 0 {
		return errors.New("no reflections yet")
	}
	var first, last view
	failing, fails := 0, 0
	for _, r := range all {
		v := r.state.get()
		switch v.phase {
		case reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF, reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED:
			fails++
			last = v
		case reflectorv1.ReflectionState_REFLECTION_STATE_LISTING, reflectorv1.ReflectionState_REFLECTION_STATE_REBUILDING:
			if v.reason == "" {
				break
			}
			fails++ // it tries again, which heals nothing yet
			last = v
		}
		if v.reason != "" {
			if failing++; failing == 1 {
				first = v
			}
		}
	}
	switch {
	case fails == len(all):
		return fmt.Errorf("every reflection fails, the last with: %s: %s", last.reason, last.lastErr)
	case failing > 0:
		return telemetry.Degraded(fmt.Errorf("%d of %d reflections fail: %s: %s: %s", failing, len(all), first.name, first.reason, first.lastErr))
	}
	return nil
}
