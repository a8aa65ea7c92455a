// Package memory keeps queues in this process: core/workqueue behind a lock
// per partition, and with a directory an append-only log in front of every
// change, so that what was acknowledged survives the end of the process.
//
// A queue has one log, which all its partitions share. A transaction is logged before
// it is applied, so a log that cannot be written loses nothing: the transaction is
// refused and nothing has changed. Where a queue asks for Fsync the answer
// waits until the record is on disk; transactions of several partitions that wait at
// the same time share one fsync.
//
// A log that has grown is rewritten with a snapshot of the queue. Transactions of a
// partition wait while its keys are copied to memory, some 12 ms for 100,000
// keys; a queue of millions should have several partitions. The last megabyte
// of the log is copied while all transactions wait, with an fsync where they ask for
// Fsync.
package memory

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Config says how queues are kept. The zero value keeps them in memory only.
type Config struct {
	// Dir is where queues are logged; empty for not at all. What is
	// acknowledged then survives kill -9. A queue that asks for Fsync needs it.
	Dir string
	// Fsync forces the transactions of every queue to disk, whatever the queue asks
	// for, so that they also survive a crash of the machine.
	Fsync bool
	// CompactBytes is how far a log grows at least before it is rewritten; it
	// then has to double. Transactions of a partition wait while its keys are copied.
	// Default 64 MiB.
	CompactBytes int64
	// Log receives a record of each log that was cut, kept aside or not rewritten.
	// Nil discards them.
	Log *slog.Logger
	// Now, for tests, is the clock.
	Now func() time.Time
	// Step, for tests, is added to the machine's clock.
	Step func() time.Duration
}

// Engine is an engine.Engine in memory.
type Engine struct {
	cfg        Config
	generation atomic.Pointer[string]
	lock       *os.File        // held while the directory is this process'
	ahead      int64           // of cfg.Now, in microseconds: time goes on where logs end, or later
	steady     *steady         // cfg.Now, unless a test gave one
	disk       journal.Options // of tests

	mu     sync.Mutex
	queues map[string]*queue // guarded by mu
}

var _ engine.Engine = (*Engine)(nil)

// New opens an engine and, with a directory, reads back what it holds. Every
// start is a new generation. A directory serves one process at a time.
//
// What a crash tore off the end of a log was never acknowledged and is cut. A
// log damaged before its end is kept beside the new one under a name that ends
// in ".damaged-" and the time, which is logged as an error: what comes before
// the damage is served, what comes after may be lost, and since this is a new
// generation every key is added again from the index. A log without a whole
// snapshot at its start is refused.
func New(cfg Config) (*Engine, error) {
	if cfg.CompactBytes == 0 {
		cfg.CompactBytes = 64 << 20
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	var clock *steady
	if cfg.Now == nil { // steps of the machine's clock are not followed
		clock = newSteady(cfg.Step, cfg.Log)
		cfg.Now = clock.now
	}
	e := &Engine{cfg: cfg, steady: clock, queues: map[string]*queue{}}
	e.generation.Store(new(newGeneration()))
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

// journal says how logs are written.
func (e *Engine) journal() journal.Options {
	o := e.disk
	o.Format = format
	return o
}

// now is the store's clock.
func (e *Engine) now() int64 { return e.cfg.Now().UnixMicro() + e.ahead }

// Kind is "memory".
func (e *Engine) Kind() string { return "memory" }

// Generation is new at every start, and when a queue that held keys is deleted.
func (e *Engine) Generation() string { return *e.generation.Load() }

// Configure implements engine.Engine. Besides ErrPartitions it gives
// ErrDurability for a queue to be replicated, or synced without a directory.
func (e *Engine) Configure(_ context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	cfg = cfg.WithDefaults()
	switch {
	case cfg.Durability == workqueue.Replicated:
		return nil, false, fmt.Errorf("%w: queue %q: memory has no replicas", engine.ErrDurability, name)
	case cfg.Durability == workqueue.Fsync && e.cfg.Dir == "":
		return nil, false, fmt.Errorf("%w: queue %q: memory without a data directory has no disk", engine.ErrDurability, name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if q := e.queues[name]; q != nil {
		return q, false, q.configure(cfg)
	}
	q := newQueue(e, name, cfg)
	if e.cfg.Dir != "" {
		if err := q.create(); err != nil {
			return nil, false, err
		}
	}
	e.queues[name] = q
	return q, true, nil
}

// Open implements engine.Engine.
func (e *Engine) Open(_ context.Context, name string) (engine.Queue, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, err := e.find(name)
	if err != nil {
		return nil, err // not q: a nil *queue is no nil Queue
	}
	return q, nil
}

// Delete implements engine.Engine. The log's file is gone when it returns.
func (e *Engine) Delete(_ context.Context, name string, force bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q, err := e.find(name)
	if err != nil {
		return err
	}
	keys, err := q.remove(func(c workqueue.Counts) error {
		if c.Processing > 0 && !force {
			return fmt.Errorf("%w: %d of queue %q", engine.ErrLeased, c.Processing, name)
		}
		return nil
	})
	if err != nil {
		return err
	}
	delete(e.queues, name)
	if keys > 0 {
		e.generation.Store(new(newGeneration()))
	}
	return nil
}

func newGeneration() string { return strings.ToLower(rand.Text()[:16]) }

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

// Check reports a log that cannot be written.
func (e *Engine) Check(context.Context) error {
	e.mu.Lock()
	all := make([]*queue, 0, len(e.queues))
	for _, q := range e.queues {
		all = append(all, q)
	}
	e.mu.Unlock()
	for _, q := range all {
		if q.log == nil {
			continue
		}
		if err := q.log.Check(); err != nil {
			return q.unavailable(err)
		}
	}
	return nil
}

// Close ends what runs beside transactions and closes the logs.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for _, q := range e.queues {
		errs = append(errs, q.close())
	}
	if e.lock != nil {
		errs = append(errs, e.lock.Close())
		e.lock = nil
	}
	return errors.Join(errs...)
}

// configure changes a queue that exists.
func (q *queue) configure(cfg workqueue.Config) error {
	for _, p := range q.parts {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	was := q.parts[0].m.Config()
	if was.Partitions != cfg.Partitions {
		return fmt.Errorf("%w: queue %q has %d", engine.ErrPartitions, q.name, was.Partitions)
	}
	if reflect.DeepEqual(was, cfg) {
		return nil
	}
	now := q.e.now()
	if q.log != nil {
		if err := q.logConfig(now, cfg); err != nil {
			return err
		}
	}
	for _, p := range q.parts {
		p.m.Configure(now, cfg)
	}
	q.used.Store(now)
	q.fsync.Store(q.e.cfg.Fsync || cfg.Durability == workqueue.Fsync)
	return nil
}
