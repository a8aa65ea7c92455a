package session

import (
	"maps"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Workers counts the sessions that take keys of a queue here, by a stream or a call that waits, and
// those of them that would take one more key now.
func (s *Sessions) Workers(l *transaction.Queue) (all, free int64) {
	s.each(func(ss *Session) {
		ss.mu.Lock()
		waits := maps.Clone(ss.gets)
		ss.mu.Unlock()
		takes, more := false, false
		for t, d := range waits { // what a transaction of another queue reserves may come back
			takes, more = takes || d.Queue == l, more || d.CanTake(t)
		}
		if takes {
			all++
		}
		if takes && more {
			free++
		}
	})
	return all, free
}

// Holder is what is known here of the session that holds a key; nil when it does not hold it by
// this server.
func (s *Sessions) Holder(id string, d *transaction.Dispatcher, key string) *queuev1.Holder {
	ss := s.Find(id)
	if ss == nil {
		return nil
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	var last *leased // one that was lost may be known beside it
	for k, h := range ss.leases {
		if k.Dispatcher == d && h.key == key && (last == nil || h.known > last.known) {
			last = h
		}
	}
	if last == nil {
		return nil
	}
	out := &queuev1.Holder{Connected: ss.stream != nil, Client: ss.client}
	if last.at != 0 {
		out.ExtendedAt, out.Lease = wire.Stamp(last.at), wire.Span(last.known-last.at)
	}
	return out
}
