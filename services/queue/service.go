package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// Service is a queue server. Make it with New, run it once.
type Service struct {
	cfg      Config
	engine   engine.Engine
	log      *slog.Logger
	metrics  *metrics
	history  *history // nil when none is kept
	rpc      *rpc.Server
	admin    *telemetry.Admin
	sessions sessions
	usable   atomic.Pointer[error] // nil inside: the store is fit
	gets     atomic.Uint32         // counts Gets

	mu      sync.Mutex
	queues  map[string]*lines // guarded by mu
	running context.Context   // of the dispatchers; guarded by mu, nil when none may be started

	wg       sync.WaitGroup  // dispatchers
	stopping <-chan struct{} // closed when calls that last are to end
}

var errNotReached = fmt.Errorf("%w: not reached yet", engine.ErrUnavailable)

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
			URL: cfg.RedisURL, Username: cfg.RedisUsername, Password: cfg.RedisPassword,
			SentinelUsername: cfg.RedisSentinelUsername, SentinelPassword: cfg.RedisSentinelPassword, TLS: cfg.RedisTLS,
			Prefix: cfg.RedisPrefix, AllowEviction: cfg.AllowEviction, Log: tel.Log,
		})
	} else {
		e, err = memory.New(memory.Config{Dir: cfg.DataDir, Fsync: cfg.Fsync, Log: tel.Log})
	}
	if err != nil {
		return nil, err
	}
	s, err := build(cfg, e, tel)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return s, nil
}

// build assembles a service around an engine.
func build(cfg Config, e engine.Engine, tel *telemetry.Telemetry) (*Service, error) {
	s := &Service{
		cfg: cfg, engine: e, log: tel.Log, queues: map[string]*lines{},
		history:  newHistory(cfg.HistoryKeys),
		sessions: sessions{max: cfg.MaxSessions, all: map[string]*session{}},
	}
	s.usable.Store(&errNotReached)
	var err error
	if s.metrics, err = newMetrics(tel.Registry, s); err != nil {
		return nil, fmt.Errorf("queue metrics: %w", err)
	}
	s.rpc, err = rpc.NewServer(cfg.RPC, rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: rules, Extra: wireOptions()})
	if err != nil {
		return nil, err
	}
	s.stopping = s.rpc.Stopping()
	queuev1.RegisterQueueServiceServer(s.rpc, &server{Service: s})
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("store", func(context.Context) error { return *s.usable.Load() })
	return s, nil
}

// Addr is where the QueueService listens; it waits until Run has opened it.
func (s *Service) Addr(ctx context.Context) (string, error) { return s.rpc.Addr(ctx) }

// Run answers until ctx ends; then health turns NOT_SERVING, Work streams are
// told to go elsewhere, and it returns nil. A store that is reached but unfit
// (it evicts keys, or refuses the credentials) at the start ends it with an
// error; one that is not reached is waited for.
func (s *Service) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.engine.Close()) }()
	// Dispatchers outlive ctx: calls in hand are still answered.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.mu.Lock()
	s.running = running
	s.mu.Unlock()

	err = s.rpc.Run(ctx, s.admin.Run, s.watchStore, func(ctx context.Context) error { return s.engine.Wakes(ctx, s.woken) })

	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	stop()
	s.wg.Wait()
	return err
}

// watchStore keeps health in step with the store and makes the configured
// queues.
func (s *Service) watchStore(ctx context.Context) error {
	const every = 3 * time.Second
	first, wait, generation := true, time.Duration(0), ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		err := s.checkStore(ctx, first)
		if ctx.Err() != nil {
			return nil
		}
		was := *s.usable.Load()
		s.usable.Store(&err)
		s.rpc.SetServing(queuev1.QueueService_ServiceDesc.ServiceName, err == nil)
		switch {
		case err != nil && first && (errors.Is(err, engine.ErrEviction) || errors.Is(err, engine.ErrDenied) || errors.Is(err, engine.ErrUnfit)):
			return err
		case err != nil && (was == nil || errors.Is(was, errNotReached)):
			s.log.Warn("store cannot be used", telemetry.Err(err))
		case err == nil && was != nil:
			s.log.Info("store is ready")
		}
		wait = every
		if err == nil {
			first = false
		} else if first {
			wait = 250 * time.Millisecond
		}
		if g := s.engine.Generation(); err == nil && g != generation {
			if err := s.beginRun(ctx); err != nil {
				s.log.Warn("not every queue was looked at after the store came back", telemetry.Err(err))
			} else {
				generation = g
			}
		}
		s.sessions.expire(time.Now())
	}
}

// starter is a partition of a store that hands nothing out for a time after a
// restart of its own. Start begins that time, unless it has begun; it may be
// called beside turns.
type starter interface {
	Start(ctx context.Context) error
}

// beginRun has every queue begin the store's present run: after a restart the
// time in which nothing is handed out should not begin with the first use. Those
// in use here have a turn; for the others nothing is left running.
func (s *Service) beginRun(ctx context.Context) error {
	names, err := s.engine.Names(ctx)
	for _, name := range names {
		if l, ok := s.known(name); ok {
			l.lookNow()
			continue
		}
		q, failed := s.engine.Open(ctx, name)
		if errors.Is(failed, engine.ErrNoQueue) {
			continue // one that was lost is made again at its first use
		}
		if failed == nil {
			failed = begin(ctx, q)
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("queue %q: %w", name, failed))
		}
	}
	return err
}

func begin(ctx context.Context, q engine.Queue) error {
	for _, p := range q.Partitions() {
		if p, ok := p.(starter); ok {
			if err := p.Start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Service) checkStore(ctx context.Context, configure bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := s.engine.Check(ctx); err != nil || !configure {
		return err
	}
	for _, q := range s.cfg.Queues {
		if _, _, err := s.engine.Configure(ctx, q.Name, q.Config); err != nil {
			return fmt.Errorf("queue %q: %w", q.Name, err)
		}
	}
	return nil
}

// woken has a queue looked at because another replica made keys ready.
func (s *Service) woken(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, l := range s.queues {
		if name == "" || n == name {
			l.lookNow()
		}
	}
}

// queue finds the lines of a queue that exists, starting their dispatchers when
// this is the first use of the queue here.
func (s *Service) queue(ctx context.Context, name string) (*lines, error) {
	s.mu.Lock()
	l := s.queues[name]
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	q, err := s.engine.Open(ctx, name)
	if errors.Is(err, engine.ErrNoQueue) {
		for _, c := range s.cfg.Queues {
			if c.Name == name { // the store came up after the service, or lost it
				q, _, err = s.engine.Configure(ctx, name, c.Config)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return s.adopt(name, q)
}

// known finds the lines of a queue that is in use here, else nil.
func (s *Service) known(name string) (*lines, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.queues[name]
	return l, l != nil
}

// adopt starts a queue's dispatchers unless it has them.
func (s *Service) adopt(name string, q engine.Queue) (*lines, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.queues[name]; l != nil {
		return l, nil
	}
	if s.running == nil {
		return nil, errStopping
	}
	l := newLines(s, name, q)
	s.queues[name] = l
	ctx := s.running
	for _, d := range l.all {
		s.wg.Go(func() { d.run(ctx) })
	}
	return l, nil
}
