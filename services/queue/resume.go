package queue

import (
	"context"
	"iter"
	"slices"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// resume keeps the leases a worker believes it holds, each named once, and soon
// ends those of the session that it does not know of.
func (st *stream) resume(ctx context.Context, refs []*queuev1.LeaseRef, whose unresolved, leaseFor int64) (extension, error) {
	known := make(map[leaseName]bool, len(refs))
	for _, r := range refs {
		known[nameOf(r)] = true
	}
	if unknown := st.ss.unknownTo(known); len(unknown) > 0 {
		st.s.leases.shorten(ctx, st.ss, unknown)
	}
	if len(refs) == 0 {
		return extension{}, nil
	}
	done := make(chan extension, 1)
	st.s.leases.extend(ctx, st.ss, refs, whose, leaseFor, false, storeTimeout(st.partial), func(e extension) { done <- e })
	select {
	case e := <-done:
		if !st.partial {
			st.s.leases.giveUpUnreachable(&e, st.ss)
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
		l, ok := st.s.queues.known(r.GetQueue())
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
	l, err := st.s.queues.use(ctx, r.GetQueue())
	if err != nil {
		return err
	}
	d := l.at(r.GetKey())
	var from *waiter
	if q := st.queues[r.GetQueue()]; q != nil {
		from = q.waiters[d.part]
	}
	st.ss.adopt(d, r, st, from, until, deadline)
	return nil
}

// reuse gives the credit of leases back that are about to end, whatever comes
// of it, so that the transaction that settles them leases the next keys. It returns
// waiters elsewhere that waited for it.
func (st *stream) reuse(p *plan) (fed []*waiter) {
	var again []*waiter
	st.ss.payBack(st, st.leasesOf(p), func(d *dispatcher, from *waiter) {
		if from == nil {
			fed = append(fed, st.credit.give(nil, 1)...)
			return
		}
		fed = append(fed, st.credit.refund(from, 1)...)
		q := st.queues[d.name]
		if q != nil && d.part < len(q.waiters) && (len(again) == 0 || again[len(again)-1] != q.waiters[d.part]) {
			again = append(again, q.waiters[d.part])
		}
	})
	if st.ending() {
		return nil
	}
	for _, q := range st.all {
		for i, t := range q.waiters {
			if slices.Contains(again, t) {
				q.l.all[i].join(t)
			}
		}
	}
	return slices.DeleteFunc(fed, func(t *waiter) bool { return slices.Contains(again, t) })
}

// leasesOf are the leases that a plan is about, with their keys.
func (st *stream) leasesOf(p *plan) iter.Seq2[leaseKey, string] {
	return func(yield func(leaseKey, string) bool) {
		for n := range p.parts {
			pt := &p.parts[n]
			l, _ := st.s.queues.known(pt.queue)
			if q := st.queues[pt.queue]; q != nil {
				l = q.l
			}
			if l == nil {
				continue
			}
			count := len(p.ops)
			if pt.at != nil {
				count = len(pt.at)
			}
			for i := range count {
				op := &p.ops[pt.place(i)]
				if !yield(leaseKey{l.at(op.Key), op.Token}, op.Key) {
					return
				}
			}
		}
	}
}

// Ended accounts for leases of the stream that ended. Their credit comes back, unless that has
// been done or the worker counts it.
func (st *stream) Ended(f freed, hold bool) {
	st.mu.Lock()
	st.live -= f.leases
	idle := st.draining && st.live <= 0
	st.mu.Unlock()
	if idle {
		st.wakeUp()
	}
	if f.unpaid == 0 || hold {
		return
	}
	if f.from == nil {
		rejoinAll(st.credit.give(nil, f.unpaid))
	} else {
		rejoinAll(st.credit.refund(f.from, f.unpaid))
	}
}
