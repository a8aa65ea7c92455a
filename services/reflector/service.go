package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

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

	listening chan struct{} // closed when addr is set
	addr      net.Addr

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
		listening: make(chan struct{}),
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
func (s *Service) Addr(ctx context.Context) (string, error) {
	select {
	case <-s.listening:
		return s.addr.String(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

// Run mirrors and answers until ctx ends; then it gives up its leases and returns nil.
func (s *Service) Run(ctx context.Context) error {
	lis, err := rpc.Listen(s.cfg.RPC)
	if err != nil {
		return err
	}
	s.addr = lis.Addr()
	close(s.listening)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var loops sync.WaitGroup
	loops.Go(func() { s.supervise(ctx, &loops) })
	failed := make(chan error, 2)
	var servers sync.WaitGroup
	for _, serve := range []func() error{
		func() error { return s.rpc.Serve(ctx, lis) },
		func() error { return s.admin.Run(ctx) },
	} {
		servers.Go(func() {
			if err := serve(); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	s.rpc.SetServing(reflectorv1.ReflectorService_ServiceDesc.ServiceName, true)
	s.slog.Info("reflector listens", slog.String(telemetry.KeyAddr, s.addr.String()))
	<-ctx.Done()
	loops.Wait()
	servers.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
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
	if want.Transform.Hints == nil {
		want.Transform.Hints = defaultHints[resource]
	}
	if want.Transform.Labels == nil {
		want.Transform.Labels = defaultLabels
	}
	r := &reflection{
		cfg: s.cfg, want: want, log: s.log, kube: s.kube, tracer: s.tracer, metrics: s.metrics, relist: make(chan struct{}, 1),
		col: delta.Collection{Cluster: s.cfg.Cluster, Group: group, Version: version, Resource: resource},
	}
	name := s.cfg.Cluster + "/" + want.Name
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, name))
	r.state.v = view{name: name, scope: want.Scope, phase: reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF}
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

// resolve finds a reflection's resource, waiting for as long as it is not served; false when ctx ended or another reflection mirrors it.
func (s *Service) resolve(ctx context.Context, r *reflection) bool {
	b := retry{Backoff: s.cfg.Backoff}
	for {
		res, err := s.find(ctx, r.col)
		if err == nil && !res.Watchable() && len(res.Verbs) > 0 {
			err = fmt.Errorf("%s cannot be listed and watched", res.Name)
		}
		if err == nil {
			return s.adopt(ctx, r, res)
		}
		if ctx.Err() != nil {
			return false
		}
		wait := b.fail(time.Now(), kube.RetryAfter(err))
		if errors.Is(err, kube.ErrNotServed) {
			wait = min(wait, s.cfg.DiscoverEvery)
		}
		r.fail(ctx, "resolve", err, wait)
		if !sleep(ctx, wait, r.relist) {
			return false
		}
	}
}

func (s *Service) adopt(ctx context.Context, r *reflection, res kube.Resource) bool {
	col := res.Collection(s.cfg.Cluster)
	s.mu.Lock()
	taken := slices.ContainsFunc(s.reflections, func(o *reflection) bool { return o != r && o.resource.Kind != "" && o.col == col })
	if !taken {
		r.col, r.resource = col, res
	}
	s.mu.Unlock()
	if taken {
		r.fail(ctx, "resolve", fmt.Errorf("%s is mirrored already under another name; a resource has one scope", col), 0)
		r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED)
		return false
	}
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, col.String()))
	r.state.set(func(v *view) { v.name, v.lastErr, v.lastErrAt = col.String(), "", time.Time{} })
	return true
}

// find resolves a collection whose version, or version and group, may be missing.
func (s *Service) find(ctx context.Context, col delta.Collection) (kube.Resource, error) {
	if col.Version != "" {
		return s.kube.Resolve(ctx, col)
	}
	if col.Group == "" {
		if res, err := s.kube.Resolve(ctx, delta.Collection{Cluster: col.Cluster, Version: "v1", Resource: col.Resource}); err == nil {
			return res, nil
		}
	}
	all, err := s.kube.DiscoverAll(ctx)
	for _, res := range all {
		if res.Name == col.Resource && (col.Group == "" || res.Group == col.Group) {
			return res, nil
		}
	}
	return kube.Resource{}, cmp.Or(err, fmt.Errorf("%w: %s", kube.ErrNotServed, col.Resource))
}

// everything mirrors all that can be watched, now and as it appears; secrets only when they are named (design 5). events.k8s.io is a second
// name of the core group's events.
func (s *Service) everything(ctx context.Context, want Resource, loops *sync.WaitGroup) {
	for {
		all, err := s.kube.DiscoverAll(ctx)
		if err != nil && ctx.Err() == nil {
			s.slog.Warn("discovery is incomplete", telemetry.Err(err))
		}
		for _, res := range all {
			if !res.Watchable() || res.Name == "secrets" && res.Group == "" || res.Group == "events.k8s.io" || s.named(res) {
				continue
			}
			one := want
			one.Name = res.Collection("").ResourceName()
			r := s.reflect(one)
			if s.adopt(ctx, r, res) {
				loops.Go(func() { r.run(ctx) })
			}
		}
		if !sleep(ctx, s.cfg.DiscoverEvery, nil) {
			return
		}
	}
}

// named reports whether a reflection for the resource exists, or is configured and not resolved yet.
func (s *Service) named(res kube.Resource) bool {
	return slices.ContainsFunc(s.all(), func(r *reflection) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := r.col
		return c.Resource == res.Name && (c.Group == res.Group || c.Group == "" && r.resource.Kind == "") &&
			(c.Version == res.Version || c.Version == "")
	})
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
