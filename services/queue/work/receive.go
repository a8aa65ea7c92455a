package work

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// receive takes messages until the worker's side ends or fails.
func (st *stream) receive(ctx context.Context) error {
	var m workMessage
	for {
		if err := st.await(ctx); err != nil {
			return err
		}
		if err := st.grpc.RecvMsg(&m); err != nil {
			return err
		}
		var err error
		if m.settle != nil {
			if err := st.settle(ctx, m.settle); err != nil {
				return err
			}
			continue
		}
		switch k := m.GetKind().(type) {
		case *queuev1.WorkRequest_Credit:
			err = st.give(k.Credit)
		case *queuev1.WorkRequest_Extend:
			err = st.extend(ctx, k.Extend)
		case *queuev1.WorkRequest_Goodbye:
			st.drain()
		case *queuev1.WorkRequest_Ping:
			st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Pong{Pong: &queuev1.Pong{Id: k.Ping.GetId(), ClockUs: st.s.Queues.Clock(time.Now())}}})
		default:
			err = wire.ErrNotHello
		}
		if err != nil {
			return err
		}
	}
}

// await waits until the worker has read enough of its answers.
func (st *stream) await(ctx context.Context) error {
	for {
		st.mu.Lock()
		full := len(st.out.messages) > maxBacklog
		st.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-st.room:
		case <-st.done:
			return st.reason()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (st *stream) give(cr *queuev1.Credit) error {
	c := &wire.Checks{}
	c.Count("credit.items", int(cr.GetItems()), 1, wire.MaxCredit)
	q := st.queues[cr.GetQueue()]
	if cr.GetQueue() != "" && q == nil {
		c.Add("credit.queue", "%.64q was not named in hello", cr.GetQueue())
	}
	if err := c.Err(); err != nil {
		return err
	}
	if q == nil {
		st.credit.Give(nil, int(cr.GetItems()))
	} else {
		st.credit.Give(&q.credit, int(cr.GetItems()))
	}
	st.offer(q)
	return nil
}

// ending says that the stream takes no more keys.
func (st *stream) ending() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.draining || st.closed != nil
}

// offer puts the stream in line for a queue, or for all of them.
func (st *stream) offer(only *subscription) {
	if st.ending() {
		return
	}
	for _, q := range st.all {
		if only == nil || only == q {
			for i, t := range q.waiters {
				q.l.Partitions[i].Offer(t)
			}
		}
	}
}

func (st *stream) settle(ctx context.Context, m *settleMessage) error {
	if m.err != nil {
		return m.err
	}
	unresolved, err := st.s.Leases.Verify(ctx, st.ss, len(m.plan.Ops), m.plan.Lease, transaction.PartitionTimeout)
	if err != nil {
		return err
	}
	st.mu.Lock()
	st.countsCredit = m.hold
	st.mu.Unlock()
	if !m.hold {
		defer transaction.RejoinAll(st.reuse(m.plan)) // after the settlements are in line
	}
	st.s.Leases.Settle(ctx, st.ss, m.id, m.plan, unresolved, false, session.StoreTimeout(st.partial), func(out *session.SettleResults) {
		if out.Err != nil {
			st.Close(out.Err)
			return
		}
		var msg any
		if st.compact {
			msg = settledMessage(m.id, out, st.partial)
		} else {
			msg = &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Settled{
				Settled: &queuev1.Settled{RequestId: m.id, Results: out.Results(st.partial), More: out.More},
			}}
		}
		st.mu.Lock()
		st.out.messages = append(st.out.messages, msg)
		st.mu.Unlock()
		session.Ended(out.Freed, m.hold)
		if out.Via != nil {
			out.Via.Later(st)
		} else {
			st.Wake()
		}
	})
	return nil
}

func (st *stream) extend(ctx context.Context, b *queuev1.ExtendBatch) error {
	c := &wire.Checks{}
	c.Refs("extend.leases", b.GetLeases())
	if err := c.Err(); err != nil {
		return err
	}
	refs := st.ss.OrAll(b.GetLeases())
	unresolved, err := st.s.Leases.Verify(ctx, st.ss, len(refs), session.RefAt(refs), transaction.PartitionTimeout)
	if err != nil {
		return err
	}
	st.mu.Lock()
	st.extending++
	st.mu.Unlock()
	asked := st.s.Queues.Clock(time.Now()) // before any transaction that extends
	st.s.Leases.Extend(ctx, st.ss, refs, unresolved, 0, false, session.StoreTimeout(st.partial), func(e session.Extension) {
		if !st.partial {
			st.s.Leases.GiveUpUnreachable(&e, st.ss)
		}
		st.mu.Lock()
		st.extending--
		holds := st.countsCredit
		st.mu.Unlock()
		if e.Err != nil {
			st.Close(e.Err)
			return
		}
		st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Extended{Extended: &queuev1.Extended{
			Extended: int64(len(e.Kept)), Lost: e.Lost, Remaining: durationpb.New(e.Remaining), Unreachable: e.Unreachable,
			EndsUs: asked + e.Remaining.Microseconds(),
		}}})
		session.Ended(e.Freed, holds)
	})
	return nil
}
