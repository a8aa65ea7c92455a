package queue

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// server answers the QueueService.
type server struct {
	queuev1.UnsafeQueueServiceServer // what has no method here does not compile
	*Service
}

// do runs operations on a queue by name.
func (s *server) do(ctx context.Context, queue string, ops ...workqueue.Op) (*call, error) {
	return s.doAs(ctx, queue, "", ops...)
}

// doAs runs operations that a session asked for.
func (s *server) doAs(ctx context.Context, queue, session string, ops ...workqueue.Op) (*call, error) {
	for again := true; ; again = false {
		l, err := s.queue(ctx, queue)
		if err != nil {
			return nil, err
		}
		done := make(chan struct{})
		c := &call{ops: ops, by: session, done: func(*call) { close(done) }}
		l.submit(c)
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if again && errors.Is(c.err, engine.ErrDeleted) && !errors.Is(c.err, engine.ErrUnknown) { // nothing was done, and it may have been made again
			s.drop(l, c.err)
			continue
		}
		if c.err == nil {
			c.unfold()
		}
		return c, c.err
	}
}

func (s *server) Get(ctx context.Context, r *queuev1.GetRequest) (*queuev1.GetResponse, error) {
	came := s.clock(time.Now())
	c := &checks{}
	c.queue("queue", r.GetQueue())
	c.session("session_id", r.GetSessionId(), true)
	c.count("max_items", int(r.GetMaxItems()), 0, maxItems)
	wait := c.duration("wait", r.GetWait(), maxWait)
	leaseFor := c.lease("lease_duration", r.GetLeaseDuration())
	if err := c.err(); err != nil {
		return nil, err
	}
	d, err := s.queue(ctx, r.GetQueue())
	if err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(owned(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	got, err := s.get(ctx, d, ss, max(int(r.GetMaxItems()), 1), leaseFor, wait)
	if err != nil {
		return nil, err
	}
	leases := got.leases
	if n := within(leases); n < len(leases) { // the caller could not receive the rest
		s.giveBack(d, ss, leases[n:])
		leases = leases[:n]
	}
	return &queuev1.GetResponse{
		Leases: leases, ShutDown: got.shut, Generation: s.engine.Generation(), ClockUs: came, Unreachable: got.missing,
	}, nil
}

func (s *server) Forget(ctx context.Context, r *queuev1.ForgetRequest) (*queuev1.ForgetResponse, error) {
	_, err := s.eachKey(ctx, r.GetQueue(), r.GetKeys(), workqueue.OpForget)
	if err != nil {
		return nil, err
	}
	return &queuev1.ForgetResponse{}, nil
}

func (s *server) NumRequeues(ctx context.Context, r *queuev1.NumRequeuesRequest) (*queuev1.NumRequeuesResponse, error) {
	done, err := s.eachKey(ctx, r.GetQueue(), r.GetKeys(), workqueue.OpRequeues)
	if err != nil {
		return nil, err
	}
	out := &queuev1.NumRequeuesResponse{Counts: make([]int64, len(done.replies))}
	for i := range done.replies {
		out.Counts[i] = int64(done.replies[i].Requeues)
	}
	return out, nil
}

func (s *server) eachKey(ctx context.Context, queue string, keys []string, kind workqueue.OpKind) (*call, error) {
	c := &checks{}
	c.queue("queue", queue)
	c.count("keys", len(keys), 1, maxItems)
	ops := make([]workqueue.Op, min(len(keys), maxItems))
	for i := range ops {
		c.key("keys["+strconv.Itoa(i)+"]", keys[i])
		ops[i] = workqueue.Op{Kind: kind, Key: keys[i]}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return s.do(ctx, queue, ops...)
}

func (s *server) ShutDown(ctx context.Context, r *queuev1.ShutDownRequest) (*queuev1.ShutDownResponse, error) {
	if _, err := s.shutDown(ctx, r.GetSessionId()); err != nil {
		return nil, err
	}
	return &queuev1.ShutDownResponse{}, nil
}

func (s *server) ShutDownWithDrain(ctx context.Context, r *queuev1.ShutDownWithDrainRequest) (*queuev1.ShutDownWithDrainResponse, error) {
	c := &checks{}
	timeout := c.duration("timeout", r.GetTimeout(), 24*time.Hour)
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.shutDown(ctx, r.GetSessionId())
	if err != nil {
		return nil, err
	}
	left, err := ss.drained(ctx, timeout, s.stopping)
	if err != nil {
		return nil, err
	}
	return &queuev1.ShutDownWithDrainResponse{Remaining: int64(left)}, nil
}

func (s *server) ShuttingDown(ctx context.Context, r *queuev1.ShuttingDownRequest) (*queuev1.ShuttingDownResponse, error) {
	c := &checks{}
	c.session("session_id", r.GetSessionId(), true)
	if err := c.err(); err != nil {
		return nil, err
	}
	return &queuev1.ShuttingDownResponse{ShuttingDown: s.sessions.find(owned(ctx, r.GetSessionId())).shutDown()}, nil
}

func (s *server) Settle(ctx context.Context, r *queuev1.SettleRequest) (*queuev1.SettleResponse, error) {
	c := &checks{}
	c.session("session_id", r.GetSessionId(), true)
	plan := s.plan(c, r.GetSettlements())
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(owned(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	whose, err := s.mine(ctx, ss, len(plan.ops), plan.lease, patience(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	type outcome struct {
		results []*queuev1.SettleResult
		err     error
	}
	answers := make(chan outcome, 2) // the second is of what was late: nobody waits for it
	s.settle(ctx, ss, r.GetRequestId(), plan, whose, !r.GetPartial(), patience(r.GetPartial()), func(out *settled) {
		ended(out.freed, false)
		answers <- outcome{out.each(), out.err}
	})
	select {
	case out := <-answers:
		if out.err != nil {
			return nil, out.err
		}
		return &queuev1.SettleResponse{Results: out.results, RequestId: r.GetRequestId()}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *server) Extend(ctx context.Context, r *queuev1.ExtendRequest) (*queuev1.ExtendResponse, error) {
	c := &checks{}
	c.session("session_id", r.GetSessionId(), true)
	c.refs("leases", r.GetLeases())
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(owned(ctx, r.GetSessionId()))
	if err != nil {
		return nil, err
	}
	refs := ss.orAll(r.GetLeases())
	whose, err := s.mine(ctx, ss, len(refs), refAt(refs), patience(r.GetPartial()))
	if err != nil {
		return nil, err
	}
	done := make(chan extension, 1)
	s.extend(ctx, ss, refs, whose, 0, !r.GetPartial(), patience(r.GetPartial()), func(e extension) {
		ended(e.freed, false)
		done <- e
	})
	select {
	case e := <-done:
		if e.err != nil {
			return nil, e.err
		}
		return &queuev1.ExtendResponse{
			Extended: int64(len(e.kept)), Lost: e.lost, Remaining: durationpb.New(e.remaining), Unreachable: e.unreachable,
		}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
