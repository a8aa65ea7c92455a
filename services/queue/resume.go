package queue

import (
	"context"
	"slices"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// leaseName tells leases apart.
type leaseName struct {
	queue, key string
	token      uint64
}

func nameOf(r *queuev1.LeaseRef) leaseName { return leaseName{r.GetQueue(), r.GetKey(), r.GetToken()} }

// distinct is every lease once.
func distinct(refs []*queuev1.LeaseRef) []*queuev1.LeaseRef {
	known := make(map[leaseName]bool, len(refs))
	once := refs[:0:0]
	for _, r := range refs {
		if l := nameOf(r); !known[l] {
			known[l] = true
			once = append(once, r)
		}
	}
	return once
}

// resume keeps the leases a worker believes it holds, each named once, and soon
// ends those of the session that it does not know of.
func (st *stream) resume(ctx context.Context, refs []*queuev1.LeaseRef, whose unsure, leaseFor int64) (extension, error) {
	known := make(map[leaseName]bool, len(refs))
	for _, r := range refs {
		known[nameOf(r)] = true
	}
	var unknown []*queuev1.LeaseRef
	st.ss.mu.Lock()
	for k, h := range st.ss.leases {
		if h.stream != nil && st.ss.owns(h) && !known[leaseName{k.d.name, h.key, k.token}] {
			unknown = append(unknown, &queuev1.LeaseRef{Queue: k.d.name, Key: h.key, Token: k.token})
		}
	}
	st.ss.mu.Unlock()
	if len(unknown) > 0 {
		st.s.shorten(ctx, st.ss, unknown)
	}
	if len(refs) == 0 {
		return extension{}, nil
	}
	done := make(chan extension, 1)
	st.s.extend(ctx, st.ss, refs, whose, leaseFor, false, patience(st.partial), func(e extension) { done <- e })
	select {
	case e := <-done:
		if !st.partial {
			e.forsake(st.s.Service, st.ss)
		}
		if e.err != nil {
			return e, e.err
		}
		return e, st.adopt(ctx, e, leaseFor)
	case <-ctx.Done():
		return extension{}, ctx.Err()
	}
}

// adopt makes resumed leases the stream's own: those that are kept, and those of
// which nothing is known for as long as they may last.
func (st *stream) adopt(ctx context.Context, e extension, leaseFor int64) error {
	now := time.Now()
	for i, r := range e.kept {
		if err := st.adoptOne(ctx, r, now.Add(e.remaining), e.deadlines[i]); err != nil {
			return err
		}
	}
	n := len(e.kept)
	for _, r := range e.unreachable {
		l, ok := st.s.known(r.GetQueue())
		if !ok {
			continue // it cannot be opened; the next extension tries again
		}
		most := time.Duration(leaseFor) * time.Microsecond
		if most == 0 {
			most = l.of.Config().LeaseFor
		}
		if err := st.adoptOne(ctx, r, now.Add(most), 0); err != nil {
			return err
		}
		n++
	}
	st.mu.Lock()
	st.live += n
	st.mu.Unlock()
	return nil
}

// adoptOne makes a lease the stream's. The deadline counts where this server
// knows no other.
func (st *stream) adoptOne(ctx context.Context, r *queuev1.LeaseRef, until time.Time, deadline int64) error {
	l, err := st.s.queue(ctx, r.GetQueue())
	if err != nil {
		return err
	}
	d := l.at(r.GetKey())
	var from *taker
	if q := st.queues[r.GetQueue()]; q != nil {
		from = q.takers[d.part]
	}
	st.ss.mu.Lock()
	defer st.ss.mu.Unlock()
	h := st.ss.find(d, r)
	if h == nil {
		st.ss.put(leaseKey{d, r.GetToken()}, held{key: r.GetKey(), since: time.Now(), deadline: until, known: deadline})
		h = st.ss.find(d, r)
	}
	h.stream, h.from, h.paid = st, from, false
	return nil
}

// shorten ends leases soon and forgets them here. It does not wait.
func (s *Service) shorten(ctx context.Context, ss *session, refs []*queuev1.LeaseRef) {
	s.extend(ctx, ss, refs, nil, -s.cfg.CloseGrace.Microseconds(), true, 0, func(extension) {})
}

// reuse gives the credit of leases back that are about to end, whatever comes
// of it, so that the turn that settles them leases the next keys. It returns
// takers elsewhere that waited for it.
func (st *stream) reuse(p *plan) (fed []*taker) {
	var again []*taker
	st.ss.mu.Lock()
	for n := range p.parts {
		pt := &p.parts[n]
		q := st.queues[pt.queue]
		if q == nil {
			l, _ := st.s.known(pt.queue)
			if l == nil {
				continue
			}
			q = &station{l: l}
		}
		count := len(p.ops)
		if pt.at != nil {
			count = len(pt.at)
		}
		for i := range count {
			op := &p.ops[pt.place(i)]
			d := q.l.at(op.Key)
			h := st.ss.leases[leaseKey{d, op.Token}]
			if h == nil || h.key != op.Key || h.stream != st || h.paid {
				continue
			}
			h.paid = true
			if h.from == nil {
				fed = append(fed, st.credit.give(nil, 1)...)
				continue
			}
			fed = append(fed, st.credit.refund(h.from, 1)...)
			if d.part < len(q.takers) && (len(again) == 0 || again[len(again)-1] != q.takers[d.part]) {
				again = append(again, q.takers[d.part])
			}
		}
	}
	st.ss.mu.Unlock()
	if st.parting() {
		return nil
	}
	for _, q := range st.all {
		for i, t := range q.takers {
			if slices.Contains(again, t) {
				q.l.all[i].join(t)
			}
		}
	}
	return slices.DeleteFunc(fed, func(t *taker) bool { return slices.Contains(again, t) })
}

// ended accounts for leases that ended, each to the stream it came from, and
// gives their credit back unless that has been done or they hold it.
func ended(all []freed, hold bool) {
	for _, f := range all {
		st := f.stream
		st.mu.Lock()
		st.live -= f.leases
		idle := st.leaving && st.live <= 0
		st.mu.Unlock()
		if idle {
			st.nudge()
		}
		if f.unpaid == 0 || hold {
			continue
		}
		if f.from == nil {
			callAll(st.credit.give(nil, f.unpaid))
		} else {
			callAll(st.credit.refund(f.from, f.unpaid))
		}
	}
}
