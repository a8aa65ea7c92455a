package transaction

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

// Queue is one queue: a dispatcher for each of its partitions.
type Queue struct {
	Name       string
	queues     *Queues
	Stored     engine.Queue
	Partitions []*Dispatcher
	Metrics    *metrics.Queue

	Paused  atomic.Bool                          // by a call that came here
	Streams atomic.Int64                         // that keep the queue
	Used    atomic.Int64                         // when the store last noted a use from here, in Unix nanoseconds
	Step    atomic.Pointer[workqueue.Correction] // of the store's clock, the last one seen here; nil for none

	Context context.Context         // of the dispatchers; its cause tells why it ended
	end     context.CancelCauseFunc // of Context
	running sync.WaitGroup          // dispatchers

	mu     sync.Mutex
	counts []workqueue.Counts // of each partition after its last transaction; guarded by mu
}

// PartitionTimeout is how long a partition of the store may take, before its caller is
// answered without it.
const PartitionTimeout = 500 * time.Millisecond

// LookTimeout bounds how long one partition of several is looked at.
const LookTimeout = 2 * time.Second

func newQueue(s *Queues, name string, q engine.Queue) *Queue {
	l := &Queue{Name: name, queues: s, Stored: q, Metrics: s.Metrics.Queue(name)}
	l.Context, l.end = context.WithCancelCause(s.running)
	parts := q.Partitions()
	l.counts = make([]workqueue.Counts, len(parts))
	for i, p := range parts {
		l.Partitions = append(l.Partitions, newDispatcher(l, i, p))
	}
	return l
}

// Ended is why the queue is not in use here any more, nil while it is: it was
// deleted, or the service ends.
func (l *Queue) Ended() error {
	if err := context.Cause(l.Context); err == nil || errors.Is(err, engine.ErrNoQueue) {
		return err
	}
	return wire.ErrStopping
}

// At is the dispatcher of a key.
func (l *Queue) At(key string) *Dispatcher {
	return l.Partitions[engine.PartitionOf(key, len(l.Partitions))]
}

// Request has every partition looked at.
func (l *Queue) Request() {
	for _, d := range l.Partitions {
		d.request()
	}
}

// counted is a result with the counts of the whole queue, for its metrics.
func (l *Queue) counted(part int, r *workqueue.Result) *workqueue.Result {
	if r == nil || len(l.Partitions) == 1 {
		return r
	}
	whole := *r
	l.mu.Lock()
	l.counts[part] = r.Counts
	whole.Counts = workqueue.Counts{}
	for _, c := range l.counts {
		AddCounts(&whole.Counts, c)
	}
	l.mu.Unlock()
	return &whole
}

// AddCounts adds counts up.
func AddCounts(to *workqueue.Counts, c workqueue.Counts) {
	to.Ready += c.Ready
	to.Delayed += c.Delayed
	to.Processing += c.Processing
	to.Dirty += c.Dirty
	to.Dead += c.Dead
}

// Do runs operations, each in the next transaction of its key's partition and in
// order there, and waits for them. Operations without a key are done in every
// partition. When ctx ends first they happen all the same. An error that
// matches ErrUnknown also says that some partitions did their part.
func (l *Queue) Do(ctx context.Context, ops ...workqueue.Op) (*Call, error) {
	done := make(chan struct{})
	c := &Call{Ops: ops, Done: func(*Call) { close(done) }}
	l.Submit(c)
	select {
	case <-done:
		return c, c.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keyless says that an operation concerns every partition.
func keyless(k workqueue.OpKind) bool {
	switch k {
	case workqueue.OpClose, workqueue.OpOpen, workqueue.OpPause, workqueue.OpResume:
		return true
	}
	return false
}

// Submit hands a call to the next transactions of the partitions it concerns; its
// done is called when all are over.
func (l *Queue) Submit(c *Call) {
	if len(l.Partitions) == 1 {
		l.Partitions[0].Submit(c)
		return
	}
	only, several := -1, false
	for i := range c.Ops {
		p := engine.PartitionOf(c.Ops[i].Key, len(l.Partitions))
		if only < 0 {
			only = p
		}
		if several = p != only || keyless(c.Ops[i].Kind); several {
			break
		}
	}
	if !several {
		l.Partitions[max(only, 0)].Submit(c)
		return
	}
	type share struct {
		call *Call
		at   []int
	}
	shares := make([]share, len(l.Partitions))
	place := func(p, i int) {
		if shares[p].call == nil {
			shares[p].call = &Call{Session: c.Session}
		}
		shares[p].call.Ops = append(shares[p].call.Ops, c.Ops[i])
		shares[p].at = append(shares[p].at, i)
	}
	for i := range c.Ops {
		if keyless(c.Ops[i].Kind) {
			for p := range l.Partitions {
				place(p, i)
			}
			continue
		}
		place(engine.PartitionOf(c.Ops[i].Key, len(l.Partitions)), i)
	}
	var mu sync.Mutex
	left, some := 0, false
	var errs []error
	for p := range shares {
		if shares[p].call != nil {
			left++
		}
	}
	c.Replies = make([]workqueue.Reply, len(c.Ops))
	for p, sh := range shares {
		if sh.call == nil {
			continue
		}
		sh.call.Done = func(part *Call) {
			mu.Lock()
			defer mu.Unlock()
			if part.Err != nil {
				errs = append(errs, part.Err)
				if c.Failed == nil {
					c.Failed = make([]error, len(c.Ops))
				}
				for _, i := range sh.at {
					c.Failed[i] = part.Err
				}
			} else {
				some = true
				for n, i := range sh.at {
					c.Replies[i] = part.Replies[n]
				}
			}
			c.Now = max(c.Now, part.Now)
			if left--; left > 0 {
				return
			}
			switch err := errors.Join(errs...); {
			case err != nil && some: // no single cause tells what became of all of them
				c.Err = fmt.Errorf("%w: some partitions did their part, others did not: %v", engine.ErrUnknown, err) //nolint:errorlint // the cause must not decide the code
			default:
				c.Err, c.Failed = err, nil
			}
			c.Via = part.Via
			c.Done(c)
		}
		l.Partitions[p].Submit(sh.call)
	}
}

// IsUnreached says that an error is of a part of the store that did not answer.
func IsUnreached(err error) bool {
	return errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrUnknown) || errors.Is(err, context.DeadlineExceeded)
}

// IsLimited says that the store refuses adds, and does everything else.
func IsLimited(err error) bool {
	return errors.Is(err, engine.ErrFull) || errors.Is(err, engine.ErrEviction)
}
