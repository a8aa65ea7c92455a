package queue

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Sessions and leases belong to the authenticated caller that opened them. The id of a session in
// this package, which is also the holder that the store keeps with a lease, begins with a tag of its
// caller: two callers that choose the same id have two sessions, and every server can tell whose a
// lease is. Without authentication there is no tag, and all callers are one.

const (
	tagBytes = 12                   // of the hash of a caller's name
	tagLen   = 1 + tagBytes*8/6 + 1 // between two marks
	tagMark  = "~"
)

// tag is the caller's.
func tag(ctx context.Context) string {
	who := rpc.Identity(ctx)
	if who == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(who))
	return tagMark + base64.RawURLEncoding.EncodeToString(sum[:tagBytes]) + tagMark
}

// owned is the session id of a caller as this package and the store know it.
func owned(ctx context.Context, id string) string {
	if id == "" {
		return ""
	}
	return tag(ctx) + id
}

// split is the tag of a session, empty for none, and the id its caller gave it.
func split(session string) (tag, id string) {
	if len(session) < tagLen || !strings.HasPrefix(session, tagMark) || session[tagLen-1:tagLen] != tagMark {
		return "", session
	}
	return session[:tagLen], session[tagLen:]
}

// errOtherCaller refuses a lease that was handed to another caller.
var errOtherCaller = errors.New("a lease of another caller")

// leaseAt names a lease that a request is about.
type leaseAt struct {
	queue, key string
	token      uint64
}

func refAt(refs []*queuev1.LeaseRef) func(int) leaseAt {
	return func(i int) leaseAt { return leaseAt{refs[i].GetQueue(), refs[i].GetKey(), refs[i].GetToken()} }
}

// lease is what operation i of a plan is about.
func (p *plan) lease(i int) leaseAt {
	at := leaseAt{p.parts[0].queue, p.ops[i].Key, p.ops[i].Token}
	for n := range p.parts {
		if slices.Contains(p.parts[n].at, i) {
			at.queue = p.parts[n].queue
		}
	}
	return at
}

// mine is an error when one of the leases was handed to another caller. Leases this server handed to
// the session are known; of the others the store is asked. That need not be atomic with what follows:
// a token belongs to one holder for ever. A lease from before callers were authenticated is anybody's.
func (s *Service) mine(ctx context.Context, ss *session, n int, lease func(i int) leaseAt) error {
	of, _ := split(ss.id)
	if of == "" {
		return nil
	}
	var (
		unknown map[*dispatcher][]leaseAt
		l       *lines
	)
	for i := range n {
		at := lease(i)
		if l == nil || l.name != at.queue {
			var err error
			if l, err = s.queue(ctx, at.queue); err != nil {
				l = nil
				continue // what is asked for is answered so
			}
		}
		d := l.at(at.key)
		ss.mu.Lock()
		known := ss.find(d, &queuev1.LeaseRef{Key: at.key, Token: at.token}) != nil
		ss.mu.Unlock()
		if known {
			continue
		}
		if unknown == nil {
			unknown = map[*dispatcher][]leaseAt{}
		}
		unknown[d] = append(unknown[d], at)
	}
	return ofTag(ctx, of, unknown)
}

// ofTag asks the store whose the leases are, each partition by itself. One that cannot be reached says
// nothing: what was asked for is answered so by the same partition, and others must not suffer from it.
func ofTag(ctx context.Context, of string, leases map[*dispatcher][]leaseAt) error {
	if len(leases) == 0 {
		return nil
	}
	asked := make(chan error, len(leases))
	for d, leases := range leases {
		ops := make([]workqueue.Op, len(leases))
		for i := range leases {
			ops[i] = workqueue.Op{Kind: workqueue.OpInspect, Key: leases[i].key}
		}
		d.submit(&call{ops: ops, done: func(c *call) {
			switch {
			case errors.Is(c.err, engine.ErrUnavailable):
				asked <- nil
				return
			case c.err != nil: // such as overload, which an end of a lease would get past
				asked <- c.err
				return
			}
			c.unfold()
			for i := range leases {
				it := c.replies[i].Item
				if it == nil || it.Token != leases[i].token {
					continue // it has ended, and is answered so
				}
				if other, _ := split(it.Holder); other != "" && other != of {
					asked <- errOtherCaller
					return
				}
			}
			asked <- nil
		}})
	}
	for range leases {
		select {
		case err := <-asked:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// myLease is mine for a request that names no session.
func (s *Service) myLease(ctx context.Context, at leaseAt) error {
	of := tag(ctx)
	if of == "" {
		return nil
	}
	l, err := s.queue(ctx, at.queue)
	if err != nil {
		return err
	}
	d := l.at(at.key)
	if s.sessions.holds(of, leaseKey{d, at.token}, at.key) {
		return nil
	}
	return ofTag(ctx, of, map[*dispatcher][]leaseAt{d: {at}})
}

// holds says whether a session of a caller is known to hold a lease.
func (s *sessions) holds(of string, k leaseKey, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ss := range s.all {
		if !strings.HasPrefix(id, of) {
			continue
		}
		ss.mu.Lock()
		h := ss.leases[k]
		known := h != nil && h.key == key
		ss.mu.Unlock()
		if known {
			return true
		}
	}
	return false
}
