package transaction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/history"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Queues are the queues in use on this server, each with its dispatchers. It is safe for
// concurrent use.
type Queues struct {
	Config
	began time.Time     // where the clock begins that workers count by
	Kept  chan struct{} // holds one token when a queue is to be kept

	mu      sync.Mutex
	queues  map[string]*Queue // guarded by mu
	running context.Context   // of the dispatchers; guarded by mu, nil when none may be started

	wg sync.WaitGroup // dispatchers
}

// Config is what queues need. Every field must be set, but History.
type Config struct {
	Engine  engine.Engine
	Log     *slog.Logger
	Metrics *metrics.Set
	History *history.Recent // nil keeps none
	// Listener is notified of what operators did to queues.
	Listener Listener
	// Refused is called when the store refuses what adds.
	Refused func(error)
	// Declared are the queues that the service is configured with.
	Declared map[string]workqueue.Config

	// MaxTransaction is about how many operations, and how many leases, one transaction holds.
	MaxTransaction int
	// MaxPending bounds the operations that wait for a transaction of one partition.
	MaxPending int
	// FallbackEvery is how often a queue with waiting workers is looked at without a
	// reason.
	FallbackEvery time.Duration
}

// Listener is notified of what operators did to queues, for those who hold leases of them here.
// Dispatchers call it: it must not block.
type Listener interface {
	// Paused says that a queue has just been paused.
	Paused(queue string)
	// Revoked says that the leases of keys of a partition were ended.
	Revoked(d *Dispatcher, keys map[string]bool)
}

// New are the queues in use, none yet. Start comes before their first use.
func New(cfg Config) *Queues {
	return &Queues{Config: cfg, began: time.Now(), Kept: make(chan struct{}, 1), queues: map[string]*Queue{}}
}

// Start permits dispatchers, which end with ctx.
func (s *Queues) Start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = ctx
}

// Stop permits no more dispatchers, ends those that run and waits for them.
func (s *Queues) Stop(end context.CancelFunc) {
	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	end()
	s.wg.Wait()
}

// Clock is a time by the clock that workers count their leases by: it does not
// step, and is never zero.
func (s *Queues) Clock(at time.Time) int64 { return at.Sub(s.began).Microseconds() + 1 }

// WakeUp has a queue looked at because another replica made keys ready; all of them without a name.
func (s *Queues) WakeUp(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, l := range s.queues {
		if name == "" || n == name {
			l.Request()
		}
	}
}

// Use finds a queue that exists, starting its dispatchers when this is its first use here.
func (s *Queues) Use(ctx context.Context, name string) (*Queue, error) {
	s.mu.Lock()
	l := s.queues[name]
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	q, err := s.Open(ctx, name)
	if errors.Is(err, engine.ErrNoQueue) {
		if c, ok := s.Declared[name]; ok { // the store came up after the service, or lost it
			q, _, err = s.Engine.Configure(ctx, name, c)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.Adopt(name, q)
}

// Open finds a queue of the store. Where there is none, the error lists those there are.
func (s *Queues) Open(ctx context.Context, name string) (engine.Queue, error) {
	q, err := s.Engine.Open(ctx, name)
	if !errors.Is(err, engine.ErrNoQueue) {
		return q, err
	}
	short, cancel := context.WithTimeout(ctx, LookTimeout)
	defer cancel()
	names, failed := s.Engine.Names(short)
	if failed != nil {
		return nil, err //nolint:nilerr // the list is an addition
	}
	return nil, fmt.Errorf("%w; %s", err, rpc.ThereAre(names, name))
}

// Known finds a queue that is in use here.
func (s *Queues) Known(name string) (*Queue, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.queues[name]
	return l, l != nil
}

// All are the queues in use here.
func (s *Queues) All() []*Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Queue, 0, len(s.queues))
	for _, l := range s.queues {
		all = append(all, l)
	}
	return all
}

// Adopt starts a queue's dispatchers unless it has them.
func (s *Queues) Adopt(name string, q engine.Queue) (*Queue, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.queues[name]; l != nil {
		return l, nil
	}
	if s.running == nil {
		return nil, wire.ErrStopping
	}
	l := newQueue(s, name, q)
	s.queues[name] = l
	for _, d := range l.Partitions {
		l.running.Add(1)
		s.wg.Go(func() {
			defer l.running.Done()
			d.run(l.Context)
		})
	}
	return l, nil
}

// Drop ends the use of a queue that was deleted: calls and streams get the
// error, and its dispatchers and metrics go. Done is closed when they are gone.
func (s *Queues) Drop(l *Queue, err error) (done chan struct{}) {
	done = make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queues[l.Name] == l {
		delete(s.queues, l.Name)
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
		if s.queues[l.Name] == nil {
			s.Metrics.Forget(l.Name)
		}
	})
	return done
}

// Do runs operations on a queue by name.
func (s *Queues) Do(ctx context.Context, queue string, ops ...workqueue.Op) (*Call, error) {
	return s.DoAs(ctx, queue, "", ops...)
}

// DoAs runs operations that a session asked for.
func (s *Queues) DoAs(ctx context.Context, queue, session string, ops ...workqueue.Op) (*Call, error) {
	for again := true; ; again = false {
		l, err := s.Use(ctx, queue)
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		c := &Call{Ops: ops, Session: session, Done: func(*Call) { close(done) }}
		l.Submit(c)
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if again && errors.Is(c.Err, engine.ErrDeleted) && !errors.Is(c.Err, engine.ErrUnknown) { // nothing was done, and it may have been made again
			s.Drop(l, c.Err)
			continue
		}
		if c.Err == nil {
			c.Unfold()
		}
		return c, c.Err
	}
}
