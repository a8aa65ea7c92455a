package queue

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// expiryMargin is how long after its deadline a lease is given up here: its
// extension may have been just in time.
const expiryMargin = 50 * time.Millisecond

// retryRefused is how often queues that a stream was refused are tried again.
const retryRefused = 3 * time.Second

// served is a queue that was refused and can be served now, if there is one.
func (st *stream) served(ctx context.Context) string {
	for _, q := range st.refused {
		if _, err := st.s.queue(ctx, q.GetQueue()); err == nil {
			return q.GetQueue()
		}
	}
	return ""
}

// watch keeps an eye on the stream until it ends: leases that run out, a server
// that stops, a connection that grows old.
func (st *stream) watch(ctx context.Context) {
	move := newMover(ctx, st.s.Service)
	defer move.stop()
	expiry := time.NewTimer(st.leases)
	defer expiry.Stop()
	var over <-chan time.Time
	stopping := st.s.stopping
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
			st.close(ctx.Err())
		case <-expiry.C:
			expiry.Reset(st.expire(time.Now()))
		case <-again:
			if name := st.served(ctx); name != "" {
				again = nil
				st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "queue " + name + " can be served now"})
			}
		case <-move.C():
			move.again()
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "the connection is old"})
		case <-stopping:
			stopping = nil
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_RECONNECT, Reason: "the server is stopping"})
			st.leave()
			timer := time.NewTimer(st.s.cfg.StopGrace)
			defer timer.Stop()
			over = timer.C
		case <-over:
			st.close(errOver)
		}
	}
}

// expire takes leases away that have run out: the worker is told to stop, and
// their credit comes back. It returns when to look again. No lease of the
// stream ends sooner: those to come last for at least the shortest time asked.
func (st *stream) expire(now time.Time) time.Duration {
	st.mu.Lock()
	extending, holds := st.extending > 0, st.holds
	stuck := !st.sending.IsZero() && now.Sub(st.sending) > maxStuck
	st.mu.Unlock()
	if stuck {
		st.close(errOverrun)
		return time.Hour
	}
	var lost []*queuev1.LeaseRef
	var gone []freed
	next := now.Add(max(st.leases, 2*expiryMargin))
	st.ss.mu.Lock()
	for k, h := range st.ss.leases {
		if h.stream != st {
			continue
		}
		until := h.deadline.Add(expiryMargin)
		if !until.After(now) && !extending {
			lost = append(lost, &queuev1.LeaseRef{Queue: k.d.name, Key: h.key, Token: k.token})
			gone = st.ss.drop(k, h.key, gone)
			continue
		}
		if until.Before(next) {
			next = until
		}
	}
	st.ss.mu.Unlock()
	if len(lost) > 0 {
		st.cancel(lost, "the lease has run out")
		ended(gone, holds)
	}
	return max(next.Sub(now), expiryMargin)
}

// cancel tells the worker of leases it does not hold any more.
func (st *stream) cancel(lost []*queuev1.LeaseRef, why string) {
	for len(lost) > 0 {
		n := min(len(lost), maxAssign)
		st.control(&queuev1.Control{Action: queuev1.Action_ACTION_CANCEL, Reason: why, Leases: lost[:n:n]})
		lost = lost[n:]
	}
}

// notice tells streams of what an operator did to their queue.
func (d *dispatcher) notice(c *call) {
	var revoked map[string]bool
	for i := range c.ops {
		switch c.ops[i].Kind {
		case workqueue.OpPause, workqueue.OpResume:
			if d.part == 0 {
				d.of.pause(c.ops[i].Kind == workqueue.OpPause)
			}
		case workqueue.OpRevoke:
			if c.status(i) == workqueue.OK {
				if revoked == nil {
					revoked = map[string]bool{}
				}
				revoked[c.ops[i].Key] = true
			}
		}
	}
	if revoked != nil {
		d.revoked(revoked)
	}
}

// pause remembers that the queue is paused or not, and tells its streams when
// it has just been paused.
func (l *lines) pause(paused bool) {
	if was := l.paused.Swap(paused); was || !paused {
		return
	}
	l.svc.sessions.each(func(ss *session) {
		ss.mu.Lock()
		st := ss.stream
		ss.mu.Unlock()
		if st != nil && st.queues[l.name] != nil {
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_PAUSE, Reason: "the queue is paused", Queue: l.name})
		}
	})
}

// revoked takes the leases of keys from the sessions that hold them here.
func (d *dispatcher) revoked(keys map[string]bool) {
	d.svc.sessions.each(func(ss *session) {
		byStream := map[*stream][]*queuev1.LeaseRef{}
		var gone []freed
		ss.mu.Lock()
		for k, h := range ss.leases {
			if k.d == d && keys[h.key] {
				if h.stream != nil {
					byStream[h.stream] = append(byStream[h.stream], &queuev1.LeaseRef{Queue: d.name, Key: h.key, Token: k.token})
				}
				gone = ss.drop(k, h.key, gone)
			}
		}
		ss.mu.Unlock()
		for st, lost := range byStream {
			st.cancel(lost, "an operator took the key back")
			st.mu.Lock()
			holds := st.holds
			st.mu.Unlock()
			var own []freed
			for _, f := range gone {
				if f.stream == st {
					own = append(own, f)
				}
			}
			ended(own, holds)
		}
	})
}
