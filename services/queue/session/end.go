package session

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// AddGet registers a waiting waiter, so that a shutdown can finish it. It
// reports whether the session was shut down already.
func (s *Session) AddGet(t *transaction.Waiter, d *transaction.Dispatcher) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets[t] = d
	return s.shut
}

// RemoveGet ends what AddGet began.
func (s *Session) RemoveGet(t *transaction.Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.gets, t)
}

// Waits says whether a Get of the session waits.
func (s *Session) Waits() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.gets) > 0
}

// shutDown ends a session: its waiters get what is ready, and no more, and its
// producers are notified.
func (s *Server) shutDown(ctx context.Context, id string) (*Session, error) {
	c := &wire.Checks{}
	c.Session("session_id", id, true)
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.Sessions.Get(wire.SessionID(ctx, id))
	if err != nil {
		return nil, err
	}
	ss.mu.Lock()
	first := !ss.shut
	ss.shut = true
	waiters := make(map[*transaction.Waiter]*transaction.Dispatcher, len(ss.gets))
	maps.Copy(waiters, ss.gets)
	makers := slices.Collect(maps.Keys(ss.producers))
	ss.mu.Unlock()
	for t, d := range waiters {
		d.Finalize(t)
	}
	for _, p := range makers {
		if first {
			p.ShutDown()
		}
	}
	return ss, nil
}

// drained waits until the session holds no lease, and tells how many it still
// holds when time is up.
func (s *Session) drained(ctx context.Context, timeout time.Duration, stopping <-chan struct{}) (int, error) {
	var over <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	s.mu.Lock()
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	for {
		s.mu.Lock()
		changed, live, next := s.remaining(time.Now())
		s.mu.Unlock()
		if live == 0 {
			return 0, nil
		}
		expiry := time.NewTimer(time.Until(next))
		select {
		case <-changed:
		case <-expiry.C:
		case <-over:
			expiry.Stop()
			return live, nil
		case <-stopping:
			expiry.Stop()
			return live, wire.ErrStopping
		case <-ctx.Done():
			expiry.Stop()
			return live, ctx.Err()
		}
		expiry.Stop()
	}
}
