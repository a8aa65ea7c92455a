package queue

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// leased is a lease as this server last knew it.
type leased struct {
	key      string
	since    time.Time
	deadline time.Time  // by this server's clock
	known    int64      // the same by the store's clock
	from     *waiter    // who leased it
	stream   workStream // whose credit it uses; nil for a Get's
	paid     bool       // the credit has been given back
}

// leaseKey names a lease: a token is one key's in its partition. A key whose
// lease was lost may be leased again while its worker still has to learn of it:
// both count until they are settled.
type leaseKey struct {
	d     *dispatcher
	token uint64
}

// session is one worker or producer process as this server knows it.
type session struct {
	id   string
	used atomic.Int64 // when it was last heard of, in Unix nanoseconds

	mu        sync.Mutex
	leases    map[leaseKey]*leased // guarded by mu, as is all that follows
	spare     []*leased            // to be used again
	shut      bool
	stream    workStream              // the one stream that is in charge
	producers map[produceStream]bool  // Produce streams
	gets      map[*waiter]*dispatcher // Gets that wait
	changed   chan struct{}           // closed when a lease went, if anybody waits for it
	waiting   int                     // how many do
	answers   []*answer               // the last ones, oldest first
	batches   []batchSum              // the last ones produced, each at its number modulo produceWindow; nil for none
}

// batchSum is the number of a batch that was produced, and what it asked for.
type batchSum struct{ id, sum uint64 }

// produceWindow is how many batches of one Produce stream may be under way, and of
// how many a session remembers the numbers.
const produceWindow = 64

// answer is what a settlement request got, for when it comes again.
type answer struct {
	id, sum uint64        // sum is of what was asked
	ready   chan struct{} // closed when rows or err are set
	rows    []row
	err     error
}

// keptAnswers is how many answers a session remembers.
const keptAnswers = 32

// sessions are all sessions of this server.
type sessions struct {
	max int
	mu  sync.Mutex
	all map[string]*session // guarded by mu, as is all that follows
	use time.Time           // when all of them were last found in use
}

func newSessions(max int) *sessions { return &sessions{max: max, all: map[string]*session{}} }

// get returns a session, making it when it is not known. At the limit those are
// forgotten that nobody uses; an error says that all are in use.
func (s *sessions) get(id string) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ss := s.all[id]
	if ss == nil {
		if len(s.all) >= s.max && !s.forget(time.Now()) {
			return nil, fmt.Errorf("%w: there are %d in use, and --queue-max-sessions is %d", errSessions, len(s.all), s.max)
		}
		ss = &session{id: id, leases: map[leaseKey]*leased{}, producers: map[produceStream]bool{}, gets: map[*waiter]*dispatcher{}, changed: make(chan struct{})}
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

// lookAgain is how long nothing is looked for after every session was found in use.
const lookAgain = 100 * time.Millisecond

// forget makes room, and reports false when it finds none: of the sessions that
// nobody uses it forgets the one that was not heard of for longest, and some
// more, so that the next calls need not look. Those that were shut down come
// later, and last those heard of a moment ago, whose call may be under way. Mu
// must be held.
func (s *sessions) forget(now time.Time) bool {
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

// expire forgets sessions that nobody has used for long.
func (s *sessions) expire(now time.Time) {
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

// inUse says whether the session has a stream, a call that waits or a lease. Mu
// must be held.
func (s *session) inUse(now time.Time) bool {
	_, live, _ := s.remaining(now)
	return s.stream != nil || len(s.producers) > 0 || len(s.gets) > 0 || live > 0
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
func (s *session) hold(d *dispatcher, leases []workqueue.Lease, now int64, from *waiter, st workStream) {
	at := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range leases {
		l := &leases[i]
		s.put(leaseKey{d, l.Token}, leased{
			key: l.Key, since: at, deadline: at.Add(time.Duration(l.Deadline-now) * time.Microsecond), known: l.Deadline, from: from, stream: st,
		})
	}
}

// put remembers a lease. Mu must be held.
func (s *session) put(k leaseKey, h leased) {
	if n := len(s.spare); n > 0 {
		p := s.spare[n-1]
		s.spare = s.spare[:n-1]
		*p = h
		s.leases[k] = p
		return
	}
	s.leases[k] = &h
}

// freed is leases that ended, of one waiter.
type freed struct {
	stream workStream
	from   *waiter
	leases int
	unpaid int // their credit has not been given back
}

// drop forgets the lease of a key and token, if it is known, and adds it up. Mu
// must be held.
func (s *session) drop(k leaseKey, key string, to []freed) []freed {
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

func tally(to []freed, h *leased) []freed {
	if h.stream == nil {
		return to
	}
	n := len(to) - 1
	if n < 0 || to[n].from != h.from || to[n].stream != h.stream {
		to = append(to, freed{stream: h.stream, from: h.from})
		n++
	}
	to[n].leases++
	if !h.paid {
		to[n].unpaid++
	}
	return to
}

// touch says that the session was heard of.
func (s *session) touch() { s.used.Store(time.Now().UnixNano()) }

// find is a lease as it is known, else nil. Mu must be held.
func (s *session) find(d *dispatcher, r *queuev1.LeaseRef) *leased {
	if h := s.leases[leaseKey{d, r.GetToken()}]; h != nil && h.key == r.GetKey() {
		return h
	}
	return nil
}

// orAll is what leases a request names, or all of the session's when it names none.
func (s *session) orAll(refs []*queuev1.LeaseRef) []*queuev1.LeaseRef {
	if len(refs) > 0 {
		return refs
	}
	return s.refs(nil)
}

// refs lists the session's leases: all of them, or those of one stream that are the
// session's for certain.
func (s *session) refs(of workStream) []*queuev1.LeaseRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*queuev1.LeaseRef, 0, len(s.leases))
	for k, h := range s.leases {
		if of == nil || h.stream == of && s.owns(h) {
			out = append(out, &queuev1.LeaseRef{Queue: k.d.name, Key: h.key, Token: k.token})
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

// produced registers a batch, or refuses it because its number was used for
// another one.
func (s *session) produced(id, sum uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.batches == nil {
		s.batches = make([]batchSum, produceWindow)
	}
	last := &s.batches[id%produceWindow]
	if last.id == id && last.sum != sum {
		return errRequestReused
	}
	*last = batchSum{id, sum}
	return nil
}

// end sets an answer. A request that failed is forgotten, so that it can be
// made again.
func (s *session) end(a *answer, rows []row, err error) {
	if a == nil {
		return
	}
	a.rows, a.err = rows, err
	close(a.ready)
	if err != nil {
		s.mu.Lock()
		s.answers = slices.DeleteFunc(s.answers, func(o *answer) bool { return o == a })
		s.mu.Unlock()
	}
}
