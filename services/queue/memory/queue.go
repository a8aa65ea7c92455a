package memory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/journal"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// queue is one queue and its log.
type queue struct {
	e     *Engine
	name  string
	parts []*partition
	log   *journal.Log // nil without a directory
	fsync atomic.Bool

	rewriting atomic.Bool
	closing   atomic.Bool
	used      atomic.Int64   // when it was used last
	gone      atomic.Bool    // it was deleted; set with the locks of all partitions
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
	q.used.Store(e.now())
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
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnavailable, q.name, err)
}

func (q *queue) unknown(err error) error {
	return fmt.Errorf("%w: log of queue %q: %w", engine.ErrUnknown, q.name, err)
}

// Apply implements engine.Partition.
func (p *partition) Apply(_ context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	r, at, err := p.apply(t)
	if err != nil || at == 0 {
		return r, err
	}
	if err := p.q.log.Sync(at); err != nil {
		return nil, p.q.unknown(err)
	}
	return r, nil
}

// transaction logs and applies a transaction; at is what has to be synced, zero for nothing.
func (p *partition) apply(t *workqueue.Transaction) (r *workqueue.Result, at int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.q.gone.Load() {
		return nil, 0, fmt.Errorf("%w: %q", engine.ErrDeleted, p.q.name)
	}
	now := p.q.e.now()
	if len(t.Ops)+len(t.Takes) > 0 {
		p.q.used.Store(now)
	}
	if log := p.q.log; log != nil && !p.m.Quiet(now, t) {
		if at, err = log.Append(record(recTransaction, func(b []byte) []byte { return appendTransaction(b, p.number, now, t) })); err != nil {
			return nil, 0, p.q.unavailable(err)
		}
		if !p.q.fsync.Load() {
			at = 0
		}
		if log.Grown(p.q.e.cfg.CompactBytes) && !p.q.closing.Load() && p.q.rewriting.CompareAndSwap(false, true) {
			p.q.work.Go(p.q.rewrite)
		}
	}
	return p.m.Apply(now, t), at, nil
}

// Status implements engine.Partition.
func (p *partition) Status(context.Context) (engine.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return engine.Status{
		Counts: p.m.Counts(), Closed: p.m.Closed(), Paused: p.m.Paused(), OldestReady: p.m.OldestReady(), Now: p.q.e.now(),
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
	items, next := p.m.Items(p.q.e.now(), state, from, limit)
	if next == 0 {
		return items, "", nil
	}
	return items, strconv.Itoa(next), nil
}

func (q *queue) close() error {
	q.endRewriting()
	if q.log == nil {
		return nil
	}
	return q.log.Close(errors.New("closed"))
}

// endRewriting ends the rewriting of the log and lets none begin.
func (q *queue) endRewriting() {
	q.closing.Store(true)
	for _, p := range q.parts { // who did not see it has started its rewriting
		p.mu.Lock()
		p.mu.Unlock() //nolint:staticcheck // waiting is all
	}
	q.work.Wait()
}

// remove deletes the queue, unless it is refused by what it holds or when it was
// used last, and tells how many keys it held.
func (q *queue) remove(refuse func(c workqueue.Counts) error) (keys int, err error) {
	q.endRewriting()
	for _, p := range q.parts {
		p.mu.Lock()
		defer p.mu.Unlock()
	}
	all := q.counts()
	if err = refuse(all); err == nil && q.log != nil {
		if err = os.Remove(q.path()); err == nil {
			err = journal.SyncDir(q.e.cfg.Dir)
		}
		if errors.Is(err, fs.ErrNotExist) { // an earlier try removed it
			err = journal.SyncDir(q.e.cfg.Dir)
		}
		if err != nil {
			err = q.unavailable(err)
		}
	}
	if err != nil {
		q.closing.Store(false)
		return 0, err
	}
	q.gone.Store(true)
	if q.log != nil {
		_ = q.log.Close(engine.ErrDeleted) // what it holds is of no use
	}
	return all.Ready + all.Delayed + all.Processing + all.Dead, nil
}

// counts adds up what the partitions hold. It needs their locks.
func (q *queue) counts() (all workqueue.Counts) {
	for _, p := range q.parts {
		c := p.m.Counts()
		all.Ready, all.Delayed, all.Processing, all.Dead = all.Ready+c.Ready, all.Delayed+c.Delayed, all.Processing+c.Processing, all.Dead+c.Dead
	}
	return all
}
