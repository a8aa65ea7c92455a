package work

import (
	"context"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// expiryMargin is how long after its deadline a lease is given up here: its
// extension may have been just in time.
const expiryMargin = 50 * time.Millisecond

// retryRefused is how often queues that a stream was refused are tried again.
const retryRefused = 3 * time.Second

// served is a queue that was refused and can be served now, if there is one.
func (st *stream) served(ctx context.Context) string {
	for _, q := range st.refused {
		if _, err := st.s.Queues.Use(ctx, q.GetQueue()); err == nil {
			return q.GetQueue()
		}
	}
	return ""
}

// watch keeps an eye on the stream until it ends: leases that run out, a server
// that stops, a connection that grows old.
func (st *stream) watch(ctx context.Context) {
	move := wire.NewAgingTimer(ctx, st.s.Aging)
	defer move.Stop()
	expiry := time.NewTimer(st.leases)
	defer expiry.Stop()
	var over <-chan time.Time
	stopping := st.s.Stopping
	var again <-chan time.Time // to look at queues that were refused
	if len(st.refused) > 0 {
		ticker := time.NewTicker(retryRefused)
		defer ticker.Stop()
		again = ticker.C
	}
	for {
		select {
		case <-st.done:
			return
		case <-ctx.Done():
			st.Close(ctx.Err())
		case <-expiry.C:
			expiry.Reset(st.expire(time.Now()))
		case <-again:
			if name := st.served(ctx); name != "" {
				again = nil
				st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "queue " + name + " can be served now"})
			}
		case <-move.C():
			move.Again()
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "the connection is old"})
		case <-stopping:
			stopping = nil
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "the server is stopping"})
			st.drain()
			timer := time.NewTimer(st.s.StopGrace)
			defer timer.Stop()
			over = timer.C
		case <-over:
			st.Close(errOver)
		}
	}
}

// expire removes leases that have run out, notifies the worker and gives their
// credit back. It returns when to look again. No lease of the stream ends sooner:
// those to come last for at least the shortest time asked.
func (st *stream) expire(now time.Time) time.Duration {
	st.mu.Lock()
	extending, holds := st.extending > 0, st.countsCredit
	stuck := !st.sending.IsZero() && now.Sub(st.sending) > maxStuck
	st.mu.Unlock()
	if stuck {
		st.Close(wire.ErrOverrun)
		return time.Hour
	}
	lost, gone, next := st.ss.Expired(st, now.Add(-expiryMargin), extending, now.Add(max(st.leases, 2*expiryMargin)-expiryMargin))
	if len(lost) > 0 {
		st.Cancel(lost, "the lease has run out")
		session.Ended(gone, holds)
	}
	return max(next.Add(expiryMargin).Sub(now), expiryMargin)
}

// Cancel tells the worker of leases it does not hold any more.
func (st *stream) Cancel(lost []*queuev1.LeaseRef, why string) {
	for len(lost) > 0 {
		n := min(len(lost), maxAssign)
		st.control(&queuev1.Control{Action: queuev1.Action_ACTION_CANCEL, Reason: why, Leases: lost[:n:n]})
		lost = lost[n:]
	}
}

// Paused tells the worker that a queue is paused, if the stream takes keys of it.
func (st *stream) Paused(queue string) {
	if st.queues[queue] != nil {
		st.control(&queuev1.Control{Action: queuev1.Action_ACTION_PAUSE, Reason: "the queue is paused", Queue: queue})
	}
}

// CountsItself says that the worker counts its credit itself.
func (st *stream) CountsItself() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.countsCredit
}
