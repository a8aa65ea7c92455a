package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Extension is the outcome of extending leases.
type Extension struct {
	Kept, Lost  []*queuev1.LeaseRef
	Unreachable []*queuev1.LeaseRef // nobody knows
	Deadlines   []int64             // of what is kept, by the store's clock
	Freed       []Freed
	Remaining   time.Duration // of the lease that ends first; zero when none is kept
	Err         error
}

// extending is an extension under way: one transaction of each partition it concerns.
type extending struct {
	s     *Leases
	ss    *Session
	asked []*queuev1.LeaseRef
	whole bool // what is not reached is an error of the whole request
	done  func(Extension)

	mu   sync.Mutex
	out  Extension // guarded by mu, as is all that follows
	left int
	over bool // done was called
	// answered are the leases that were answered for, kept or lost.
	answered map[*queuev1.LeaseRef]bool
}

// Extend moves the deadlines of leases, but those of which nobody can tell whose
// they are, to now plus a lease time in microseconds; zero means what each was
// leased for, or else its queue's.
// A negative one shortens: no later than now plus its amount, but not what
// another server has extended since.
// Done is called once, possibly from a dispatcher. Unless the request is to be done
// as a whole, leases that are not reached, within the limit if there is one, are
// reported as unreachable.
func (s *Leases) Extend(ctx context.Context, ss *Session, refs []*queuev1.LeaseRef, unresolved Unresolved, leaseFor int64, whole bool, limit time.Duration, done func(Extension)) {
	if len(refs) == 0 {
		done(Extension{})
		return
	}
	w := &extending{s: s, ss: ss, asked: refs, whole: whole, done: done, answered: make(map[*queuev1.LeaseRef]bool, len(refs))}
	byPart := map[*transaction.Dispatcher][]*queuev1.LeaseRef{}
	queues := map[string]*transaction.Queue{}
	for i, r := range refs {
		if err := unresolved[i]; err != nil {
			w.out.Err = errors.Join(w.out.Err, err)
			continue
		}
		l, ok := queues[r.GetQueue()]
		if !ok {
			var err error
			l, err = s.queues.Use(ctx, r.GetQueue())
			if err != nil && (whole || !errors.Is(err, engine.ErrNoQueue)) {
				w.out.Err = errors.Join(w.out.Err, err)
			}
			queues[r.GetQueue()] = l
			if l == nil && !whole && errors.Is(err, engine.ErrNoQueue) {
				queues[r.GetQueue()] = &transaction.Queue{} // nobody holds a key of it
			}
			l = queues[r.GetQueue()]
		}
		switch {
		case l == nil:
		case len(l.Partitions) == 0:
			w.answered[r] = true
			w.out.Lost = append(w.out.Lost, r)
		default:
			d := l.At(r.GetKey())
			byPart[d] = append(byPart[d], r)
		}
	}
	w.left = len(byPart)
	if w.left == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.finish()
		return
	}
	if limit > 0 && !whole {
		time.AfterFunc(limit, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !w.over {
				w.finish()
			}
		})
	}
	for d, refs := range byPart {
		d.Submit(&transaction.Call{Ops: extensions(ss, d, refs, leaseFor), Session: ss.ID, Done: func(c *transaction.Call) { w.part(d, refs, c) }})
	}
}

// extensions are the operations that extend leases of one partition.
func extensions(ss *Session, d *transaction.Dispatcher, refs []*queuev1.LeaseRef, leaseFor int64) []workqueue.Op {
	op := workqueue.Op{Kind: workqueue.OpExtend, For: leaseFor, Shorten: leaseFor < 0}
	switch {
	case leaseFor < 0:
		op.For = -leaseFor
	case leaseFor == 0:
		op.For = d.Queue.Stored.Config().LeaseFor.Microseconds()
	}
	ops := make([]workqueue.Op, len(refs))
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for i, r := range refs {
		ops[i] = op
		ops[i].Key, ops[i].Token = r.GetKey(), r.GetToken()
		h := ss.find(d, r)
		if h == nil {
			continue
		}
		if leaseFor == 0 && h.from != nil && h.from.LeaseFor > 0 {
			ops[i].For = h.from.LeaseFor
		}
		if op.Shorten {
			ops[i].Known = h.known
		}
	}
	return ops
}

// part takes in what became of one partition's share. What comes when the answer
// was given counts all the same: a lease that was extended lasts longer here, and
// one that is lost is forgotten.
func (w *extending) part(d *transaction.Dispatcher, refs []*queuev1.LeaseRef, c *transaction.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left--
	if c.Err != nil {
		w.out.Err = errors.Join(w.out.Err, c.Err)
	} else {
		var gone []Freed
		at := time.Now()
		w.ss.mu.Lock()
		for i, r := range refs {
			if c.Replies[i].Status != workqueue.Settled {
				d.Metrics.LostExt.Inc()
				gone = w.ss.drop(LeaseKey{d, r.GetToken()}, r.GetKey(), gone)
				if !w.over {
					w.answered[r] = true
					w.out.Lost = append(w.out.Lost, r)
				}
				continue
			}
			remaining := time.Duration(c.Replies[i].Deadline-c.Now) * time.Microsecond
			if h := w.ss.find(d, r); h != nil {
				h.deadline, h.known, h.at = at.Add(remaining), c.Replies[i].Deadline, c.Now
			}
			if w.over {
				continue
			}
			w.answered[r] = true
			w.out.Kept, w.out.Deadlines = append(w.out.Kept, r), append(w.out.Deadlines, c.Replies[i].Deadline)
			if w.out.Remaining == 0 || remaining < w.out.Remaining {
				w.out.Remaining = remaining
			}
		}
		w.ss.mu.Unlock()
		w.ss.touch()
		if w.over {
			Ended(gone, false)
		} else {
			w.out.Freed = append(w.out.Freed, gone...)
		}
	}
	if w.left == 0 && !w.over {
		w.finish()
	}
}

// finish answers with what is known. Mu must be held.
func (w *extending) finish() {
	w.over = true
	if !w.whole && !errors.Is(w.out.Err, wire.ErrStopping) {
		w.out.Err = nil
		for _, r := range w.asked {
			if !w.answered[r] {
				w.out.Unreachable = append(w.out.Unreachable, r)
			}
		}
	}
	w.done(w.out)
}

// GiveUpUnreachable tells what is unreachable as lost, to a worker that knows only that,
// and forgets it, so that it is not extended any more.
func (s *Leases) GiveUpUnreachable(e *Extension, ss *Session) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	for _, r := range e.Unreachable {
		if l, ok := s.queues.Known(r.GetQueue()); ok {
			e.Freed = ss.drop(LeaseKey{l.At(r.GetKey()), r.GetToken()}, r.GetKey(), e.Freed)
		}
		e.Lost = append(e.Lost, r)
	}
	e.Unreachable = nil
}

// Shorten ends leases soon. It does not wait.
func (s *Leases) Shorten(ctx context.Context, ss *Session, refs []*queuev1.LeaseRef) {
	s.Extend(ctx, ss, refs, nil, -s.closeGrace.Microseconds(), true, 0, func(Extension) {})
}

// Abandon is Shorten of leases that the worker does not know of. They are forgotten here, so
// that they are not extended again with every other lease of the session.
func (s *Leases) Abandon(ctx context.Context, ss *Session, refs []*queuev1.LeaseRef) {
	s.Shorten(ctx, ss, refs)
	var freed []Freed
	ss.mu.Lock()
	for _, r := range refs {
		if l, ok := s.queues.Known(r.GetQueue()); ok {
			freed = ss.drop(LeaseKey{l.At(r.GetKey()), r.GetToken()}, r.GetKey(), freed)
		}
	}
	ss.mu.Unlock()
	Ended(freed, false)
}
