package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/deltalog"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/admission"
)

// Deps are what the service is built on. The caller closes them after Run.
type Deps struct {
	// Log is the delta log.
	Log *deltalog.Conn
	// Kube is the API server that is written to.
	Kube *kube.Client
	// Index and Queue are connections to the services.
	Index, Queue grpc.ClientConnInterface
	// Telemetry is reported through.
	Telemetry *telemetry.Telemetry
}

// Service runs controllers. Make it with New, run it once.
type Service struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	index   *client.Index
	metrics *metrics
	admin   *telemetry.Admin
	parts   []*part
	events  []*kube.Recorder
	webhook *admission.Server // nil: none
}

// plan is what a controller tells the service about itself.
type plan struct {
	name    string
	primary delta.Collection
	others  map[delta.Collection]client.Mapper
	limiter client.RateLimiter // zero: client-go's default
	delay   func(*delta.Record) time.Duration
	gather  map[delta.Collection]time.Duration
	absorb  bool // an immediate add takes a key's pending delay away
	rec     client.Reconciler
	run     func(context.Context) error // runs beside the worker; nil for nothing
	ready   func(context.Context) error // what it needs besides; nil for nothing
}

// part is a controller that is wired up.
type part struct {
	plan    plan
	trigger *client.Trigger
	worker  *client.Worker
}

// builders make the controllers, by name. The queue is the controller's own.
var builders = map[string]func(s *Service, q *client.Queue) (plan, error){
	"job":           buildJob,
	"nodelifecycle": buildNodeLifecycle,
	"podgc":         buildPodGC,
	"tainteviction": buildTaintEviction,
}

// New builds the service; it contacts nobody. The error holds every fault of
// the configuration.
func New(cfg Config, deps Deps) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, deps: deps, log: deps.Telemetry.Log, index: client.NewIndex(deps.Index)}
	var err error
	if s.metrics, err = newMetrics(deps.Telemetry.Registry); err != nil {
		return nil, fmt.Errorf("controllers: metrics: %w", err)
	}
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, deps.Telemetry.Registry, s.log); err != nil {
		return nil, err
	}
	s.admin.Ready("log", func(context.Context) error { return deps.Log.Away() })
	s.admin.Ready("index", s.checkIndex)
	if cfg.Admission != nil {
		if s.webhook, err = admission.New(*cfg.Admission, deps.Telemetry.Registry, s.log); err != nil {
			return nil, err
		}
	}
	for _, name := range cfg.Controllers {
		if err := s.add(name); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// maxDeliveries is how many workers in a row a key may take down before its
// queue gives it up.
const maxDeliveries = 20

func (s *Service) add(name string) error {
	queue := s.cfg.Cluster + "/" + name
	q := client.NewQueue(s.deps.Queue, queue, "")
	pl, err := builders[name](s, q)
	if err != nil {
		return fmt.Errorf("controllers: %s: %w", name, err)
	}
	p := &part{plan: pl}
	tc := client.TriggerConfig{
		Name: queue, Primary: pl.primary, Others: pl.others, Delay: pl.delay, Gather: pl.gather, Resync: s.cfg.Resync, Check: s.cfg.Check, Log: s.log,
		Tracer: s.deps.Telemetry.Tracer,
		Queue: client.QueueConfig{
			RateLimiter: pl.limiter, Partitions: s.cfg.Partitions, AbsorbDelays: pl.absorb, MaxDeliveries: maxDeliveries, Lease: max(s.cfg.Lease, 0),
		},
		OnSwept: s.metrics.sweptFor(name),
	}
	if p.trigger, err = client.NewTrigger(q, s.index, s.deps.Log.Log(tc), s.deps.Log.Memory(), tc); err != nil {
		return err
	}
	wc := client.WorkerConfig{
		Queue: queue, Name: s.cfg.Identity + "/" + name,
		Concurrency: s.cfg.Concurrency, Prefetch: s.cfg.Prefetch, Lease: s.cfg.Lease, Timeout: s.cfg.Timeout, Grace: s.cfg.Grace,
		Log: s.log.With(slog.String(telemetry.KeyController, name)), Tracer: s.deps.Telemetry.Tracer,
		OnConnected: func(connected bool, generation string) {
			if connected {
				p.trigger.Notice(generation)
			}
		},
	}
	s.metrics.observe(&wc, name, s.cfg.Concurrency)
	if p.worker, err = client.NewWorker(s.deps.Queue, p.trigger.Wrap(pl.rec), wc); err != nil {
		return err
	}
	s.admin.Ready(name+"/trigger", func(context.Context) error { return p.trigger.Ready() })
	s.admin.Ready(name+"/queue", func(context.Context) error {
		if !p.worker.Connected() {
			return errors.New("not connected to the queue service")
		}
		return nil
	})
	if pl.ready != nil {
		s.admin.Ready(name+"/collections", pl.ready)
	}
	s.parts = append(s.parts, p)
	return nil
}

// Ready reports the readiness that the admin page shows.
func (s *Service) Ready(ctx context.Context) telemetry.Readiness { return s.admin.Readiness(ctx) }

// checkIndex is ready when a replica serves every collection that is needed.
func (s *Service) checkIndex(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	served, err := s.index.Collections(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for _, col := range s.collections() {
		found := false
		for _, c := range served {
			if c.Collection == col.String() {
				found = true
				if !c.Synced {
					faults = append(faults, fmt.Errorf("collection %s is not synced", col))
				}
			}
		}
		if !found {
			faults = append(faults, fmt.Errorf("collection %s is not mirrored: no index serves it", col))
		}
	}
	return errors.Join(faults...)
}

func (s *Service) collections() []delta.Collection {
	var all []delta.Collection
	for _, p := range s.parts {
		for _, col := range append([]delta.Collection{p.plan.primary}, mapKeys(p.plan.others)...) {
			if !slices.Contains(all, col) {
				all = append(all, col)
			}
		}
	}
	return all
}

func mapKeys(m map[delta.Collection]client.Mapper) []delta.Collection {
	keys := make([]delta.Collection, 0, len(m))
	for col := range m {
		keys = append(keys, col)
	}
	return keys
}

// Run runs the controllers until ctx ends, then stops them in two steps and
// returns nil. It returns an error when a worker was shut down from outside or
// the admin port cannot be opened. Events and the admin page go on until the
// last reconcile has ended.
func (s *Service) Run(ctx context.Context) error {
	lis, err := s.admin.Listen(ctx)
	if err != nil {
		return err
	}
	late, stopLate := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLate()
	var rest errgroup.Group
	rest.Go(func() error { return s.admin.Serve(late, lis) })
	for _, r := range s.events {
		rest.Go(func() error { return r.Run(late) })
	}
	rest.Go(func() error { s.metrics.follow(late); return nil })

	g, ctx := errgroup.WithContext(ctx)
	for _, p := range s.parts {
		g.Go(func() error { return p.trigger.Run(ctx) })
		if p.plan.run != nil {
			g.Go(func() error { return p.plan.run(ctx) })
		}
		g.Go(func() error {
			if err := p.worker.Run(ctx); err != nil {
				return fmt.Errorf("controllers: %s: %w", p.plan.name, err)
			}
			return nil
		})
	}
	if s.webhook != nil {
		g.Go(func() error { return s.webhook.Run(ctx) })
	}
	s.log.Info("controllers run", slog.Any("controller", s.cfg.Controllers), slog.Int(telemetry.KeyCount, s.cfg.Concurrency))
	err = g.Wait()
	stopLate()
	return errors.Join(err, rest.Wait())
}
