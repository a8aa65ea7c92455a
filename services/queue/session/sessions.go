package session

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Sessions are all sessions of this server.
type Sessions struct {
	max int
	mu  sync.Mutex
	all map[string]*Session // guarded by mu, as is all that follows
	use time.Time           // when all of them were last found in use
}

// NewSessions are at most max sessions.
func NewSessions(max int) *Sessions { return &Sessions{max: max, all: map[string]*Session{}} }

// Get returns a session, making it when it is not known. At the limit those are
// forgotten that nobody uses; an error says that all are in use.
func (s *Sessions) Get(id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.all[id]
	if ss == nil {
		if len(s.all) >= s.max && !s.forget(time.Now()) {
			return nil, fmt.Errorf("%w: there are %d in use, and --queue-max-sessions is %d", wire.ErrSessions, len(s.all), s.max)
		}
		ss = &Session{ID: id, leases: map[LeaseKey]*leased{}, producers: map[Producer]bool{}, gets: map[*transaction.Waiter]*transaction.Dispatcher{}, changed: make(chan struct{})}
		s.all[id] = ss
	}
	ss.used.Store(time.Now().UnixNano())
	return ss, nil
}

// Find returns a session that is known, else nil.
func (s *Sessions) Find(id string) *Session {
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// each calls f for every session.
func (s *Sessions) each(f func(*Session)) {
	s.mu.Lock()
	all := make([]*Session, 0, len(s.all))
	for _, ss := range s.all {
		all = append(all, ss)
	}
	s.mu.Unlock()
	for _, ss := range all {
		f(ss)
	}
}

// How long a session without streams and leases is remembered; one that was
// shut down longer, so that a straggler is still refused.
const (
	sessionIdle = 10 * time.Minute
	sessionShut = time.Hour
)

// lookAgain is how long nothing is looked for after every session was found in use.
const lookAgain = 100 * time.Millisecond

// forget makes room, and reports false when it finds none: of the sessions that
// nobody uses it forgets the one that was not seen for longest, and some
// more, so that the next calls need not look. Those that were shut down come
// later, and last those seen a moment ago, whose call may be under way. Mu
// must be held.
func (s *Sessions) forget(now time.Time) bool {
	type idle struct {
		id    string
		until int64
	}
	if now.Sub(s.use) < lookAgain {
		return false
	}
	var free []idle
	for id, ss := range s.all {
		ss.mu.Lock()
		if !ss.inUse(now) {
			used := ss.used.Load()
			until := used
			if ss.shut {
				until += int64(sessionShut)
			}
			if now.UnixNano()-used < int64(time.Second) {
				until += int64(2 * sessionShut)
			}
			free = append(free, idle{id, until})
		}
		ss.mu.Unlock()
	}
	if len(free) == 0 {
		s.use = now
		return false
	}
	slices.SortFunc(free, func(a, b idle) int { return cmp.Compare(a.until, b.until) })
	for _, f := range free[:min(len(free), max(1, s.max/16))] {
		delete(s.all, f.id)
	}
	return true
}

// ForgetIdle forgets sessions that nobody has used for long.
func (s *Sessions) ForgetIdle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ss := range s.all {
		ss.mu.Lock()
		idle := sessionIdle
		if ss.shut {
			idle = sessionShut
		}
		if !ss.inUse(now) && now.Sub(time.Unix(0, ss.used.Load())) > idle {
			delete(s.all, id)
		}
		ss.mu.Unlock()
	}
}
