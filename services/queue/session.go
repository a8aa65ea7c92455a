package queue

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// held is a lease as this server last knew it.
type held struct {
	since    time.Time
	deadline time.Time // by this server's clock
	known    int64     // the same by the store's clock
	from     *taker    // who leased it
	stream   *stream   // whose credit it uses; nil for a Get's
	paid     bool      // the credit has been given back
}

// leaseKey names a lease. A key whose lease was lost may be leased again while
// its worker still has to learn of it: both count until they are settled.
type leaseKey struct {
	queue, key string
	token      uint64
}

// session is one worker or producer process as this server knows it.
type session struct {
	id   string
	used atomic.Int64 // when it was last heard of, in Unix nanoseconds

	mu      sync.Mutex
	leases  map[leaseKey]held // guarded by mu, as is all that follows
	shut    bool
	stream  *stream                // the one stream that is in charge
	gets    map[*taker]*dispatcher // Gets that wait
	changed chan struct{}          // closed when a lease went, if anybody waits for it
	waiting int                    // how many do
	answers []*answer              // the last ones, oldest first
}

// answer is what a settlement request got, for when it comes again.
type answer struct {
	id, sum uint64        // sum is of what was asked
	ready   chan struct{} // closed when results or err are set
	results []*queuev1.SettleResult
	err     error
}

// keptAnswers is how many answers a session remembers.
const keptAnswers = 32

// sessions are all sessions of this server.
type sessions struct {
	max int
	mu  sync.Mutex
	all map[string]*session // guarded by mu
}

// get returns a session, making it when it is not known.
func (s *sessions) get(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.all[id]
	if ss == nil {
		if len(s.all) >= s.max {
			return nil, errSessions
		}
		ss = &session{id: id, leases: map[leaseKey]held{}, gets: map[*taker]*dispatcher{}, changed: make(chan struct{})}
		s.all[id] = ss
	}
	ss.used.Store(time.Now().UnixNano())
	return ss, nil
}

// find returns a session that is known, else nil.
func (s *sessions) find(id string) *session {
	if id == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[id]
}

// each calls f for every session.
func (s *sessions) each(f func(*session)) {
	s.mu.Lock()
	all := make([]*session, 0, len(s.all))
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

// expire forgets sessions that nobody uses.
func (s *sessions) expire(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ss := range s.all {
		ss.mu.Lock()
		idle := sessionIdle
		if ss.shut {
			idle = sessionShut
		}
		_, live, _ := ss.remaining(now)
		if ss.stream == nil && len(ss.gets) == 0 && live == 0 && now.Sub(time.Unix(0, ss.used.Load())) > idle {
			delete(s.all, id)
		}
		ss.mu.Unlock()
	}
}

// shutDown says whether the session was shut down. Nil was not.
func (s *session) shutDown() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shut
}

// hold remembers leases.
func (s *session) hold(queue string, leases []workqueue.Lease, now int64, from *taker, st *stream) {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range leases {
		l := &leases[i]
		s.leases[leaseKey{queue, l.Key, l.Token}] = held{
			since: at, deadline: at.Add(time.Duration(l.Deadline-now) * time.Microsecond), known: l.Deadline, from: from, stream: st,
		}
	}
}

// drop forgets a lease if it is the one of the token.
func (s *session) drop(queue, key string, token uint64) (held, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := leaseKey{queue, key, token}
	h, ok := s.leases[k]
	if !ok {
		return held{}, false
	}
	delete(s.leases, k)
	if s.waiting > 0 {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	s.used.Store(time.Now().UnixNano())
	return h, true
}

// extended moves a lease's deadline.
func (s *session) extended(queue, key string, token uint64, deadline time.Time, known int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := leaseKey{queue, key, token}
	if h, ok := s.leases[k]; ok {
		h.deadline, h.known = deadline, known
		s.leases[k] = h
	}
}

// asked is the lease time the holder asked for, zero when it is not known.
func (s *session) asked(queue string, r *queuev1.LeaseRef) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.leases[leaseKey{queue, r.GetKey(), r.GetToken()}]; ok && h.from != nil {
		return h.from.leaseFor
	}
	return 0
}

// known is the last deadline that is known of a lease, by the store's clock.
func (s *session) known(queue string, r *queuev1.LeaseRef) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[leaseKey{queue, r.GetKey(), r.GetToken()}].known
}

// refs lists the session's leases, of one stream or of all.
func (s *session) refs(of *stream) []*queuev1.LeaseRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*queuev1.LeaseRef, 0, len(s.leases))
	for k, h := range s.leases {
		if of == nil || h.stream == of {
			out = append(out, &queuev1.LeaseRef{Queue: k.queue, Key: k.key, Token: k.token})
		}
	}
	return out
}

// remaining counts leases that have not expired, and tells when the next one
// does. What expired long ago is forgotten. Mu must be held.
func (s *session) remaining(now time.Time) (changed chan struct{}, live int, next time.Time) {
	for k, h := range s.leases {
		switch {
		case h.deadline.After(now):
			live++
			if next.IsZero() || h.deadline.Before(next) {
				next = h.deadline
			}
		case now.Sub(h.deadline) > sessionIdle:
			delete(s.leases, k)
		}
	}
	return s.changed, live, next
}

// begin registers a settlement request. A repeat gets the first one's answer
// to wait for; one too old to tell is an error, and so is another request with
// the same number. A request without a number gets nothing.
func (s *session) begin(id, sum uint64) (a *answer, repeat bool, err error) {
	if id == 0 {
		return nil, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.answers {
		if a.id == id && a.sum != sum {
			return nil, false, errRequestReused
		}
		if a.id == id {
			return a, true, nil
		}
	}
	if len(s.answers) >= keptAnswers {
		if id < s.answers[0].id {
			return nil, false, errRequestID
		}
		s.answers = slices.Delete(s.answers, 0, 1)
	}
	a = &answer{id: id, sum: sum, ready: make(chan struct{})}
	s.answers = append(s.answers, a)
	return a, false, nil
}

// end sets an answer. A request that failed is forgotten, so that it can be
// made again.
func (s *session) end(a *answer, results []*queuev1.SettleResult, err error) {
	if a == nil {
		return
	}
	a.results, a.err = results, err
	close(a.ready)
	if err != nil {
		s.mu.Lock()
		s.answers = slices.DeleteFunc(s.answers, func(o *answer) bool { return o == a })
		s.mu.Unlock()
	}
}
