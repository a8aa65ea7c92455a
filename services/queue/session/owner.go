package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// LeaseAt names a lease that a request is about, at a place of it.
type LeaseAt struct {
	place      int
	queue, key string
	token      uint64
}

var errOwnerUnknown = fmt.Errorf("%w: it did not tell in time unresolved a lease is", engine.ErrUnavailable)

// Unresolved are the places of a request about whose leases nobody can tell whose they are, and
// why: nothing is done with them.
type Unresolved map[int]error

// RefAt are the leases that references are to, by their places.
func RefAt(refs []*queuev1.LeaseRef) func(int) LeaseAt {
	return func(i int) LeaseAt { return LeaseAt{i, refs[i].GetQueue(), refs[i].GetKey(), refs[i].GetToken()} }
}

// Verify is an error when one of the leases was handed to another caller. Leases this server
// handed to the session are known; of the others the store is asked, for no longer than a limit
// that is not zero. That need not be atomic with what follows: a token belongs to one holder
// for ever. A lease from before callers were authenticated is anybody's.
func (s *Leases) Verify(ctx context.Context, ss *Session, n int, lease func(i int) LeaseAt, limit time.Duration) (Unresolved, error) {
	of, _ := wire.SplitSession(ss.ID)
	if of == "" {
		return nil, nil
	}
	var (
		unknown = map[*transaction.Dispatcher][]LeaseAt{}
		out     = Unresolved{}
		queue   string
		l       *transaction.Queue
		err     error
	)
	for i := range n {
		at := lease(i)
		if i == 0 || at.queue != queue {
			queue = at.queue
			l, err = s.queues.Use(ctx, queue)
		}
		if err != nil {
			if !errors.Is(err, engine.ErrNoQueue) { // nobody holds a key of it
				out[i] = err
			}
			continue
		}
		d := l.At(at.key)
		ss.mu.Lock()
		h := ss.find(d, &queuev1.LeaseRef{Key: at.key, Token: at.token})
		known := h != nil && h.known != 0
		ss.mu.Unlock()
		if !known {
			unknown[d] = append(unknown[d], at)
		}
	}
	return out, verifyByStore(ctx, of, unknown, limit, out)
}

// verifyByStore asks the store whose the leases are, each partition by itself: others must not
// suffer from one that cannot be reached.
func verifyByStore(ctx context.Context, of string, leases map[*transaction.Dispatcher][]LeaseAt, limit time.Duration, out Unresolved) error {
	if len(leases) == 0 {
		return nil
	}
	type answer struct {
		d   *transaction.Dispatcher
		err error
	}
	answers := make(chan answer, len(leases))
	for d, leases := range leases {
		ops := make([]workqueue.Op, len(leases))
		for i := range leases {
			ops[i] = workqueue.Op{Kind: workqueue.OpInspect, Key: leases[i].key}
		}
		d.Submit(&transaction.Call{Ops: ops, Done: func(c *transaction.Call) { answers <- answer{d, heldByAnother(c, of, leases)} }})
	}
	var late <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		late = timer.C
	}
	missing := maps.Clone(leases)
	for len(missing) > 0 {
		select {
		case a := <-answers:
			delete(missing, a.d)
			if errors.Is(a.err, wire.ErrOtherCaller) || errors.Is(a.err, wire.ErrStopping) {
				return a.err
			}
			out.add(leases[a.d], a.err)
		case <-late:
			for _, leases := range missing {
				out.add(leases, errOwnerUnknown)
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (u Unresolved) add(leases []LeaseAt, err error) {
	if err == nil {
		return
	}
	for i := range leases {
		u[leases[i].place] = err
	}
}

// any is why there are places of which nobody can tell, nil when there are none.
func (u Unresolved) any() error {
	for _, err := range u {
		return err
	}
	return nil
}

// heldByAnother is an error when one of the leases a call asked for is another caller's, or
// when it failed.
func heldByAnother(c *transaction.Call, of string, leases []LeaseAt) error {
	if c.Err != nil {
		return c.Err
	}
	c.Unfold()
	for i := range leases {
		it := c.Replies[i].Item
		if it == nil || it.Token != leases[i].token {
			continue // it has ended, and is answered so
		}
		if other, _ := wire.SplitSession(it.Holder); other != "" && other != of {
			return wire.ErrOtherCaller
		}
	}
	return nil
}

// verifyOne is mine for a request that names no session.
func (s *Leases) verifyOne(ctx context.Context, at LeaseAt) error {
	of := wire.CallerTag(ctx)
	if of == "" {
		return nil
	}
	l, err := s.queues.Use(ctx, at.queue)
	if err != nil {
		return err
	}
	d := l.At(at.key)
	if s.sessions.holds(of, LeaseKey{d, at.token}, at.key) {
		return nil
	}
	out := Unresolved{}
	return cmp.Or(verifyByStore(ctx, of, map[*transaction.Dispatcher][]LeaseAt{d: {at}}, 0, out), out.any())
}

// owns says that the store has told that a lease is the session's, or that nobody asks.
func (s *Session) owns(h *leased) bool {
	of, _ := wire.SplitSession(s.ID)
	return of == "" || h.known != 0
}

// holds says whether a session of a caller is known to hold a lease.
func (s *Sessions) holds(of string, k LeaseKey, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ss := range s.all {
		if !strings.HasPrefix(id, of) {
			continue
		}
		ss.mu.Lock()
		h := ss.leases[k]
		known := h != nil && h.key == key && h.known != 0
		ss.mu.Unlock()
		if known {
			return true
		}
	}
	return false
}
