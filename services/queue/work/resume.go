package work

import (
	"context"
	"iter"
	"slices"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
)

// resume keeps the leases a worker believes it holds, each named once, and soon
// ends those of the session that it does not know of.
func (st *stream) resume(ctx context.Context, refs []*queuev1.LeaseRef, unresolved session.Unresolved, leaseFor int64) (session.Extension, error) {
	known := make(map[session.LeaseName]bool, len(refs))
	for _, r := range refs {
		known[session.NameOf(r)] = true
	}
	if unknown := st.ss.UnknownTo(known); len(unknown) > 0 {
		st.s.Leases.Abandon(ctx, st.ss, unknown)
	}
	if len(refs) == 0 {
		return session.Extension{}, nil
	}
	done := make(chan session.Extension, 1)
	st.s.Leases.Extend(ctx, st.ss, refs, unresolved, leaseFor, false, session.StoreTimeout(st.partial), func(e session.Extension) { done <- e })
	select {
	case e := <-done:
		if !st.partial {
			st.s.Leases.GiveUpUnreachable(&e, st.ss)
		}
		if e.Err != nil {
			return e, e.Err
		}
		return e, st.adopt(ctx, e, leaseFor)
	case <-ctx.Done():
		return session.Extension{}, ctx.Err()
	}
}

// adopt makes resumed leases the stream's own: those that are kept, and those of
// which nothing is known for as long as they may last.
func (st *stream) adopt(ctx context.Context, e session.Extension, leaseFor int64) error {
	now := time.Now()
	for i, r := range e.Kept {
		if err := st.adoptOne(ctx, r, now.Add(e.Remaining), e.Deadlines[i]); err != nil {
			return err
		}
	}
	n := len(e.Kept)
	for _, r := range e.Unreachable {
		l, ok := st.s.Queues.Known(r.GetQueue())
		if !ok {
			continue // it cannot be opened; the next extension tries again
		}
		most := time.Duration(leaseFor) * time.Microsecond
		if most == 0 {
			most = l.Stored.Config().LeaseFor
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
	l, err := st.s.Queues.Use(ctx, r.GetQueue())
	if err != nil {
		return err
	}
	d := l.At(r.GetKey())
	var from *transaction.Waiter
	if q := st.queues[r.GetQueue()]; q != nil {
		from = q.waiters[d.Part]
	}
	st.ss.Adopt(d, r, st, from, until, deadline)
	return nil
}

// reuse gives the credit of leases back that are about to end, whatever comes
// of it, so that the transaction that settles them leases the next keys. It returns
// waiters elsewhere that waited for it.
func (st *stream) reuse(p *session.Plan) (unblocked []*transaction.Waiter) {
	var again []*transaction.Waiter
	st.ss.PayBack(st, st.leasesOf(p), func(d *transaction.Dispatcher, from *transaction.Waiter) {
		if from == nil {
			unblocked = append(unblocked, st.credit.Give(nil, 1)...)
			return
		}
		unblocked = append(unblocked, st.credit.Refund(from, 1)...)
		q := st.queues[d.Name]
		if q != nil && d.Part < len(q.waiters) && (len(again) == 0 || again[len(again)-1] != q.waiters[d.Part]) {
			again = append(again, q.waiters[d.Part])
		}
	})
	if st.ending() {
		return nil
	}
	for _, q := range st.all {
		for i, t := range q.waiters {
			if slices.Contains(again, t) {
				q.l.Partitions[i].Join(t)
			}
		}
	}
	return slices.DeleteFunc(unblocked, func(t *transaction.Waiter) bool { return slices.Contains(again, t) })
}

// leasesOf are the leases that a plan is about, with their keys.
func (st *stream) leasesOf(p *session.Plan) iter.Seq2[session.LeaseKey, string] {
	return func(yield func(session.LeaseKey, string) bool) {
		for n := range p.Parts {
			pt := &p.Parts[n]
			l, _ := st.s.Queues.Known(pt.Queue)
			if q := st.queues[pt.Queue]; q != nil {
				l = q.l
			}
			if l == nil {
				continue
			}
			count := len(p.Ops)
			if pt.At != nil {
				count = len(pt.At)
			}
			for i := range count {
				op := &p.Ops[pt.Place(i)]
				if !yield(session.LeaseKey{Dispatcher: l.At(op.Key), Token: op.Token}, op.Key) {
					return
				}
			}
		}
	}
}

// Ended accounts for leases of the stream that ended. Their credit comes back, unless that has
// been done or the worker counts it.
func (st *stream) Ended(f session.Freed, hold bool) {
	st.mu.Lock()
	st.live -= f.Leases
	idle := st.draining && st.live <= 0
	st.mu.Unlock()
	if idle {
		st.Wake()
	}
	if f.Unpaid == 0 || hold {
		return
	}
	if f.From == nil {
		transaction.RejoinAll(st.credit.Give(nil, f.Unpaid))
	} else {
		transaction.RejoinAll(st.credit.Refund(f.From, f.Unpaid))
	}
}
