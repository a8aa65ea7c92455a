package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// Service is a reflector for one cluster. Make it with New, run it once.
type Service struct {
	cfg     Config
	log     *stream.Conn
	kube    *kube.Client
	slog    *slog.Logger
	tracer  trace.Tracer
	metrics *metrics
	rpc     *rpc.Server
	admin   *telemetry.Admin

	mu          sync.Mutex
	reflections []*reflection // guarded by mu
}

// New builds a reflector that mirrors what kc serves onto log, and reports through tel. It contacts nobody. The error holds every fault of the
// configuration.
func New(cfg Config, log *stream.Conn, kc *kube.Client, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg.withDefaults(), log: log, kube: kc, slog: tel.Log, tracer: tel.Tracer.Tracer("deltaplane/reflector"),
	}
	var err error
	if s.metrics, err = newMetrics(tel.Registry); err != nil {
		return nil, fmt.Errorf("reflector metrics: %w", err)
	}
	if err := tel.Registry.Register(gauges{s}); err != nil {
		return nil, fmt.Errorf("reflector metrics: %w", err)
	}
	s.rpc, err = rpc.NewServer(s.cfg.RPC, rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: rules})
	if err != nil {
		return nil, err
	}
	reflectorv1.RegisterReflectorServiceServer(s.rpc, &server{s: s})
	if s.admin, err = telemetry.NewAdmin(s.cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("log", func(context.Context) error {
		if !s.log.Healthy() {
			return errors.New("not connected")
		}
		return nil
	})
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
	var loops sync.WaitGroup
	s.rpc.SetServing(reflectorv1.ReflectorService_ServiceDesc.ServiceName, true)
	err := s.rpc.Run(ctx, s.admin.Run, func(context.Context) error {
		loops.Go(func() { s.supervise(mirror, &loops) })
		return nil
	})
	cancel()
	loops.Wait()
	return err
}

// supervise finds out what the resources are and runs a loop for each, one that is not served yet when it is.
func (s *Service) supervise(ctx context.Context, loops *sync.WaitGroup) {
	for _, want := range s.cfg.Resources {
		if want.Name == "*" {
			loops.Go(func() { s.everything(ctx, want, loops) })
			continue
		}
		r := s.reflect(want)
		loops.Go(func() {
			if s.resolve(ctx, r) {
				r.run(ctx)
			}
		})
	}
}

// reflect adds a reflection whose resource is not known yet.
func (s *Service) reflect(want Resource) *reflection {
	resource, version, group := want.parts()
	want = want.complete()
	r := &reflection{
		cfg: s.cfg, want: want, log: s.log, kube: s.kube, tracer: s.tracer, metrics: s.metrics, relist: make(chan struct{}, 1),
		col: delta.Collection{Cluster: s.cfg.Cluster, Group: group, Version: version, Resource: resource},
	}
	name := s.cfg.Cluster + "/" + want.Name
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, name))
	r.state.v = view{name: name, holder: s.cfg.Holder, scope: want.Scope, phase: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reflections = append(s.reflections, r)
	return r
}

func (s *Service) all() []*reflection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reflections)
}

// checkSource is ready while any reflection is not failing: one that cannot be listed must not hold the others back.
func (s *Service) checkSource(context.Context) error {
	all := s.all()
	if len(all) == 0 {
		return errors.New("no reflections yet")
	}
	var last string
	for _, r := range all {
		v := r.state.get()
		if v.phase != reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF && v.phase != reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED {
			return nil
		}
		last = v.lastErr
	}
	return fmt.Errorf("every reflection fails, the last with: %s", last)
}
