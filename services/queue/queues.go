package queue

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

// queues are the queues in use on this server, each with its dispatchers. It is safe for
// concurrent use.
type queues struct {
	queuesConfig
	began time.Time     // where the clock begins that workers count by
	kept  chan struct{} // holds one token when a queue is to be kept

	mu      sync.Mutex
	queues  map[string]*lines // guarded by mu
	running context.Context   // of the dispatchers; guarded by mu, nil when none may be started

	wg sync.WaitGroup // dispatchers
}

// queuesConfig is what queues need. Every field must be set, but History.
type queuesConfig struct {
	Engine  engine.Engine
	Log     *slog.Logger
	Metrics *metrics.Set
	History *history.Recent // nil keeps none
	// Listener is told what operators did to queues.
	Listener listener
	// Refused is told that the store refuses what adds.
	Refused func(error)
	// Declared are the queues that the service is configured with.
	Declared map[string]workqueue.Config

	// MaxTurn is about how many operations, and how many leases, one transaction holds.
	MaxTurn int
	// MaxPending bounds the operations that wait for a transaction of one partition.
	MaxPending int
	// FallbackEvery is how often a queue with waiting workers is looked at without a
	// reason.
	FallbackEvery time.Duration
}

// listener is told what operators did to queues, for those who hold leases of them here.
// Dispatchers call it: it must not block.
type listener interface {
	// Paused says that a queue has just been paused.
	Paused(queue string)
	// Revoked says that the leases of keys of a partition were ended.
	Revoked(d *dispatcher, keys map[string]bool)
}

func newQueues(cfg queuesConfig) *queues {
	return &queues{queuesConfig: cfg, began: time.Now(), kept: make(chan struct{}, 1), queues: map[string]*lines{}}
}

// start permits dispatchers, which end with ctx.
func (s *queues) start(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = ctx
}

// stop permits no more dispatchers, ends those that run and waits for them.
func (s *queues) stop(end context.CancelFunc) {
	s.mu.Lock()
	s.running = nil
	s.mu.Unlock()
	end()
	s.wg.Wait()
}

// clock is a time by the clock that workers count their leases by: it does not
// step, and is never zero.
func (s *queues) clock(at time.Time) int64 { return at.Sub(s.began).Microseconds() + 1 }

// wake has a queue looked at because another replica made keys ready; all of them without a name.
func (s *queues) wake(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, l := range s.queues {
		if name == "" || n == name {
			l.request()
		}
	}
}

// use finds a queue that exists, starting its dispatchers when this is its first use here.
func (s *queues) use(ctx context.Context, name string) (*lines, error) {
	s.mu.Lock()
	l := s.queues[name]
	s.mu.Unlock()
	if l != nil {
		return l, nil
	}
	q, err := s.open(ctx, name)
	if errors.Is(err, engine.ErrNoQueue) {
		if c, ok := s.Declared[name]; ok { // the store came up after the service, or lost it
			q, _, err = s.Engine.Configure(ctx, name, c)
		}
	}
	if err != nil {
		return nil, err
	}
	return s.adopt(name, q)
}

// open finds a queue of the store. Where there is none, the error lists those there are.
func (s *queues) open(ctx context.Context, name string) (engine.Queue, error) {
	q, err := s.Engine.Open(ctx, name)
	if !errors.Is(err, engine.ErrNoQueue) {
		return q, err
	}
	short, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	names, failed := s.Engine.Names(short)
	if failed != nil {
		return nil, err //nolint:nilerr // the list is an addition
	}
	return nil, fmt.Errorf("%w; %s", err, rpc.ThereAre(names, name))
}

// known finds a queue that is in use here.
func (s *queues) known(name string) (*lines, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.queues[name]
	return l, l != nil
}

// all are the queues in use here.
func (s *queues) all() []*lines {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*lines, 0, len(s.queues))
	for _, l := range s.queues {
		all = append(all, l)
	}
	return all
}

// adopt starts a queue's dispatchers unless it has them.
func (s *queues) adopt(name string, q engine.Queue) (*lines, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.queues[name]; l != nil {
		return l, nil
	}
	if s.running == nil {
		return nil, wire.ErrStopping
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
func (s *queues) drop(l *lines, err error) (done chan struct{}) {
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
			s.Metrics.Forget(l.name)
		}
	})
	return done
}

// do runs operations on a queue by name.
func (s *queues) do(ctx context.Context, queue string, ops ...workqueue.Op) (*call, error) {
	return s.doAs(ctx, queue, "", ops...)
}

// doAs runs operations that a session asked for.
func (s *queues) doAs(ctx context.Context, queue, session string, ops ...workqueue.Op) (*call, error) {
	for again := true; ; again = false {
		l, err := s.use(ctx, queue)
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		c := &call{ops: ops, by: session, done: func(*call) { close(done) }}
		l.submit(c)
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if again && errors.Is(c.err, engine.ErrDeleted) && !errors.Is(c.err, engine.ErrUnknown) { // nothing was done, and it may have been made again
			s.drop(l, c.err)
			continue
		}
		if c.err == nil {
			c.unfold()
		}
		return c, c.err
	}
}
