package queue

import (
	"context"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// getter is one Get while it waits, in line in every partition of the queue.
type getter struct {
	mu     sync.Mutex
	gone   bool // nobody is there to take a delivery; guarded by mu, as is all that follows
	want   int
	leases []*queuev1.Lease
	left   int // takers that are not finished
	err    error
	some   chan struct{} // closed when there is something
	over   chan struct{} // closed when there is nothing more to wait for
}

func (g *getter) deliver(ss *session, t *taker, d *dispatcher, ls []workqueue.Lease, now int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.gone {
		return false
	}
	ss.hold(d, ls, now, t, nil)
	for i := range ls {
		g.leases = append(g.leases, lease(d.name, &ls[i], now, ls[i].Deadline+d.ahead))
	}
	return true
}

func (g *getter) finish(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left--
	if g.err == nil {
		g.err = err
	}
	if len(g.leases) > 0 {
		shut(g.some)
	}
	if len(g.leases) >= g.want || g.left <= 0 {
		shut(g.over)
	}
}

// shut closes a channel once. Whoever calls it must hold a lock.
func shut(ch chan struct{}) {
	select {
	case <-ch:
	default:
		close(ch)
	}
}

// end takes what was delivered; what comes later goes back.
func (g *getter) end() ([]*queuev1.Lease, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	if len(g.leases) > 0 {
		return g.leases, nil
	}
	return nil, g.err
}

// get leases keys for a session, waiting for the first.
func (s *Service) get(ctx context.Context, l *lines, ss *session, n int, leaseFor int64, wait time.Duration) ([]*queuev1.Lease, bool, error) {
	g := &getter{want: n, left: len(l.all), some: make(chan struct{}), over: make(chan struct{})}
	cr := &credit{any: n}
	takers := make([]*taker, len(l.all))
	shut := false
	for i, d := range l.all {
		t := &taker{holder: ss.id, leaseFor: leaseFor, single: true, once: wait == 0, credit: cr, finish: g.finish}
		t.again = func() { d.offer(t) }
		t.deliver = func(d *dispatcher, ls []workqueue.Lease, now int64) bool { return g.deliver(ss, t, d, ls, now) }
		takers[i] = t
		shut = ss.enter(t, d)
	}
	defer func() {
		for i, t := range takers {
			l.all[i].withdraw(t)
			ss.leave(t)
		}
	}()
	// Each Get begins elsewhere, so that no partition is always the last.
	first := int(s.gets.Add(1) % uint32(len(l.all)))
	for i := range takers {
		at := (first + i) % len(takers)
		if shut {
			takers[at].once = true // what is ready, but no waiting
		}
		l.all[at].offer(takers[at])
	}

	var deadline <-chan time.Time
	stopping := s.stopping
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		deadline = timer.C
	}
	// A turn that is under way may bring something yet.
	parted := func() bool {
		all := true
		for i, t := range takers {
			all = l.all[i].withdraw(t) && all
		}
		return all
	}
	some := g.some
	var slow <-chan time.Time
	for {
		select {
		case <-slow: // a partition does not answer: what it has later goes back
			parted()
			got, err := g.end()
			return got, false, err
		case <-some: // what other partitions have ready comes along
			some = nil
			timer := time.NewTimer(partWait)
			defer timer.Stop()
			slow = timer.C
			for i, t := range takers {
				if !l.all[i].lastCall(t) {
					g.finish(nil)
				}
			}
		case <-g.over:
			got, err := g.end()
			if len(got) == 0 && err == nil && wait > 0 && !ss.shutDown() && s.ending() {
				err = errStopping // the wait was cut short
			}
			return got, len(got) == 0 && ss.shutDown(), err
		case <-deadline:
			deadline = nil
			if !parted() {
				g.settle(takers, l)
				continue
			}
			got, err := g.end()
			return got, len(got) == 0 && ss.shutDown(), err
		case <-stopping: // do not hold up the server; the caller asks another one
			stopping = nil
			if !parted() {
				g.settle(takers, l)
				continue
			}
			got, err := g.end()
			if len(got) == 0 && err == nil {
				err = errStopping
			}
			return got, false, err
		case <-l.ctx.Done(): // the queue was deleted
			parted()
			if got, err := g.end(); len(got) > 0 || err != nil {
				return got, false, err
			}
			return nil, false, l.gone()
		case <-ctx.Done():
			parted()
			if got, _ := g.end(); len(got) > 0 { // delivered, but the caller has left
				s.giveBack(l, ss, got)
			}
			return nil, false, ctx.Err()
		}
	}
}

// settle counts only those takers as outstanding that a turn still serves.
func (g *getter) settle(takers []*taker, l *lines) {
	for i, t := range takers {
		d := l.all[i]
		d.mu.Lock()
		out := !t.inTurn && !t.leaving
		d.mu.Unlock()
		if out {
			g.finish(nil)
		}
	}
}

// giveBack releases leases whose holder never got them.
func (s *Service) giveBack(l *lines, ss *session, leases []*queuev1.Lease) {
	back := make([][]workqueue.Lease, len(l.all))
	ss.mu.Lock()
	for _, le := range leases {
		d := l.at(le.GetKey())
		ss.drop(leaseKey{d, le.GetToken()}, le.GetKey(), nil)
		back[d.part] = append(back[d.part], workqueue.Lease{Key: le.GetKey(), Token: le.GetToken()})
	}
	ss.mu.Unlock()
	for i, some := range back {
		if len(some) > 0 {
			l.all[i].release(some)
		}
	}
}
