package work

import (
	"fmt"
	"sync"

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

// closeOnce closes a channel once. The caller must hold a lock.
func closeOnce(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// end takes what was delivered; what comes later goes back. Late says that some may
// have been waited for in vain. There is an error when no partition was reached.
func (g *pendingGet) end(l *transaction.Queue, ss *session.Session, waiters []*transaction.Waiter, late bool) (getResult, error) {
	away := make([]bool, len(waiters))
	for i, t := range waiters {
		in := !l.Partitions[i].Withdraw(t)
		away[i] = late && (in || t.Once) || l.Partitions[i].Unresponsive()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	out := getResult{leases: g.leases}
	var failed error
	all := true // have told what they have
	for i, p := range g.parts {
		all = all && p.answered
		if !p.answered && away[i] || transaction.IsUnreached(p.err) {
			out.missing = append(out.missing, int32(i)) //nolint:gosec // at most 64
		} else if p.err != nil && len(out.leases) == 0 {
			return getResult{}, p.err
		}
		if failed == nil {
			failed = p.err
		}
	}
	if len(out.leases) == 0 && len(out.missing) == len(waiters) {
		if failed == nil {
			failed = fmt.Errorf("%w: no partition of queue %q answered in time", engine.ErrUnavailable, l.Name)
		}
		return getResult{}, failed
	}
	out.shut = all && len(out.leases)+len(out.missing) == 0 && ss.ShutDown()
	return out, nil
}

// dropIdle counts only those waiters as outstanding that a transaction still serves.
func (g *pendingGet) dropIdle(waiters []*transaction.Waiter, l *transaction.Queue) {
	for i, t := range waiters {
		if !l.Partitions[i].Serves(t) {
			g.mu.Lock()
			g.leave(&g.parts[i])
			g.mu.Unlock()
		}
	}
}
