package session

import (
	"iter"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// Stream is a Work stream as its session knows it. Its methods do not block.
type Stream interface {
	// Close ends the stream for a reason; only the first counts.
	Close(err error)
	// Paused tells the worker that a queue is paused, if the stream takes keys of it.
	Paused(queue string)
	// Cancel tells the worker of leases that it does not hold any more.
	Cancel(lost []*queuev1.LeaseRef, why string)
	// CountsItself says that the worker counts its credit itself.
	CountsItself() bool
	// Ended accounts for leases that ended. Their credit comes back, unless the worker counts it.
	Ended(leases Freed, hold bool)
}

// Producer is a Produce stream as its session knows it.
type Producer interface {
	// ShutDown tells the producer that the session was shut down. It does not block.
	ShutDown()
}

// TakeOver puts a stream of a client in charge of the session; it returns the one that was.
func (s *Session) TakeOver(st Stream, client string) (old Stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, s.stream, s.client = s.stream, st, client
	return old
}

// HandOver ends what TakeOver began. It reports false when another stream is in charge.
func (s *Session) HandOver(st Stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.stream == st
	if mine {
		s.stream = nil
	}
	return mine
}

// AddProducer registers a Produce stream. It reports whether the session was shut down already.
func (s *Session) AddProducer(p Producer) (shut bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.producers[p] = true
	return s.shut
}

// RemoveProducer ends what AddProducer began.
func (s *Session) RemoveProducer(p Producer) {
	s.mu.Lock()
	delete(s.producers, p)
	s.mu.Unlock()
	s.touch()
}

// UnknownTo lists the leases of streams that are the session's for certain, but for those a
// worker knows of.
func (s *Session) UnknownTo(known map[LeaseName]bool) (unknown []*queuev1.LeaseRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, h := range s.leases {
		if h.stream != nil && s.owns(h) && !known[LeaseName{k.Dispatcher.Name, h.key, k.Token}] {
			unknown = append(unknown, &queuev1.LeaseRef{Queue: k.Dispatcher.Name, Key: h.key, Token: k.Token})
		}
	}
	return unknown
}

// Adopt makes a lease a stream's. The deadlines, by this server's clock and by the store's,
// count where this server knows no other.
func (s *Session) Adopt(d *transaction.Dispatcher, r *queuev1.LeaseRef, st Stream, from *transaction.Waiter, until time.Time, deadline int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.find(d, r)
	if h == nil {
		s.put(LeaseKey{d, r.GetToken()}, leased{key: r.GetKey(), since: time.Now(), deadline: until, known: deadline})
		h = s.find(d, r)
	}
	h.stream, h.from, h.paid = st, from, false
}

// PayBack notes that the credit of a stream's leases comes back, and calls paid for each of
// which it had not: with its partition and with who leased it, nil when that is not known.
func (s *Session) PayBack(st Stream, leases iter.Seq2[LeaseKey, string], paid func(d *transaction.Dispatcher, from *transaction.Waiter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, key := range leases {
		h := s.leases[k]
		if h == nil || h.key != key || h.stream != st || h.paid {
			continue
		}
		h.paid = true
		paid(k.Dispatcher, h.from)
	}
}

// Expired takes away the leases of a stream that ended before a time, unless keep is set. It
// also returns when the next one does, or next if that is sooner.
func (s *Session) Expired(st Stream, before time.Time, keep bool, next time.Time) (lost []*queuev1.LeaseRef, gone []Freed, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, h := range s.leases {
		if h.stream != st {
			continue
		}
		if !h.deadline.After(before) && !keep {
			lost = append(lost, &queuev1.LeaseRef{Queue: k.Dispatcher.Name, Key: h.key, Token: k.Token})
			gone = s.drop(k, h.key, gone)
			continue
		}
		if h.deadline.Before(next) {
			next = h.deadline
		}
	}
	return lost, gone, next
}

// Forget forgets a lease.
func (s *Session) Forget(d *transaction.Dispatcher, key string, token uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(LeaseKey{d, token}, key, nil)
}

// Ended accounts for leases that ended, each with the stream it came from. Their credit comes
// back unless that has been done or the worker counts it.
func Ended(all []Freed, hold bool) {
	for _, f := range all {
		f.stream.Ended(f, hold)
	}
}

// Paused implements the dispatchers' listener.
func (s *Sessions) Paused(queue string) {
	s.each(func(ss *Session) {
		ss.mu.Lock()
		st := ss.stream
		ss.mu.Unlock()
		if st != nil {
			st.Paused(queue)
		}
	})
}

// Revoked takes the leases of keys from the sessions that hold them here.
func (s *Sessions) Revoked(d *transaction.Dispatcher, keys map[string]bool) {
	s.each(func(ss *Session) {
		byStream := map[Stream][]*queuev1.LeaseRef{}
		var gone []Freed
		ss.mu.Lock()
		for k, h := range ss.leases {
			if k.Dispatcher == d && keys[h.key] {
				if h.stream != nil {
					byStream[h.stream] = append(byStream[h.stream], &queuev1.LeaseRef{Queue: d.Name, Key: h.key, Token: k.Token})
				}
				gone = ss.drop(k, h.key, gone)
			}
		}
		ss.mu.Unlock()
		for st, lost := range byStream {
			st.Cancel(lost, "an operator took the key back")
			hold := st.CountsItself()
			for _, f := range gone {
				if f.stream == st {
					st.Ended(f, hold)
				}
			}
		}
	})
}

// Held calls f for every lease that has not ended, with its queue and since when it is held.
func (s *Sessions) Held(f func(queue string, since time.Time)) {
	now := time.Now()
	s.each(func(ss *Session) {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		for k, h := range ss.leases {
			if !h.deadline.Before(now) {
				f(k.Dispatcher.Name, h.since)
			}
		}
	})
}
