package work

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// pendingGet is one Get while it waits, in line in every partition of the queue.
type pendingGet struct {
	mu       sync.Mutex
	gone     bool // nobody is there to take a delivery; guarded by mu, as is all that follows
	want     int
	leases   []*queuev1.Lease
	left     int // waiters that are not finished
	parts    []partitionAnswer
	some     chan struct{} // closed when there is something
	answered chan struct{} // closed when a partition has told what it has
	over     chan struct{} // closed when there is nothing more to wait for
}

// partitionAnswer is what a Get knows of a partition.
type partitionAnswer struct {
	over     bool  // its waiter is not waited for any more
	answered bool  // what it has
	err      error // why it did not
}

// getResult is the outcome of a Get.
type getResult struct {
	leases  []*queuev1.Lease
	shut    bool    // the session was shut down and there is nothing left for it
	missing []int32 // partitions that were not reached
}

func (g *pendingGet) deliver(ss *session.Session, t *transaction.Waiter, d *transaction.Dispatcher, ls []workqueue.Lease, now int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return false
	}
	ss.Hold(d, ls, now, t, nil)
	for i := range ls {
		g.leases = append(g.leases, wire.Lease(d.Name, &ls[i], now, ls[i].Deadline+d.ClockAhead))
	}
	return true
}

// finish takes in that a partition has told what it has, or why it did not.
func (g *pendingGet) finish(part int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := &g.parts[part]
	p.answered, p.err = err == nil, err
	if err == nil {
		closeOnce(g.answered)
	}
	g.leave(p)
}

// leave counts a waiter as finished. Mu must be held.
func (g *pendingGet) leave(p *partitionAnswer) {
	if p.over {
		return
	}
	p.over = true
	g.left--
	if len(g.leases) > 0 {
		closeOnce(g.some)
	}
	if len(g.leases) >= g.want || g.left <= 0 {
		closeOnce(g.over)
	}
}

// closeOnce closes a channel once. Whoever calls it must hold a lock.
func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// end takes what was delivered; what comes later goes back. Late says that some may
// have been waited for in vain. There is an error when no partition was reached.
func (g *pendingGet) end(l *transaction.Queue, ss *session.Session, takers []*transaction.Waiter, late bool) (getResult, error) {
	away := make([]bool, len(takers))
	for i, t := range takers {
		in := !l.Partitions[i].Withdraw(t)
		away[i] = late && (in || t.Once) || l.Partitions[i].Unresponsive()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	out := getResult{leases: g.leases}
	var failed error
	for i, p := range g.parts {
		if !p.answered && away[i] || transaction.IsUnreached(p.err) {
			out.missing = append(out.missing, int32(i)) //nolint:gosec // at most 64
		} else if p.err != nil && len(out.leases) == 0 {
			return getResult{}, p.err
		}
		if failed == nil {
			failed = p.err
		}
	}
	if len(out.leases) == 0 && len(out.missing) == len(takers) {
		if failed == nil {
			failed = fmt.Errorf("%w: no partition of queue %q answered in time", engine.ErrUnavailable, l.Name)
		}
		return getResult{}, failed
	}
	out.shut = len(out.leases)+len(out.missing) == 0 && ss.ShutDown()
	return out, nil
}

// get leases keys for a session, waiting for the first.
func (s *Server) get(ctx context.Context, l *transaction.Queue, ss *session.Session, n int, leaseFor int64, wait time.Duration) (getResult, error) {
	g := &pendingGet{want: n, left: len(l.Partitions), parts: make([]partitionAnswer, len(l.Partitions)), some: make(chan struct{}), answered: make(chan struct{}), over: make(chan struct{})}
	cr := &transaction.Credit{Any: n}
	takers := make([]*transaction.Waiter, len(l.Partitions))
	once := wait == 0
	for i, d := range l.Partitions {
		t := &transaction.Waiter{Holder: ss.ID, LeaseFor: leaseFor, Single: true, Once: once, Credit: cr, Finish: func(err error) { g.finish(i, err) }}
		t.Rejoin = func() { d.Offer(t) }
		t.Deliver = func(d *transaction.Dispatcher, ls []workqueue.Lease, now int64) bool {
			return g.deliver(ss, t, d, ls, now)
		}
		takers[i] = t
		once = ss.AddGet(t, d) || once
	}
	defer func() {
		for i, t := range takers {
			l.Partitions[i].Withdraw(t)
			ss.RemoveGet(t)
		}
	}()
	// Each Get begins elsewhere, so that no partition is always the last.
	first := int(s.gets.Add(1) % uint32(len(l.Partitions)))
	for i := range takers {
		at := (first + i) % len(takers)
		takers[at].Once = once // what is ready, but no waiting, when the session was shut down
		l.Partitions[at].Offer(takers[at])
	}

	var deadline <-chan time.Time
	stopping := s.Stopping
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	some, heard := g.some, g.answered
	if !once {
		heard = nil
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
		for i, t := range takers {
			if !l.Partitions[i].Withdraw(t) {
				in++
			}
		}
		if in > 0 {
			g.dropIdle(takers, l)
		}
		if in < len(takers) {
			hurry()
		}
		return in == 0
	}
	for {
		select {
		case <-slow:
			return g.end(l, ss, takers, true)
		case <-heard:
			heard = nil
			hurry()
		case <-some: // what other partitions have ready comes along
			some = nil
			hurry()
			for i, t := range takers {
				if !l.Partitions[i].LastTry(t) {
					g.finish(i, nil)
				}
			}
		case <-g.over:
			out, err := g.end(l, ss, takers, false)
			if len(out.leases) == 0 && err == nil && wait > 0 && !ss.ShutDown() && isClosed(s.Stopping) {
				err = wire.ErrStopping // the wait was cut short
			}
			return out, err
		case <-deadline:
			deadline = nil
			if parted() {
				return g.end(l, ss, takers, false)
			}
		case <-stopping: // do not hold up the server; the caller asks another one
			stopping = nil
			if !parted() {
				continue
			}
			out, err := g.end(l, ss, takers, false)
			if len(out.leases) == 0 && err == nil {
				err = wire.ErrStopping
			}
			return out, err
		case <-l.Context.Done(): // the queue was deleted
			if out, _ := g.end(l, ss, takers, false); len(out.leases) > 0 {
				return out, nil
			}
			return getResult{}, l.Ended()
		case <-ctx.Done():
			if out, _ := g.end(l, ss, takers, false); len(out.leases) > 0 { // delivered, but the caller has left
				s.giveBack(l, ss, out.leases)
			}
			return getResult{}, ctx.Err()
		}
	}
}

// dropIdle counts only those waiters as outstanding that a transaction still serves.
func (g *pendingGet) dropIdle(takers []*transaction.Waiter, l *transaction.Queue) {
	for i, t := range takers {
		if !l.Partitions[i].Serves(t) {
			g.mu.Lock()
			g.leave(&g.parts[i])
			g.mu.Unlock()
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
