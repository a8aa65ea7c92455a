package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/authority"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/queue/admin"
	"github.com/deltaplane/deltaplane/services/queue/backoff"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/history"
	"github.com/deltaplane/deltaplane/services/queue/maintain"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/produce"
	"github.com/deltaplane/deltaplane/services/queue/redis"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
	"github.com/deltaplane/deltaplane/services/queue/work"
)

// Service is a queue server. Make it with New, run it once.
type Service struct {
	engine   engine.Engine
	queues   *transaction.Queues
	sessions *session.Sessions
	upkeep   *maintain.Upkeep
	servers  *servers
	rpc      *rpc.Server
	admin    *telemetry.Admin
}

// New builds a queue service that reports through tel. It reads the memory
// engine's data directory, if there is one, and connects to nothing. The error
// holds every fault of the configuration.
func New(cfg Config, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	var e engine.Engine
	var err error
	if cfg.RedisURL != "" {
		e, err = redis.New(redis.Config{
			URL: cfg.RedisURL, Username: cfg.RedisUsername, Password: cfg.RedisPassword, PasswordNow: cfg.RedisPasswordNow,
			SentinelUsername: cfg.RedisSentinelUsername, SentinelPassword: cfg.RedisSentinelPassword, TLS: cfg.RedisTLS,
			Prefix: cfg.RedisPrefix, AllowEviction: cfg.AllowEviction, Log: tel.Log,
		})
	} else {
		e, err = memory.New(memory.Config{Dir: cfg.DataDir, Fsync: cfg.Fsync, Log: tel.Log})
	}
	if err != nil {
		return nil, err
	}
	s, err := NewOn(cfg, e, tel)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return s, nil
}

// NewOn is New with queues kept by an engine, which Run closes.
func NewOn(cfg Config, e engine.Engine, tel *telemetry.Telemetry) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Service{engine: e, sessions: session.NewSessions(cfg.MaxSessions)}
	var clockSteps func() int64
	if e, ok := e.(interface{ ClockSteps() int64 }); ok {
		clockSteps = e.ClockSteps
	}
	set, err := metrics.New(tel.Registry, clockSteps)
	if err != nil {
		return nil, fmt.Errorf("queue metrics: %w", err)
	}
	condition := maintain.NewCondition(tel.Log, set.Refusing)
	events := history.New(cfg.HistoryKeys)
	declared := map[string]workqueue.Config{}
	for _, q := range cfg.Queues {
		declared[q.Name] = q.Config
	}
	s.queues = transaction.New(transaction.Config{
		Engine: e, Log: tel.Log, Metrics: set, History: events, Listener: s.sessions, Refused: condition.Refused, Declared: declared,
		MaxTransaction: cfg.MaxTransaction, MaxPending: cfg.MaxPending, FallbackEvery: cfg.FallbackEvery,
	})
	reader := admin.Reader{Queues: s.queues}
	if err := tel.Registry.Register(metrics.NewGauges(metrics.Sources{InUse: s.inUse, Counts: reader.Whole, Held: s.sessions.Held})); err != nil {
		return nil, fmt.Errorf("queue metrics: %w", err)
	}
	auth, err := authority.New(cfg.Access, cfg.RPC.Auth, tel.Log, tel.Registry)
	if err != nil {
		return nil, err
	}
	permits := permits{authority: auth, sessions: s.sessions}
	s.rpc, err = rpc.NewServer(cfg.RPC, rpc.Options{
		Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: wire.Rules, Extra: wire.ServerOptions(), MessageBytes: wire.RequestBytes(),
		Authorizer: auth.Authorizer(), Permit: permits.call,
	})
	if err != nil {
		return nil, err
	}
	authority.Register(s.rpc.Aside(), auth)
	s.upkeep = maintain.New(maintain.Config{
		Engine: e, Log: tel.Log, InUse: s.queues, Declared: declared, ExpireAfter: cfg.ExpireAfter, Unused: set.Unused,
		SetServing: s.setServing, Tick: s.sessions.ForgetIdle,
	}, condition)
	s.servers = s.answering(cfg, set, events, reader, permits, condition.Limit)
	s.servers.register(s.rpc)
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.OnRefusal(auth.RefusedPage)
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("authorization", telemetry.Degrades(s.rpc.CheckAuthorizer))
	s.admin.Ready("store", func(context.Context) error { return condition.Ready() })
	return s, nil
}

// answering makes the parts that answer calls.
func (s *Service) answering(cfg Config, set *metrics.Set, events *history.Recent, reader admin.Reader, may permits, limit func() error) *servers {
	stopping := s.rpc.Stopping()
	leases := session.NewLeases(s.queues, s.sessions, cfg.CloseGrace)
	return &servers{
		queue: &queueServer{
			workCalls: &work.Server{
				Queues: s.queues, Sessions: s.sessions, Leases: leases, Metrics: set, Permit: may.stream,
				StopGrace: cfg.StopGrace, Stopping: stopping, Aging: s.rpc.Aging,
			},
			sessionCalls: &session.Server{Queues: s.queues, Sessions: s.sessions, Leases: leases, Stopping: stopping},
			produceCalls: &produce.Server{
				Queues: s.queues, Sessions: s.sessions, Metrics: set, Permit: may.message, StopGrace: cfg.StopGrace, Stopping: stopping, Aging: s.rpc.Aging,
			},
			lenCall: reader,
		},
		admin: &adminServer{adminCalls: &admin.Server{
			Queues: s.queues, Look: reader, History: events, Sessions: s.sessions, Limit: limit, Permit: may.stream, MaxQueues: cfg.MaxQueues, Stopping: stopping,
		}},
		backoff: &backoffServer{backoffCalls: &backoff.Server{Queues: s.queues}},
	}
}

// setServing tells the health of all services.
func (s *Service) setServing(ok bool) {
	for _, service := range wire.Services {
		s.rpc.SetServing(service.ServiceName, ok)
	}
}

// inUse are the queues in use, for the gauges.
func (s *Service) inUse() map[string]metrics.Used {
	out := map[string]metrics.Used{}
	for _, l := range s.queues.All() {
		out[l.Name] = metrics.Used{Metrics: l.Metrics, Partitions: len(l.Partitions)}
	}
	return out
}

// Addr is where the services listen; it waits until Run has opened it.
func (s *Service) Addr(ctx context.Context) (string, error) { return s.rpc.Addr(ctx) }

// Run serves until ctx ends; then health turns NOT_SERVING, streams get
// ACTION_RECONNECT, and it returns nil. A store that is reached but unsuitable at the
// start (it evicts keys, or refuses the credentials) ends Run with an error. Run waits
// for a store that is not reached.
func (s *Service) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.engine.Close()) }()
	// Dispatchers outlive ctx: calls in hand are still answered.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.queues.Start(running)
	err = s.rpc.Run(ctx, s.admin.Run, s.upkeep.WatchStore, s.queues.KeepQueues, s.upkeep.ExpireQueues,
		func(ctx context.Context) error { return s.engine.Wakes(ctx, s.queues.WakeUp) })
	s.queues.Stop(stop)
	return err
}
