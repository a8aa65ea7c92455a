// Package memory keeps queues in this process: core/workqueue behind a lock,
// and with a directory an append-only log in front of every answer, so that
// what was acknowledged survives the end of the process.
package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Config says how queues are kept. The zero value keeps them in memory only.
type Config struct {
	// Dir is where queues are logged; empty for not at all. What is
	// acknowledged then survives kill -9.
	Dir string
	// Fsync forces every turn to disk, so that it also survives a crash of the
	// machine.
	Fsync bool
	// CompactBytes is how far a log grows before it is rewritten. Default 64 MiB.
	CompactBytes int64
	// Now, for tests, is the clock.
	Now func() time.Time
}

// Engine is an engine.Engine in memory.
type Engine struct {
	cfg        Config
	generation string
	lock       *os.File // held while the directory is this process'

	mu     sync.Mutex
	queues map[string]*queue // guarded by mu
}

var _ engine.Engine = (*Engine)(nil)

// New opens an engine and, with a directory, reads back what it holds. Every
// start is a new generation. A directory serves one process at a time.
func New(cfg Config) (*Engine, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CompactBytes == 0 {
		cfg.CompactBytes = 64 << 20
	}
	e := &Engine{cfg: cfg, generation: strings.ToLower(rand.Text()[:16]), queues: map[string]*queue{}}
	if cfg.Dir == "" {
		return e, nil
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("queue data in %s: %w", cfg.Dir, err)
	}
	var err error
	if e.lock, err = dirlock.Lock(cfg.Dir); err != nil {
		return nil, fmt.Errorf("queue data in %s: %w", cfg.Dir, err)
	}
	if err := e.restore(); err != nil {
		return nil, errors.Join(fmt.Errorf("queue data in %s: %w", cfg.Dir, err), e.Close())
	}
	return e, nil
}

// Kind is "memory".
func (e *Engine) Kind() string { return "memory" }

// Generation is new at every start.
func (e *Engine) Generation() string { return e.generation }

// Configure implements engine.Engine.
func (e *Engine) Configure(_ context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	cfg = cfg.WithDefaults()
	e.mu.Lock()
	defer e.mu.Unlock()
	q := e.queues[name]
	created := q == nil
	if created {
		q = &queue{e: e, name: name, m: workqueue.New(cfg)}
		if err := q.create(); err != nil {
			return nil, false, err
		}
		e.queues[name] = q
		return q, true, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.m.Config().Partitions != cfg.Partitions {
		return nil, false, fmt.Errorf("%w: queue %q has %d", engine.ErrPartitions, name, q.m.Config().Partitions)
	}
	if reflect.DeepEqual(q.m.Config(), cfg) {
		return q, false, nil
	}
	if err := q.logConfig(cfg); err != nil {
		return nil, false, err
	}
	q.m.Configure(cfg)
	return q, false, nil
}

// Open implements engine.Engine.
func (e *Engine) Open(_ context.Context, name string) (engine.Queue, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[name]; q != nil {
		return q, nil
	}
	return nil, fmt.Errorf("%w: %q", engine.ErrNoQueue, name)
}

// Names implements engine.Engine.
func (e *Engine) Names(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := make([]string, 0, len(e.queues))
	for n := range e.queues {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, nil
}

// Wakes waits for ctx: there are no other replicas.
func (e *Engine) Wakes(ctx context.Context, _ func(string)) error {
	<-ctx.Done()
	return nil
}

// Check reports a log that cannot be written, and mends it when it can be.
func (e *Engine) Check(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		q.mu.Lock()
		err := q.mend()
		q.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Close closes the logs.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, q := range e.queues {
		q.mu.Lock()
		errs = append(errs, q.close())
		q.mu.Unlock()
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
		e.lock = nil
	}
	return errors.Join(errs...)
}

// queue is one queue and its log.
type queue struct {
	e    *Engine
	name string

	mu     sync.Mutex
	m      *workqueue.Machine // guarded by mu, as is all that follows
	log    *wal               // nil without a directory
	broken error              // set when memory is ahead of the log for good
}

func (q *queue) Config() workqueue.Config {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.m.Config()
}

// Partitions implements engine.Queue.
func (q *queue) Partitions() []engine.Partition { return []engine.Partition{q} }

// Turn implements engine.Partition. The answer leaves after the log has the turn.
func (q *queue) Turn(_ context.Context, t *workqueue.Turn) (*workqueue.Result, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken != nil {
		return nil, q.broken
	}
	now := q.e.cfg.Now().UnixMicro()
	r := q.m.Turn(now, t)
	if err := q.logTurn(now, t, r); err != nil {
		return nil, err
	}
	return r, nil
}

func (q *queue) Status(context.Context) (engine.Status, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.broken != nil { // memory tells more than was acknowledged
		return engine.Status{}, q.broken
	}
	return engine.Status{
		Counts: q.m.Counts(), Closed: q.m.Closed(), Paused: q.m.Paused(), OldestReady: q.m.OldestReady(), Now: q.e.cfg.Now().UnixMicro(),
	}, nil
}

func (q *queue) Items(_ context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items, next := q.m.Items(q.e.cfg.Now().UnixMicro(), state, cursor, limit)
	return items, next, nil
}
