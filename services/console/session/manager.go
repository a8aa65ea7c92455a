package session

import (
	"crypto/rand"
	"errors"
	"sync"

	"github.com/deltaplane/deltaplane/services/console/view"
)

// Bounds of what is open at a time.
const (
	MaxSessions = 512
	MaxOfCaller = 32
)

var (
	// ErrTooManySessions refuses one more session.
	ErrTooManySessions = errors.New("there are as many sessions as may be")
	// ErrNotFound says that a caller has no such session.
	ErrNotFound = errors.New("there is no such session")
)

// Manager keeps the sessions of all callers. Its methods are safe for concurrent use.
type Manager struct {
	hub func(caller string) *view.Hub

	mu       sync.Mutex
	sessions map[string]*Session // guarded by mu
	callers  map[string]*of      // guarded by mu
	owners   map[string]int      // guarded by mu: sessions by who has them
}

// of is what one caller has open.
type of struct {
	hub      *view.Hub
	sessions int
	known    bool // a service knows who it is
}

// NewManager makes a manager. Hub makes what a caller sees; it is closed when the last session of
// the caller has ended.
func NewManager(hub func(caller string) *view.Hub) *Manager {
	return &Manager{hub: hub, sessions: map[string]*Session{}, callers: map[string]*of{}, owners: map[string]int{}}
}

// Open begins a session of a caller, which end ends. User is who that is, empty where nobody says:
// callers of one user are bounded together.
func (m *Manager) Open(caller, user string) (s *Session, end func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	owner := "user\x00" + user
	if user == "" {
		owner = "caller\x00" + caller
	}
	if len(m.sessions) >= MaxSessions || m.owners[owner] >= MaxOfCaller {
		return nil, nil, ErrTooManySessions
	}
	one := m.callers[caller]
	if one == nil {
		one = &of{hub: m.hub(caller)}
		m.callers[caller] = one
	}
	one.sessions++
	one.known = one.known || user != ""
	m.owners[owner]++
	s = newSession(rand.Text(), caller, one.hub)
	m.sessions[s.ID] = s
	return s, sync.OnceFunc(func() { m.end(s, one, owner) }), nil
}

func (m *Manager) end(s *Session, one *of, owner string) {
	m.mu.Lock()
	delete(m.sessions, s.ID)
	if m.owners[owner]--; m.owners[owner] == 0 {
		delete(m.owners, owner)
	}
	one.sessions--
	last := one.sessions == 0
	if last {
		delete(m.callers, s.caller)
	}
	m.mu.Unlock()
	s.end()
	if last {
		one.hub.Close()
	}
}

// Known reports whether a caller has a session that was begun with its user's name.
func (m *Manager) Known(caller string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.callers[caller]
	return one != nil && one.known
}

// Find is a session of a caller by its id.
func (m *Manager) Find(caller, id string) (*Session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.sessions[id]
	if s == nil || s.caller != caller {
		return nil, ErrNotFound
	}
	return s, nil
}

// Soon has what a caller sees asked again without delay: the caller has changed something.
func (m *Manager) Soon(caller string) {
	m.mu.Lock()
	one := m.callers[caller]
	m.mu.Unlock()
	if one != nil {
		one.hub.Soon()
	}
}

// Count is how many sessions are open, and how many things are followed for them.
func (m *Manager) Count() (sessions, followed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.callers {
		followed += one.hub.Shared()
	}
	return len(m.sessions), followed
}
