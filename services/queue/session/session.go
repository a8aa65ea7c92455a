package session

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// leased is a lease as this server last knew it.
type leased struct {
	key      string
	since    time.Time
	deadline time.Time           // by this server's clock
	known    int64               // the same by the store's clock
	at       int64               // when it was granted or last extended, by the store's clock; zero where that is not known
	from     *transaction.Waiter // who leased it
	stream   Stream              // whose credit it uses; nil for a Get's
	paid     bool                // the credit has been given back
}

// LeaseKey names a lease: a token is one key's in its partition. A key whose
// lease was lost may be leased again while its worker still has to learn of it:
// both count until they are settled.
type LeaseKey struct {
	Dispatcher *transaction.Dispatcher
	Token      uint64
}

// Session is one worker or producer process as this server knows it.
type Session struct {
	ID   string
	used atomic.Int64 // when it was last seen, in Unix nanoseconds

	mu        sync.Mutex
	leases    map[LeaseKey]*leased // guarded by mu, as is all that follows
	spare     []*leased            // to be used again
	shut      bool
	stream    Stream                                          // the one stream that is in charge
	client    string                                          // what its worker calls itself
	producers map[Producer]bool                               // Produce streams
	gets      map[*transaction.Waiter]*transaction.Dispatcher // Gets that wait
	changed   chan struct{}                                   // closed when a lease went, if anybody waits for it
	waiting   int                                             // how many do
	answers   []*answer                                       // the last ones, oldest first
	batches   []batchSum                                      // the last ones produced, each at its number modulo produceWindow; nil for none
}

// inUse says whether the session has a stream, a call that waits or a lease. Mu
// must be held.
func (s *Session) inUse(now time.Time) bool {
	_, live, _ := s.remaining(now)
	return s.stream != nil || len(s.producers) > 0 || len(s.gets) > 0 || live > 0
}

// ShutDown says whether the session was shut down. Nil was not.
func (s *Session) ShutDown() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shut
}

// Hold remembers leases.
func (s *Session) Hold(d *transaction.Dispatcher, leases []workqueue.Lease, now int64, from *transaction.Waiter, st Stream) {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range leases {
		l := &leases[i]
		s.put(LeaseKey{d, l.Token}, leased{
			key: l.Key, since: at, deadline: at.Add(time.Duration(l.Deadline-now) * time.Microsecond), known: l.Deadline, at: now, from: from, stream: st,
		})
	}
}

// put remembers a lease. Mu must be held.
func (s *Session) put(k LeaseKey, h leased) {
	if n := len(s.spare); n > 0 {
		p := s.spare[n-1]
		s.spare = s.spare[:n-1]
		*p = h
		s.leases[k] = p
		return
	}
	s.leases[k] = &h
}

// Freed is leases that ended, of one waiter.
type Freed struct {
	stream Stream
	From   *transaction.Waiter
	Leases int
	Unpaid int // their credit has not been given back
}

// drop forgets the lease of a key and token, if it is known, and adds it up. Mu
// must be held.
func (s *Session) drop(k LeaseKey, key string, to []Freed) []Freed {
	h := s.leases[k]
	if h == nil || h.key != key {
		return to
	}
	delete(s.leases, k)
	to = tally(to, h)
	*h = leased{}
	if len(s.spare) < 1024 {
		s.spare = append(s.spare, h)
	}
	if s.waiting > 0 {
		close(s.changed)
		s.changed = make(chan struct{})
	}
	return to
}

func tally(to []Freed, h *leased) []Freed {
	if h.stream == nil {
		return to
	}
	n := len(to) - 1
	if n < 0 || to[n].From != h.from || to[n].stream != h.stream {
		to = append(to, Freed{stream: h.stream, From: h.from})
		n++
	}
	to[n].Leases++
	if !h.paid {
		to[n].Unpaid++
	}
	return to
}

// touch says that the session was seen.
func (s *Session) touch() { s.used.Store(time.Now().UnixNano()) }

// find is a lease as it is known, else nil. Mu must be held.
func (s *Session) find(d *transaction.Dispatcher, r *queuev1.LeaseRef) *leased {
	if h := s.leases[LeaseKey{d, r.GetToken()}]; h != nil && h.key == r.GetKey() {
		return h
	}
	return nil
}

// OrAll is what leases a request names, or all of the session's when it names none.
func (s *Session) OrAll(refs []*queuev1.LeaseRef) []*queuev1.LeaseRef {
	if len(refs) > 0 {
		return refs
	}
	return s.Refs(nil)
}

// Refs lists the session's leases: all of them, or those of one stream that are the
// session's for certain.
func (s *Session) Refs(of Stream) []*queuev1.LeaseRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*queuev1.LeaseRef, 0, len(s.leases))
	for k, h := range s.leases {
		if of == nil || h.stream == of && s.owns(h) {
			out = append(out, &queuev1.LeaseRef{Queue: k.Dispatcher.Name, Key: h.key, Token: k.Token})
		}
	}
	return out
}

// remaining counts leases that have not expired, and tells when the next one
// does. What expired long ago is forgotten. Mu must be held.
func (s *Session) remaining(now time.Time) (changed chan struct{}, live int, next time.Time) {
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
