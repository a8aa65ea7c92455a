package queue_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

func TestTheEngineSuitePassesOverGRPC(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		enginetest.Run(t, func(t *testing.T) enginetest.Fixture {
			r := queuetest.Start(t, kind, queue.Config{})
			var skew atomic.Int64
			return enginetest.Fixture{Remote: true, Operators: true, Engine: &remote{c: r, skew: &skew}, Advance: func(d time.Duration) {
				skew.Add(int64(d))
				r.Advance(d)
			}}
		})
	})
}

// remote is an engine behind the services.
type remote struct {
	engine.Engine // what has no call
	c             *queuetest.Rig
	skew          *atomic.Int64
}

func (r *remote) Kind() string { return "remote" }

func (r *remote) Close() error { return nil }

func (r *remote) Check(context.Context) error { return nil }

func (r *remote) Wakes(ctx context.Context, _ func(string)) error { <-ctx.Done(); return nil }

func (r *remote) Generation() string {
	res, err := r.c.ListQueues(context.Background(), &queuev1.ListQueuesRequest{})
	if err != nil {
		return ""
	}
	return res.GetGeneration()
}

var reasons = map[string]error{
	"QUEUE_NOT_FOUND": engine.ErrNoQueue, "PARTITIONS_FIXED": engine.ErrPartitions,
	"QUEUE_LEASED": engine.ErrLeased, "QUEUE_CLOSED": wire.ErrClosed, "BARRIER_FULL": wire.ErrBarrierFull,
}

func plain(err error) error {
	if is := reasons[rpc.Reason(err)]; is != nil {
		return is
	}
	return err
}

func (r *remote) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	in := wire.ConfigOut(name, cfg.WithDefaults())
	res, err := r.c.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: in})
	if err != nil {
		return nil, false, plain(err)
	}
	c := &wire.Checks{}
	out := c.ConfigIn("config", res.GetConfig())
	return &remoteQueue{r, name, out, &sync.Map{}}, res.GetCreated(), c.Err()
}

func (r *remote) Open(ctx context.Context, name string) (engine.Queue, error) {
	if _, err := r.c.Len(ctx, &queuev1.LenRequest{Queue: name}); err != nil {
		return nil, plain(err)
	}
	return &remoteQueue{r, name, workqueue.Config{}, &sync.Map{}}, nil
}

func (r *remote) Delete(ctx context.Context, name string, force bool) error {
	_, err := r.c.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: name, Force: force})
	return plain(err)
}

func (r *remote) Names(ctx context.Context) ([]string, error) {
	res, err := r.c.ListQueues(ctx, &queuev1.ListQueuesRequest{})
	var out []string
	for _, q := range res.GetQueues() {
		out = append(out, q.GetConfig().GetName())
	}
	return out, err
}

type remoteQueue struct {
	r    *remote
	name string
	cfg  workqueue.Config
	lent *sync.Map // token by key: only the worker that leased the key knows it
}

func (q *remoteQueue) Config() workqueue.Config { return q.cfg }

func (q *remoteQueue) Partitions() []engine.Partition { return []engine.Partition{q} }

func micros(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixMicro()
}

func (q *remoteQueue) Status(ctx context.Context) (engine.Status, error) {
	res, err := q.r.c.ListQueues(ctx, &queuev1.ListQueuesRequest{Prefix: q.name})
	for _, s := range res.GetQueues() {
		if s.GetConfig().GetName() == q.name {
			now := q.now()
			return engine.Status{Counts: countsIn(s.GetCounts()), Closed: s.GetClosed(), Paused: s.GetPaused(), HeldUntil: micros(s.GetHeldUntil()), Now: now, OldestReady: now - s.GetOldestReady().AsDuration().Microseconds()}, err
		}
	}
	return engine.Status{}, err
}

func (q *remoteQueue) now() int64 { return time.Now().Add(time.Duration(q.r.skew.Load())).UnixMicro() }

func countsIn(c *queuev1.Counts) workqueue.Counts {
	return workqueue.Counts{Ready: int(c.GetReady()), Delayed: int(c.GetDelayed()), Processing: int(c.GetProcessing()), Dirty: int(c.GetDirty()), Dead: int(c.GetDead())}
}

func (q *remoteQueue) Items(ctx context.Context, state workqueue.State, cursor string, limit int) ([]workqueue.Item, string, error) {
	in := wire.States[state]
	if state == workqueue.Idle {
		in = queuev1.State_STATE_UNSPECIFIED
	}
	res, err := q.r.c.ListItems(ctx, &queuev1.ListItemsRequest{Queue: q.name, State: in, PageToken: cursor, PageSize: int32(limit)})
	var out []workqueue.Item
	for _, it := range res.GetItems() {
		out = append(out, *q.itemIn(it))
	}
	return out, res.GetNextPageToken(), err
}

func (q *remoteQueue) itemIn(it *queuev1.Item) *workqueue.Item {
	out := &workqueue.Item{
		Key: it.GetKey(), Holder: it.GetHolder(), Deadline: micros(it.GetDeadline()), Requeues: int(it.GetNumRequeues()),
		Attempt: int(it.GetAttempt()), Level: workqueue.Level(int(it.GetPriority())), AddedAt: micros(it.GetAddedAt()), ReadyAt: micros(it.GetReadyAt()),
		DelayedUntil: micros(it.GetDelayedUntil()), Barrier: barrierIn(it.GetBarrier()), StateBytes: int(it.GetStateBytes()),
		Expect: expectIn(it.GetExpectations()), Reason: it.GetLastReason(),
	}
	for s, p := range wire.States {
		if p == it.GetState() {
			out.State = s
		}
	}
	if token, ok := q.lent.Load(it.GetKey()); ok && it.GetHolder() != "" {
		out.Token = token.(uint64)
	}
	return out
}

func barrierIn(in []*deltav1.CollectionRevision) workqueue.Barrier {
	var out workqueue.Barrier
	for _, m := range in {
		out = append(out, workqueue.Mark{Collection: m.GetCollection(), Epoch: m.GetRevision().GetEpoch(), RV: m.GetRevision().GetResourceVersion()})
	}
	return out
}

func expectIn(e *queuev1.Expectations) *expectations.Set {
	if e == nil {
		return nil
	}
	return &expectations.Set{Owner: e.GetOwnerUid(), Creates: e.GetCreations(), Deletes: e.GetDeletions(), Token: e.GetToken(), StoredAt: micros(e.GetStoredAt())}
}

func (q *remoteQueue) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	r := &workqueue.Result{Now: q.now()}
	for i := range t.Ops {
		rep, err := q.op(ctx, &t.Ops[i])
		switch err = plain(err); {
		case errors.Is(err, wire.ErrClosed):
			rep.Status = workqueue.Closed
		case errors.Is(err, wire.ErrBarrierFull):
			rep.Status = workqueue.BarrierFull
		case err != nil:
			return nil, err
		}
		r.Replies = append(r.Replies, rep)
	}
	if len(t.Takes) == 0 { // have due times looked at, as an engine's empty transaction does
		if _, err := q.r.c.Inspect(ctx, &queuev1.InspectRequest{Queue: q.name, Key: "-"}); err != nil {
			return nil, err
		}
	}
	for i, take := range t.Takes {
		res, err := q.r.c.Get(ctx, &queuev1.GetRequest{
			Queue: q.name, SessionId: take.Holder, MaxItems: int32(take.Max), LeaseDuration: durationpb.New(time.Duration(take.For) * time.Microsecond),
		})
		if err != nil {
			return nil, err
		}
		for _, l := range res.GetLeases() {
			q.lent.Store(l.GetKey(), l.GetToken())
			r.Leases = append(r.Leases, workqueue.Lease{
				Take: i, Key: l.GetKey(), Token: l.GetToken(), Deadline: micros(l.GetDeadline()), AddedAt: micros(l.GetAddedAt()), ReadyAt: micros(l.GetReadyAt()),
				Level: workqueue.Level(int(l.GetPriority())), Attempt: int(l.GetAttempt()), Requeues: int(l.GetNumRequeues()),
				Barrier: barrierIn(l.GetBarrier()), Traces: l.GetTraceparents(), State: l.GetState(), Expect: expectIn(l.GetExpectations()),
			})
		}
	}
	res, err := q.r.c.Len(ctx, &queuev1.LenRequest{Queue: q.name})
	r.Counts = countsIn(res.GetCounts())
	return r, err
}

func statusIn(s queuev1.SettleStatus) workqueue.Status {
	for _, w := range []workqueue.Status{workqueue.Settled, workqueue.Requeued, workqueue.Lost, workqueue.NotLeased} {
		if wire.SettleStatus(w) == s {
			return w
		}
	}
	return workqueue.OK
}

func (q *remoteQueue) op(ctx context.Context, op *workqueue.Op) (workqueue.Reply, error) {
	var rep workqueue.Reply
	more := op.More
	if more == nil {
		more = &workqueue.More{}
	}
	c := q.r.c
	switch op.Kind {
	case workqueue.OpAdd:
		return q.add(ctx, op, more)
	case workqueue.OpSettle:
		st := &queuev1.Settlement{Queue: q.name, Key: op.Key, Token: op.Token, Reason: more.Reason, ReadAt: wire.Revisions(more.Barrier), Wrote: wire.Revisions(more.Wrote)}
		for p, o := range wire.Outcomes {
			if o == op.Outcome {
				st.Outcome = p
			}
		}
		if op.Delay > 0 {
			st.Delay = wire.Span(op.Delay)
		}
		if op.Relevel {
			st.Priority = wrapperspb.Int32(int32(workqueue.Priority(op.Level)))
		}
		res, err := c.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{st}})
		if err != nil {
			return rep, err
		}
		s := res.GetResults()[0]
		return workqueue.Reply{Status: statusIn(s.GetStatus()), Requeues: int(s.GetNumRequeues()), ReadyAt: micros(s.GetReadyAt())}, nil
	case workqueue.OpExtend:
		res, err := c.Extend(ctx, &queuev1.ExtendRequest{SessionId: "w", Leases: []*queuev1.LeaseRef{{Queue: q.name, Key: op.Key, Token: op.Token}}})
		if res.GetExtended() == 1 {
			return workqueue.Reply{Status: workqueue.Settled, Deadline: q.now() + res.GetRemaining().AsDuration().Microseconds()}, err
		}
		return workqueue.Reply{Status: workqueue.Lost}, err
	case workqueue.OpForget:
		_, err := c.Forget(ctx, &queuev1.ForgetRequest{Queue: q.name, Keys: []string{op.Key}})
		return rep, err
	case workqueue.OpRequeues:
		res, err := c.NumRequeues(ctx, &queuev1.NumRequeuesRequest{Queue: q.name, Keys: []string{op.Key}})
		if err == nil {
			rep.Requeues = int(res.GetCounts()[0])
		}
		return rep, err
	case workqueue.OpSave:
		res, err := c.SaveState(ctx, &queuev1.SaveStateRequest{Queue: q.name, Key: op.Key, Token: op.Token, State: more.Data})
		return workqueue.Reply{Status: statusIn(res.GetStatus())}, err
	case workqueue.OpExpect:
		res, err := c.Expect(ctx, &queuev1.ExpectRequest{Queue: q.name, Key: op.Key, Token: op.Token, OwnerUid: more.Owner, Creations: more.Creates, Deletions: more.Deletes})
		return workqueue.Reply{Status: statusIn(res.GetStatus())}, err
	case workqueue.OpObserve:
		res, err := c.Observe(ctx, &queuev1.ObserveRequest{Queue: q.name, Key: op.Key, OwnerUid: more.Owner, Creations: more.Creates, Deletions: more.Deletes})
		return workqueue.Reply{Expect: expectIn(res.GetExpectations())}, err
	case workqueue.OpUnexpect:
		_, err := c.DeleteExpectations(ctx, &queuev1.DeleteExpectationsRequest{Queue: q.name, Key: op.Key})
		return rep, err
	case workqueue.OpInspect:
		res, err := c.Inspect(ctx, &queuev1.InspectRequest{Queue: q.name, Key: op.Key})
		return workqueue.Reply{Item: q.itemIn(res.GetItem())}, err
	case workqueue.OpClose:
		_, err := c.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: q.name})
		return rep, err
	case workqueue.OpOpen:
		_, err := c.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: q.name})
		return rep, err
	default:
		return q.operate(ctx, op)
	}
}

// operate is op for what operators ask and for back-off entries.
func (q *remoteQueue) operate(ctx context.Context, op *workqueue.Op) (workqueue.Reply, error) {
	var rep workqueue.Reply
	c, keys := q.r.c, []string{op.Key}
	item := func(results []*queuev1.ItemResult, err error) (workqueue.Reply, error) {
		if err != nil {
			return rep, err
		}
		for _, s := range []workqueue.Status{workqueue.OK, workqueue.Unchanged, workqueue.Held} {
			if wire.ItemStatus(s) == results[0].GetStatus() {
				rep.Status = s
			}
		}
		return rep, nil
	}
	entry := func(entries []*queuev1.BackoffEntry, err error) (workqueue.Reply, error) {
		if err == nil {
			rep.Backoff = workqueue.BackoffEntry{Delay: entries[0].GetBackoff().AsDuration().Microseconds(), Updated: micros(entries[0].GetLastUpdate())}
		}
		return rep, err
	}
	switch op.Kind {
	case workqueue.OpPause:
		_, err := c.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: q.name})
		return rep, err
	case workqueue.OpResume:
		_, err := c.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: q.name})
		return rep, err
	case workqueue.OpRetryNow:
		res, err := c.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: q.name, Keys: keys})
		return item(res.GetResults(), err)
	case workqueue.OpRevoke:
		res, err := c.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: q.name, Keys: keys})
		return item(res.GetResults(), err)
	case workqueue.OpDelete:
		res, err := c.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: q.name, Keys: keys})
		return item(res.GetResults(), err)
	case workqueue.OpPutBack:
		more := cmp.Or(op.More, &workqueue.More{})
		it := &queuev1.Item{
			Key: op.Key, State: queuev1.State_STATE_IDLE, Priority: int32(workqueue.Priority(op.Level)), NumRequeues: int64(op.Count),
			Barrier: wire.Revisions(more.Barrier), SavedState: more.Data, LastReason: more.Reason,
		}
		switch op.Outcome {
		case workqueue.Release:
			it.State = queuev1.State_STATE_READY
		case workqueue.Dead:
			it.State = queuev1.State_STATE_DEAD
		}
		if op.Delay > 0 {
			it.DelayedUntil = timestamppb.New(time.Now().Add(time.Duration(op.Delay) * time.Microsecond))
		}
		if more.Owner != "" {
			it.Expectations = &queuev1.Expectations{OwnerUid: more.Owner, Creations: more.Creates, Deletions: more.Deletes}
		}
		res, err := c.RestoreItems(ctx, &queuev1.RestoreItemsRequest{Queue: q.name, Items: []*queuev1.Item{it}})
		return item(res.GetResults(), err)
	case workqueue.OpBackoffGet:
		res, err := c.Backoff.Get(ctx, &queuev1.BackoffServiceGetRequest{Queue: q.name, Ids: keys})
		return entry(res.GetEntries(), err)
	case workqueue.OpBackoffNext:
		res, err := c.Backoff.Next(ctx, &queuev1.NextRequest{Queue: q.name, Ids: keys, EventTime: wire.Stamp(op.Event)})
		return entry(res.GetEntries(), err)
	case workqueue.OpBackoffReset:
		_, err := c.Backoff.Reset(ctx, &queuev1.ResetRequest{Queue: q.name, Ids: keys})
		return rep, err
	default:
		return rep, fmt.Errorf("operation %d has no call", op.Kind)
	}
}

func (q *remoteQueue) add(ctx context.Context, op *workqueue.Op, more *workqueue.More) (workqueue.Reply, error) {
	items := []*queuev1.AddItem{{Key: op.Key, Priority: int32(workqueue.Priority(op.Level)), Barrier: wire.Revisions(more.Barrier), Traceparent: op.Trace}}
	var results []*queuev1.AddResult
	var err error
	switch {
	case op.Limited:
		var res *queuev1.AddRateLimitedResponse
		res, err = q.r.c.AddRateLimited(ctx, &queuev1.AddRateLimitedRequest{Queue: q.name, Items: items})
		results = res.GetResults()
	case op.Delay > 0 || op.Last:
		policy := queuev1.DelayPolicy_DELAY_POLICY_EARLIEST
		if op.Last {
			policy = queuev1.DelayPolicy_DELAY_POLICY_LAST
		}
		var res *queuev1.AddAfterResponse
		res, err = q.r.c.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: q.name, Items: items, Delay: wire.Span(op.Delay), Policy: policy})
		results = res.GetResults()
	default:
		var res *queuev1.AddResponse
		res, err = q.r.c.Add(ctx, &queuev1.AddRequest{Queue: q.name, Items: items})
		results = res.GetResults()
	}
	if err != nil {
		return workqueue.Reply{}, err
	}
	rep := workqueue.Reply{Requeues: int(results[0].GetNumRequeues()), ReadyAt: micros(results[0].GetReadyAt())}
	for w, p := range wire.AddStatus {
		if p == results[0].GetStatus() {
			rep.Status = w
		}
	}
	return rep, nil
}
