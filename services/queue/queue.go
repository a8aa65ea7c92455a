package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// lines is one queue: a dispatcher for each of its partitions.
type lines struct {
	name    string
	queues  *queues
	of      engine.Queue
	all     []*dispatcher
	metrics *metrics.Queue

	paused  atomic.Bool  // by a call that came here
	streams atomic.Int64 // that keep the queue
	used    atomic.Int64 // when the store heard of a use from here last, in Unix nanoseconds

	ctx     context.Context         // of the dispatchers; its cause tells why it ended
	end     context.CancelCauseFunc // of ctx
	running sync.WaitGroup          // dispatchers

	mu     sync.Mutex
	counts []workqueue.Counts // of each partition after its last transaction; guarded by mu
}

// partitionTimeout is how long a partition of the store may take, before its caller is
// answered without it.
const partitionTimeout = 500 * time.Millisecond

// lookTimeout bounds how long one partition of several is looked at.
const lookTimeout = 2 * time.Second

func newLines(s *queues, name string, q engine.Queue) *lines {
	l := &lines{name: name, queues: s, of: q, metrics: s.Metrics.Queue(name)}
	l.ctx, l.end = context.WithCancelCause(s.running)
	parts := q.Partitions()
	l.counts = make([]workqueue.Counts, len(parts))
	for i, p := range parts {
		l.all = append(l.all, newDispatcher(l, i, p))
	}
	return l
}

// ended is why the queue is not in use here any more, nil while it is: it was
// deleted, or the service ends.
func (l *lines) ended() error {
	if err := context.Cause(l.ctx); err == nil || errors.Is(err, engine.ErrNoQueue) {
		return err
	}
	return wire.ErrStopping
}

// at is the dispatcher of a key.
func (l *lines) at(key string) *dispatcher { return l.all[engine.PartitionOf(key, len(l.all))] }

// request has every partition looked at.
func (l *lines) request() {
	for _, d := range l.all {
		d.request()
	}
}

// counted is a result with the counts of the whole queue, for its metrics.
func (l *lines) counted(part int, r *workqueue.Result) *workqueue.Result {
	if r == nil || len(l.all) == 1 {
		return r
	}
	whole := *r
	l.mu.Lock()
	l.counts[part] = r.Counts
	whole.Counts = workqueue.Counts{}
	for _, c := range l.counts {
		sum(&whole.Counts, c)
	}
	l.mu.Unlock()
	return &whole
}

// sum adds counts up.
func sum(to *workqueue.Counts, c workqueue.Counts) {
	to.Ready += c.Ready
	to.Delayed += c.Delayed
	to.Processing += c.Processing
	to.Dirty += c.Dirty
	to.Dead += c.Dead
}

// do runs operations, each in the next transaction of its key's partition and in
// order there, and waits for them. Operations without a key are done in every
// partition. When ctx ends first they happen all the same. An error that
// matches ErrUnknown also says that some partitions did their part.
func (l *lines) do(ctx context.Context, ops ...workqueue.Op) (*call, error) {
	done := make(chan struct{})
	c := &call{ops: ops, done: func(*call) { close(done) }}
	l.submit(c)
	select {
	case <-done:
		return c, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keyless says that an operation concerns every partition.
func keyless(k workqueue.OpKind) bool {
	switch k {
	case workqueue.OpClose, workqueue.OpOpen, workqueue.OpPause, workqueue.OpResume, workqueue.OpBackoffGC:
		return true
	}
	return false
}

// submit hands a call to the next transactions of the partitions it concerns; its
// done is called when all are over.
func (l *lines) submit(c *call) {
	if len(l.all) == 1 {
		l.all[0].submit(c)
		return
	}
	only, several := -1, false
	for i := range c.ops {
		p := engine.PartitionOf(c.ops[i].Key, len(l.all))
		if only < 0 {
			only = p
		}
		if several = p != only || keyless(c.ops[i].Kind); several {
			break
		}
	}
	if !several {
		l.all[max(only, 0)].submit(c)
		return
	}
	type share struct {
		call *call
		at   []int
	}
	shares := make([]share, len(l.all))
	place := func(p, i int) {
		if shares[p].call == nil {
			shares[p].call = &call{by: c.by}
		}
		shares[p].call.ops = append(shares[p].call.ops, c.ops[i])
		shares[p].at = append(shares[p].at, i)
	}
	for i := range c.ops {
		if keyless(c.ops[i].Kind) {
			for p := range l.all {
				place(p, i)
			}
			continue
		}
		place(engine.PartitionOf(c.ops[i].Key, len(l.all)), i)
	}
	var mu sync.Mutex
	left, some := 0, false
	var errs []error
	for p := range shares {
		if shares[p].call != nil {
			left++
		}
	}
	c.replies = make([]workqueue.Reply, len(c.ops))
	for p, sh := range shares {
		if sh.call == nil {
			continue
		}
		sh.call.done = func(part *call) {
			mu.Lock()
			defer mu.Unlock()
			if part.err != nil {
				errs = append(errs, part.err)
				if c.failed == nil {
					c.failed = make([]error, len(c.ops))
				}
				for _, i := range sh.at {
					c.failed[i] = part.err
				}
			} else {
				some = true
				for n, i := range sh.at {
					collected := c.replies[i].Count
					c.replies[i] = part.replies[n]
					c.replies[i].Count += collected
				}
			}
			c.now = max(c.now, part.now)
			if left--; left > 0 {
				return
			}
			switch err := errors.Join(errs...); {
			case err != nil && some: // no single cause tells what became of all of them
				c.err = fmt.Errorf("%w: some partitions did their part, others did not: %v", engine.ErrUnknown, err) //nolint:errorlint // the cause must not decide the code
			default:
				c.err, c.failed = err, nil
			}
			c.via = part.via
			c.done(c)
		}
		l.all[p].submit(sh.call)
	}
}

// unreached says that an error is of a part of the store that did not answer.
func unreached(err error) bool {
	return errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// limited says that the store refuses adds, and does everything else.
func limited(err error) bool {
	return errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrEviction)
}
