package queue

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// extension is the outcome of extending leases.
type extension struct {
	kept, lost []*queuev1.LeaseRef
	deadlines  []int64 // of what is kept, by the store's clock
	freed      []freed
	remaining  time.Duration // of the lease that ends first; zero when none is kept
	err        error
}

func (c *checks) refs(field string, refs []*queuev1.LeaseRef) {
	c.count(field, len(refs), 0, maxResume)
	for i, r := range refs {
		at := field + "[" + strconv.Itoa(i) + "]"
		c.queue(at+".queue", r.GetQueue())
		c.key(at+".key", r.GetKey())
		c.token(at+".token", r.GetToken())
	}
}

// extend moves the deadlines of leases, or of all the session holds when there
// are none, to now plus a lease time in microseconds; zero means what each was
// leased for, or else its queue's.
// A negative one shortens: no later than now plus its amount, but not what
// another server has extended since. Done is called once, possibly from a
// dispatcher.
func (s *Service) extend(ctx context.Context, ss *session, refs []*queuev1.LeaseRef, leaseFor int64, done func(extension)) {
	if len(refs) == 0 {
		refs = ss.refs(nil)
	}
	if len(refs) == 0 {
		done(extension{})
		return
	}
	byQueue := map[string][]*queuev1.LeaseRef{}
	for _, r := range refs {
		byQueue[r.GetQueue()] = append(byQueue[r.GetQueue()], r)
	}
	var (
		mu   sync.Mutex
		out  extension
		left = len(byQueue)
	)
	part := func(l *lines, refs []*queuev1.LeaseRef, c *call, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			out.err = errors.Join(out.err, err)
		} else {
			at := time.Now()
			ss.mu.Lock()
			for i, r := range refs {
				d := l.at(r.GetKey())
				if c.replies[i].Status != workqueue.Settled {
					out.lost = append(out.lost, r)
					l.line.lostExt.Inc()
					out.freed = ss.drop(leaseKey{d, r.GetToken()}, r.GetKey(), out.freed)
					continue
				}
				remaining := time.Duration(c.replies[i].Deadline-c.now) * time.Microsecond
				if h := ss.find(d, r); h != nil {
					h.deadline, h.known = at.Add(remaining), c.replies[i].Deadline
				}
				out.kept, out.deadlines = append(out.kept, r), append(out.deadlines, c.replies[i].Deadline)
				if out.remaining == 0 || remaining < out.remaining {
					out.remaining = remaining
				}
			}
			ss.mu.Unlock()
			ss.touch()
		}
		if left--; left == 0 {
			done(out)
		}
	}
	for queue, refs := range byQueue {
		l, err := s.queue(ctx, queue)
		if err != nil {
			part(nil, refs, nil, err)
			continue
		}
		op := workqueue.Op{Kind: workqueue.OpExtend, For: leaseFor, Shorten: leaseFor < 0}
		switch {
		case leaseFor < 0:
			op.For = -leaseFor
		case leaseFor == 0:
			op.For = l.of.Config().LeaseFor.Microseconds()
		}
		ops := make([]workqueue.Op, len(refs))
		ss.mu.Lock()
		for i, r := range refs {
			ops[i] = op
			ops[i].Key, ops[i].Token = r.GetKey(), r.GetToken()
			h := ss.find(l.at(r.GetKey()), r)
			if h == nil {
				continue
			}
			if leaseFor == 0 && h.from != nil && h.from.leaseFor > 0 {
				ops[i].For = h.from.leaseFor
			}
			if op.Shorten {
				ops[i].Known = h.known
			}
		}
		ss.mu.Unlock()
		l.submit(&call{ops: ops, by: ss.id, done: func(c *call) { part(l, refs, c, c.err) }})
	}
}
