package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// Service is a queue server. Make it with New, run it once.
type Service struct {
	cfg       Config
	engine    engine.Engine
	log       *slog.Logger
	metrics   *metrics
	history   *history // nil when none is kept
	rpc       *rpc.Server
	admin     *telemetry.Admin
	sessions  sessions
	condition condition
	gets      atomic.Uint32 // counts Gets
	kept      chan struct{} // holds one token when a queue is to be kept
	making    sync.Mutex    // of queues, one at a time
	began     time.Time     // where the clock begins that workers count by

	mu      sync.Mutex
	queues  map[string]*lines // guarded by mu
	running context.Context   // of the dispatchers; guarded by mu, nil when none may be started

	wg       sync.WaitGroup  // dispatchers
	stopping <-chan struct{} // closed when calls that last are to end
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
		cfg: cfg, engine: e, log: tel.Log, began: time.Now(), queues: map[string]*lines{},
		history: newHistory(cfg.HistoryKeys), kept: make(chan struct{}, 1),
		sessions: sessions{max: cfg.MaxSessions, all: map[string]*session{}},
	}
	s.condition = condition{log: tel.Log, err: errNotReached}
	var err error
	if s.metrics, err = newMetrics(tel.Registry, s); err != nil {
		return nil, fmt.Errorf("queue metrics: %w", err)
	}
	s.condition.gauge = s.metrics.refusing
	s.rpc, err = rpc.NewServer(cfg.RPC, rpc.Options{
		Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Rules: rules, Extra: wireOptions(), MessageBytes: requestBytes(),
	})
	if err != nil {
		return nil, err
	}
	s.stopping = s.rpc.Stopping()
	queuev1.RegisterQueueServiceServer(s.rpc, &server{Service: s})
	if s.admin, err = telemetry.NewAdmin(cfg.Admin, tel.Registry, tel.Log); err != nil {
		return nil, err
	}
	s.admin.Ready("serving", s.rpc.Ready)
	s.admin.Ready("authorization", telemetry.Degrades(s.rpc.CheckAuthorizer))
	s.admin.Ready("store", func(context.Context) error { return s.condition.ready() })
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

	err = s.rpc.Run(ctx, s.admin.Run, s.watchStore, s.keepQueues, s.expireQueues, func(ctx context.Context) error { return s.engine.Wakes(ctx, s.woken) })

	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	stop()
	s.wg.Wait()
	return err
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
	q, err := s.open(ctx, name)
	if errors.Is(err, engine.ErrNoQueue) {
		if c, ok := s.declared(name); ok { // the store came up after the service, or lost it
			q, _, err = s.engine.Configure(ctx, name, c)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.adopt(name, q)
}

// declared is the configuration of a queue that the service is configured with.
func (s *Service) declared(name string) (workqueue.Config, bool) {
	for _, c := range s.cfg.Queues {
		if c.Name == name {
			return c.Config, true
		}
	}
	return workqueue.Config{}, false
}

// open finds a queue of the store. Where there is none, the error lists those there are.
func (s *Service) open(ctx context.Context, name string) (engine.Queue, error) {
	q, err := s.engine.Open(ctx, name)
	if !errors.Is(err, engine.ErrNoQueue) {
		return q, err
	}
	short, cancel := context.WithTimeout(ctx, lookPart)
	defer cancel()
	names, failed := s.engine.Names(short)
	if failed != nil {
		return nil, err //nolint:nilerr // the list is an addition
	}
	return nil, fmt.Errorf("%w; %s", err, rpc.ThereAre(names, name))
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
	for _, d := range l.all {
		l.running.Add(1)
		s.wg.Go(func() {
			defer l.running.Done()
			d.run(l.ctx)
		})
	}
	return l, nil
}

// drop ends the use of a queue that was deleted: calls and streams get the
// error, and its dispatchers and metrics go. Done is closed when they are gone.
func (s *Service) drop(l *lines, err error) (done chan struct{}) {
	done = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[l.name] == l {
		delete(s.queues, l.name)
	}
	l.end(err)
	if s.running == nil { // all of them end
		close(done)
		return done
	}
	s.wg.Go(func() {
		defer close(done)
		l.running.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.queues[l.name] == nil {
			s.metrics.forget(l.name)
		}
	})
	return done
}
