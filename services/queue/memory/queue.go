package memory

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// queue is one queue and its log.
type queue struct {
	e     *Engine
	name  string
	parts []*partition
	log   *wal // nil without a directory
	fsync atomic.Bool

	rewriting atomic.Bool
	closing   atomic.Bool
	work      sync.WaitGroup // the rewriting of the log
}

// partition is one partition of a queue.
type partition struct {
	q      *queue
	number int

	mu sync.Mutex
	m  *workqueue.Machine // guarded by mu
}

func newQueue(e *Engine, name string, cfg workqueue.Config) *queue {
	q := &queue{e: e, name: name}
	for range cfg.Partitions {
		q.add(workqueue.New(cfg))
	}
	return q
}

func (q *queue) add(m *workqueue.Machine) {
	q.parts = append(q.parts, &partition{q: q, number: len(q.parts), m: m})
	q.fsync.Store(q.e.cfg.Fsync || m.Config().Durability == workqueue.Fsync)
}

// Config implements engine.Queue.
func (q *queue) Config() workqueue.Config {
	p := q.parts[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m.Config()
}

// Partitions implements engine.Queue.
func (q *queue) Partitions() []engine.Partition {
	all := make([]engine.Partition, len(q.parts))
	for i, p := range q.parts {
		all[i] = p
	}
	return all
}

func (q *queue) unavailable(err error) error {
	return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnavailable, q.name, err)
}

func (q *queue) unknown(err error) error {
	return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnknown, q.name, err)
}

// Turn implements engine.Partition.
func (p *partition) Turn(_ context.Context, t *workqueue.Turn) (*workqueue.Result, error) {
	r, at, err := p.turn(t)
	if err != nil || at == 0 {
		return r, err
	}
	if err := p.q.log.sync(at); err != nil {
		return nil, p.q.unknown(err)
	}
	return r, nil
}

// turn logs and applies a turn; at is what has to be synced, zero for nothing.
func (p *partition) turn(t *workqueue.Turn) (r *workqueue.Result, at int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.q.e.cfg.Now().UnixMicro()
	if log := p.q.log; log != nil && !p.m.Quiet(now, t) {
		if at, err = log.append(recTurn, func(b []byte) []byte { return appendTurn(b, p.number, now, t) }); err != nil {
			return nil, 0, p.q.unavailable(err)
		}
		if !p.q.fsync.Load() {
			at = 0
		}
		if log.grown(p.q.e.cfg.CompactBytes) && !p.q.closing.Load() && p.q.rewriting.CompareAndSwap(false, true) {
			p.q.work.Go(p.q.rewrite)
		}
	}
	return p.m.Turn(now, t), at, nil
}

// Status implements engine.Partition.
func (p *partition) Status(context.Context) (engine.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return engine.Status{
		Counts: p.m.Counts(), Closed: p.m.Closed(), Paused: p.m.Paused(), OldestReady: p.m.OldestReady(), Now: p.q.e.cfg.Now().UnixMicro(),
	}, nil
}

// Items implements engine.Partition. It looks at a bounded number of keys with
// the partition's lock held, so a page may be empty before the end.
func (p *partition) Items(_ context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	from := 0
	if cursor != "" {
		n, err := strconv.ParseUint(cursor, 10, 31)
		if err != nil || n == 0 {
			return nil, "", fmt.Errorf("%w: %q", engine.ErrCursor, cursor)
		}
		from = int(n)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	items, next := p.m.Items(p.q.e.cfg.Now().UnixMicro(), state, from, limit)
	if next == 0 {
		return items, "", nil
	}
	return items, strconv.Itoa(next), nil
}

func (q *queue) close() error {
	q.closing.Store(true)
	for _, p := range q.parts { // who did not see it has started its rewriting
		p.mu.Lock()
		p.mu.Unlock() //nolint:staticcheck // waiting is all
	}
	q.work.Wait()
	if q.log == nil {
		return nil
	}
	return q.log.close(errors.New("closed"))
}
