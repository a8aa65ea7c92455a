package work

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// get leases keys for a session, waiting for the first.
func (s *Server) get(ctx context.Context, l *transaction.Queue, ss *session.Session, n int, leaseFor int64, wait time.Duration) (getResult, error) {
	g := &pendingGet{want: n, left: len(l.Partitions), parts: make([]partitionAnswer, len(l.Partitions)), some: make(chan struct{}), answered: make(chan struct{}), over: make(chan struct{})}
	cr := &transaction.Credit{Any: n}
	waiters := make([]*transaction.Waiter, len(l.Partitions))
	once := wait == 0
	for i, d := range l.Partitions {
		t := &transaction.Waiter{Holder: ss.ID, LeaseFor: leaseFor, Single: true, Once: once, Credit: cr, Finish: func(err error) { g.finish(i, err) }}
		t.Rejoin = func() { d.Offer(t) }
		t.Deliver = func(d *transaction.Dispatcher, ls []workqueue.Lease, now int64) bool {
			return g.deliver(ss, t, d, ls, now)
		}
		waiters[i] = t
		once = ss.AddGet(t, d) || once
	}
	defer func() {
		for i, t := range waiters {
			l.Partitions[i].Withdraw(t)
			ss.RemoveGet(t)
		}
	}()
	// Each Get begins elsewhere, so that no partition is always the last.
	first := int(s.gets.Add(1) % uint32(len(l.Partitions)))
	for i := range waiters {
		at := (first + i) % len(waiters)
		waiters[at].Once = once // what is ready, but no waiting, when the session was shut down
		l.Partitions[at].Offer(waiters[at])
	}

	var deadline <-chan time.Time
	stopping := s.Stopping
	if !once { // else the partitions answer with what is ready, however long that takes
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	some, answered := g.some, g.answered
	if !once {
		answered = nil
	}
	var slow <-chan time.Time // what has not answered by then is answered without
	hurry := func() {
		if slow == nil {
			slow = time.After(transaction.PartitionTimeout)
		}
	}
	// A transaction that is under way may bring something yet.
	parted := func() bool {
		in := 0
		for i, t := range waiters {
			if !l.Partitions[i].Withdraw(t) {
				in++
			}
		}
		if in > 0 {
			g.dropIdle(waiters, l)
		}
		if in < len(waiters) {
			hurry()
		}
		return in == 0
	}
	for {
		select {
		case <-slow:
			return g.end(l, ss, waiters, true)
		case <-answered:
			answered = nil
			hurry()
		case <-some: // what other partitions have ready comes along
			some = nil
			hurry()
			for i, t := range waiters {
				if !l.Partitions[i].LastTry(t) {
					g.finish(i, nil)
				}
			}
		case <-g.over:
			out, err := g.end(l, ss, waiters, false)
			if len(out.leases) == 0 && err == nil && wait > 0 && !ss.ShutDown() && isClosed(s.Stopping) {
				err = wire.ErrStopping // the wait was cut short
			}
			return out, err
		case <-deadline:
			deadline = nil
			if parted() {
				return g.end(l, ss, waiters, false)
			}
		case <-stopping: // do not hold up the server; the caller asks another one
			stopping = nil
			if !parted() {
				continue
			}
			out, err := g.end(l, ss, waiters, false)
			if len(out.leases) == 0 && err == nil {
				err = wire.ErrStopping
			}
			return out, err
		case <-l.Context.Done(): // the queue was deleted
			if out, _ := g.end(l, ss, waiters, false); len(out.leases) > 0 {
				return out, nil
			}
			return getResult{}, l.Ended()
		case <-ctx.Done():
			if out, _ := g.end(l, ss, waiters, false); len(out.leases) > 0 { // delivered, but the caller has left
				s.giveBack(l, ss, out.leases)
			}
			return getResult{}, ctx.Err()
		}
	}
}

// giveBack releases leases whose holder never got them.
func (s *Server) giveBack(l *transaction.Queue, ss *session.Session, leases []*queuev1.Lease) {
	back := make([][]workqueue.Lease, len(l.Partitions))
	for _, le := range leases {
		d := l.At(le.GetKey())
		ss.Forget(d, le.GetKey(), le.GetToken())
		back[d.Part] = append(back[d.Part], workqueue.Lease{Key: le.GetKey(), Token: le.GetToken()})
	}
	for i, some := range back {
		if len(some) > 0 {
			l.Partitions[i].Release(some)
		}
	}
}

// isClosed reports whether a channel has been closed.
func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
