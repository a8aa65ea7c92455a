package work

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// open checks hello, takes the session over and answers Welcome.
func (s *Server) open(grpc queuev1.QueueService_WorkServer, h *queuev1.Hello) (*stream, error) {
	ctx := grpc.Context()
	c := &wire.Checks{}
	c.Session("hello.session_id", h.GetSessionId(), true)
	c.Session("hello.client", h.GetClient(), false)
	c.Count("hello.queues", len(h.GetQueues()), 1, wire.MaxQueues)
	for _, q := range h.GetQueues() {
		c.Queue("hello.queues", q)
	}
	leaseFor := c.Lease("hello.lease_duration", h.GetLeaseDuration())
	c.Refs("hello.resume", h.GetResume())
	if err := c.Err(); err != nil {
		return nil, err
	}
	ss, err := s.Sessions.Get(wire.SessionID(ctx, h.GetSessionId()))
	if err != nil {
		return nil, err
	}
	resume := session.Distinct(h.GetResume())
	unresolved, err := s.Leases.Verify(ctx, ss, len(resume), session.RefAt(resume), transaction.PartitionTimeout)
	if err != nil {
		return nil, err
	}
	st := &stream{
		s: s, ss: ss, grpc: grpc, compact: h.GetCompact(), partial: h.GetPartial(), queues: map[string]*subscription{},
		signal: make(chan struct{}, 1), room: make(chan struct{}, 1), done: make(chan struct{}),
	}
	inForce := time.Duration(0)
	var refusal error
	for _, name := range h.GetQueues() {
		err := s.Permit.Ask(ctx, wire.VerbWork, name)
		var l *transaction.Queue
		if err == nil {
			l, err = s.Queues.Use(ctx, name)
		}
		if err != nil {
			if !st.refuse(name, err) || ctx.Err() != nil {
				return nil, err
			}
			refusal = err
			continue
		}
		if st.queues[name] != nil {
			continue
		}
		q := st.subscribe(l, leaseFor)
		st.queues[name], st.all = q, append(st.all, q)
		cfg := l.Stored.Config()
		lasts := time.Duration(cfg.Capped(leaseFor)) * time.Microsecond
		if inForce == 0 || lasts < inForce {
			inForce = lasts
		}
		st.leases = max(st.leases, lasts)
	}
	if len(st.all) == 0 {
		return nil, refusal
	}
	if old := ss.TakeOver(st, h.GetClient()); old != nil {
		old.Close(wire.ErrMoved)
	}
	for _, q := range st.all {
		s.Queues.Keep(q.l)
		q.unbind = context.AfterFunc(q.l.Context, func() {
			if err := q.l.Ended(); errors.Is(err, engine.ErrNoQueue) {
				st.Close(err)
			}
		})
	}
	resumed, err := st.resume(ctx, resume, unresolved, leaseFor)
	if err != nil {
		st.disconnect(context.WithoutCancel(ctx))
		return nil, err
	}
	st.push(&queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Welcome{Welcome: &queuev1.Welcome{
		ServerTime: timestamppb.Now(), LeaseDuration: durationpb.New(inForce), Generation: s.Queues.Engine.Generation(), Kept: resumed.Kept, Lost: resumed.Lost,
		Unreachable: resumed.Unreachable, Refused: st.refused, ClockUs: s.Queues.Clock(time.Now()),
	}}})
	for _, q := range st.all {
		if q.l.Paused.Load() {
			st.control(&queuev1.Control{Action: queuev1.Action_ACTION_PAUSE, Reason: "the queue is paused", Queue: q.l.Name})
		}
		for i, t := range q.waiters {
			if ss.AddGet(t, q.l.Partitions[i]) {
				q.l.Partitions[i].Finalize(t)
			}
		}
	}
	return st, nil
}

// refuse notes that a queue is no part of the stream. It reports false when the
// worker does not know of that, and the stream cannot be opened.
func (st *stream) refuse(name string, err error) bool {
	if !st.partial || errors.Is(err, wire.ErrStopping) {
		return false
	}
	for _, q := range st.refused {
		if q.GetQueue() == name {
			return true
		}
	}
	e := wire.AsProduceError(err)
	st.refused = append(st.refused, &queuev1.RefusedQueue{Queue: name, Code: e.GetCode(), Reason: e.GetReason(), Message: e.GetMessage()})
	return true
}

// subscribe makes the waiters of one queue.
func (st *stream) subscribe(l *transaction.Queue, leaseFor int64) *subscription {
	q := &subscription{l: l}
	for _, d := range l.Partitions {
		t := &transaction.Waiter{Holder: st.ss.ID, LeaseFor: leaseFor, Credit: &st.credit, Own: &q.credit}
		t.Rejoin = func() {
			if !st.ending() {
				d.Offer(t)
			}
		}
		t.Deliver = func(d *transaction.Dispatcher, leases []workqueue.Lease, now int64) bool {
			return st.deliver(t, d, leases, now)
		}
		t.Finish = st.finish
		q.waiters = append(q.waiters, t)
	}
	return q
}
