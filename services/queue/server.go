package queue

import (
	"context"
	"encoding/base64"
	"errors"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// server answers the QueueService.
type server struct {
	queuev1.UnimplementedQueueServiceServer
	*Service
}

// adds is what the three kinds of Add share.
type adds struct {
	queue, session string
	items          []*queuev1.AddItem
	delay          time.Duration
	last, limited  bool
}

func (s *server) Add(ctx context.Context, r *queuev1.AddRequest) (*queuev1.AddResponse, error) {
	results, err := s.add(ctx, &checks{}, adds{queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems()})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddResponse{Results: results, Generation: s.engine.Generation()}, nil
}

func (s *server) AddAfter(ctx context.Context, r *queuev1.AddAfterRequest) (*queuev1.AddAfterResponse, error) {
	c := &checks{}
	if _, known := queuev1.DelayPolicy_name[int32(r.GetPolicy())]; !known {
		c.add("policy", "%d is not known", r.GetPolicy())
	}
	results, err := s.add(ctx, c, adds{
		queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems(),
		delay: c.duration("delay", r.GetDelay(), workqueue.MaxDelay),
		last:  r.GetPolicy() == queuev1.DelayPolicy_DELAY_POLICY_LAST,
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddAfterResponse{Results: results, Generation: s.engine.Generation()}, nil
}

func (s *server) AddRateLimited(ctx context.Context, r *queuev1.AddRateLimitedRequest) (*queuev1.AddRateLimitedResponse, error) {
	results, err := s.add(ctx, &checks{}, adds{queue: r.GetQueue(), session: r.GetSessionId(), items: r.GetItems(), limited: true})
	if err != nil {
		return nil, err
	}
	return &queuev1.AddRateLimitedResponse{Results: results, Generation: s.engine.Generation()}, nil
}

func (s *server) add(ctx context.Context, c *checks, a adds) ([]*queuev1.AddResult, error) {
	c.queue("queue", a.queue)
	c.session("session_id", a.session, false)
	c.count("items", len(a.items), 1, maxItems)
	cause := traceparent(ctx)
	ops := make([]workqueue.Op, 0, len(a.items))
	for i, it := range a.items {
		if i == maxItems {
			break
		}
		at := "items[" + strconv.Itoa(i) + "]"
		c.key(at+".key", it.GetKey())
		c.trace(at+".traceparent", it.GetTraceparent())
		op := workqueue.Op{
			Kind: workqueue.OpAdd, Key: it.GetKey(), Level: c.level(at+".priority", it.GetPriority()),
			Delay: a.delay.Microseconds(), Last: a.last, Limited: a.limited, Trace: it.GetTraceparent(),
		}
		if op.Trace == "" {
			op.Trace = cause
		}
		if b := c.barrier(at+".barrier", it.GetBarrier()); len(b) > 0 {
			op.More = &workqueue.More{Barrier: b}
		}
		ops = append(ops, op)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if s.sessions.find(a.session).shutDown() { // dropped, and told so
		results := make([]*queuev1.AddResult, len(ops))
		for i := range results {
			results[i] = &queuev1.AddResult{Status: queuev1.AddStatus_ADD_STATUS_SHUT_DOWN}
		}
		return results, nil
	}
	done, err := s.do(ctx, a.queue, ops...)
	if err != nil {
		return nil, err
	}
	results := make([]*queuev1.AddResult, len(ops))
	for i := range done.replies {
		switch r := &done.replies[i]; r.Status {
		case workqueue.Closed:
			return nil, errClosed
		case workqueue.BarrierFull:
			err = errors.Join(err, rpc.InvalidField("items["+strconv.Itoa(i)+"].barrier", errBarrierFull))
		default:
			results[i] = addResult(r)
		}
	}
	return results, err
}

// traceparent is the trace a call belongs to, if somebody records it.
func traceparent(ctx context.Context) string {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() || !sc.IsSampled() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// do runs operations on a queue by name.
func (s *server) do(ctx context.Context, queue string, ops ...workqueue.Op) (*call, error) {
	d, err := s.queue(ctx, queue)
	if err != nil {
		return nil, err
	}
	return d.do(ctx, ops...)
}

func (s *server) Get(ctx context.Context, r *queuev1.GetRequest) (*queuev1.GetResponse, error) {
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
	ss, err := s.sessions.get(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	leases, shut, err := s.get(ctx, d, ss, max(int(r.GetMaxItems()), 1), leaseFor, wait)
	if err != nil {
		return nil, err
	}
	if n := within(leases); n < len(leases) { // the caller could not receive the rest
		s.giveBack(d, ss, leases[n:])
		leases = leases[:n]
	}
	return &queuev1.GetResponse{Leases: leases, ShutDown: shut, Generation: s.engine.Generation()}, nil
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

func (s *server) Len(ctx context.Context, r *queuev1.LenRequest) (*queuev1.LenResponse, error) {
	c := &checks{}
	c.queue("queue", r.GetQueue())
	if err := c.err(); err != nil {
		return nil, err
	}
	_, st, err := s.status(ctx, r.GetQueue())
	if err != nil {
		return nil, err
	}
	return &queuev1.LenResponse{Counts: counts(st.Counts)}, nil
}

func (s *server) CloseQueue(ctx context.Context, r *queuev1.CloseQueueRequest) (*queuev1.CloseQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpClose); err != nil {
		return nil, err
	}
	return &queuev1.CloseQueueResponse{}, nil
}

func (s *server) OpenQueue(ctx context.Context, r *queuev1.OpenQueueRequest) (*queuev1.OpenQueueResponse, error) {
	if err := s.gate(ctx, r.GetQueue(), workqueue.OpOpen); err != nil {
		return nil, err
	}
	return &queuev1.OpenQueueResponse{}, nil
}

func (s *server) gate(ctx context.Context, queue string, kind workqueue.OpKind) error {
	c := &checks{}
	c.queue("queue", queue)
	if err := c.err(); err != nil {
		return err
	}
	_, err := s.do(ctx, queue, workqueue.Op{Kind: kind})
	return err
}

func (s *server) ConfigureQueue(ctx context.Context, r *queuev1.ConfigureQueueRequest) (*queuev1.ConfigureQueueResponse, error) {
	c := &checks{}
	in := r.GetConfig()
	name := in.GetName()
	c.queue("config.name", name)
	cfg := workqueue.Config{Partitions: int(in.GetPartitions()), MaxRetries: int(max(min(in.GetMaxRetries(), 1<<31), -1))}
	cfg.LeaseFor = c.duration("config.lease_duration", in.GetLeaseDuration(), time.Hour)
	cfg.BarrierRetention = c.duration("config.barrier_retention", in.GetBarrierRetention(), 24*time.Hour)
	if in.GetRateLimiter() != nil {
		cfg.Limiter = new(c.limiterIn("config.rate_limiter", in.GetRateLimiter(), 1))
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, configFaults(err)
	}
	q, created, err := s.engine.Configure(ctx, name, cfg)
	if err != nil {
		return nil, err
	}
	d, err := s.adopt(name, q)
	if err != nil {
		return nil, err
	}
	d.lookNow() // its turns take the new configuration
	return &queuev1.ConfigureQueueResponse{Config: configOut(name, q.Config()), Created: created, Generation: s.engine.Generation()}, nil
}

// configFaults names the fields of a configuration that core refused.
func configFaults(err error) error {
	var out []error
	var walk func(error)
	walk = func(err error) {
		if f, ok := err.(*workqueue.FieldError); ok { //nolint:errorlint // the tree is walked by hand
			out = append(out, rpc.InvalidField("config."+f.Field, f.Err))
			return
		}
		if j, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range j.Unwrap() {
				walk(e)
			}
		}
	}
	walk(err)
	return errors.Join(out...)
}

func (s *server) ListQueues(ctx context.Context, r *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	names, err := s.engine.Names(ctx)
	if err != nil {
		return nil, err
	}
	out := &queuev1.ListQueuesResponse{Engine: s.engine.Kind(), Generation: s.engine.Generation()}
	for _, n := range names {
		if !strings.HasPrefix(n, r.GetPrefix()) {
			continue
		}
		cfg, st, err := s.status(ctx, n)
		if errors.Is(err, engine.ErrNoQueue) {
			continue // named before it was made, or lost
		}
		if err != nil {
			return nil, err
		}
		q := &queuev1.QueueStatus{Config: configOut(n, cfg), Counts: counts(st.Counts), Closed: st.Closed}
		if st.OldestReady != 0 {
			q.OldestReady = span(max(st.Now-st.OldestReady, 0))
		}
		out.Queues = append(out.Queues, q)
	}
	return out, nil
}

func (s *server) Inspect(ctx context.Context, r *queuev1.InspectRequest) (*queuev1.InspectResponse, error) {
	c := &checks{}
	c.queue("queue", r.GetQueue())
	c.key("key", r.GetKey())
	if err := c.err(); err != nil {
		return nil, err
	}
	done, err := s.do(ctx, r.GetQueue(), workqueue.Op{Kind: workqueue.OpInspect, Key: r.GetKey()})
	if err != nil {
		return nil, err
	}
	return &queuev1.InspectResponse{Item: item(done.replies[0].Item)}, nil
}

func (s *server) ListItems(ctx context.Context, r *queuev1.ListItemsRequest) (*queuev1.ListItemsResponse, error) {
	c := &checks{}
	c.queue("queue", r.GetQueue())
	c.count("page_size", int(r.GetPageSize()), 0, maxPage)
	want, known := map[queuev1.State]workqueue.State{
		queuev1.State_STATE_UNSPECIFIED: workqueue.Idle, queuev1.State_STATE_READY: workqueue.Ready,
		queuev1.State_STATE_DELAYED: workqueue.Waiting, queuev1.State_STATE_PROCESSING: workqueue.Processing,
		queuev1.State_STATE_DIRTY: workqueue.Dirty, queuev1.State_STATE_DEAD: workqueue.Buried,
	}[r.GetState()]
	if !known {
		c.add("state", "%v cannot be listed", r.GetState())
	}
	cursor, err := base64.RawURLEncoding.DecodeString(r.GetPageToken())
	if err != nil {
		c.add("page_token", "not a token of this service")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	q, err := s.engine.Open(ctx, r.GetQueue())
	if err != nil {
		return nil, err
	}
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultPage
	}
	items, next, err := q.Partitions()[0].Items(ctx, want, string(cursor), size)
	if errors.Is(err, engine.ErrCursor) {
		return nil, rpc.InvalidField("page_token", err)
	}
	if err != nil {
		return nil, err
	}
	out := &queuev1.ListItemsResponse{NextPageToken: base64.RawURLEncoding.EncodeToString([]byte(next))}
	for i := range items {
		out.Items = append(out.Items, item(&items[i]))
	}
	return out, nil
}

func (s *server) SaveState(ctx context.Context, r *queuev1.SaveStateRequest) (*queuev1.SaveStateResponse, error) {
	c := &checks{}
	c.count("state", len(r.GetState()), 0, workqueue.MaxStateLen)
	st, err := s.fenced(ctx, c, r.GetQueue(), workqueue.Op{
		Kind: workqueue.OpSave, Key: r.GetKey(), Token: r.GetToken(), More: &workqueue.More{Data: r.GetState()},
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.SaveStateResponse{Status: st}, nil
}

func (s *server) Expect(ctx context.Context, r *queuev1.ExpectRequest) (*queuev1.ExpectResponse, error) {
	c := &checks{}
	c.owner("owner_uid", r.GetOwnerUid(), true)
	c.names("creations", r.GetCreations())
	c.names("deletions", r.GetDeletions())
	st, err := s.fenced(ctx, c, r.GetQueue(), workqueue.Op{
		Kind: workqueue.OpExpect, Key: r.GetKey(), Token: r.GetToken(),
		More: &workqueue.More{Owner: r.GetOwnerUid(), Creates: r.GetCreations(), Deletes: r.GetDeletions()},
	})
	if err != nil {
		return nil, err
	}
	return &queuev1.ExpectResponse{Status: st}, nil
}

// fenced runs one operation that only the lease's token may do.
func (s *server) fenced(ctx context.Context, c *checks, queue string, op workqueue.Op) (queuev1.SettleStatus, error) {
	c.queue("queue", queue)
	c.key("key", op.Key)
	c.token("token", op.Token)
	if err := c.err(); err != nil {
		return 0, err
	}
	done, err := s.do(ctx, queue, op)
	if err != nil {
		return 0, err
	}
	return settleStatus(done.replies[0].Status), nil
}

func (s *server) Observe(ctx context.Context, r *queuev1.ObserveRequest) (*queuev1.ObserveResponse, error) {
	c := &checks{}
	c.owner("owner_uid", r.GetOwnerUid(), false)
	c.names("creations", r.GetCreations())
	c.names("deletions", r.GetDeletions())
	left, err := s.observe(ctx, c, r.GetQueue(), r.GetKey(), &workqueue.More{Owner: r.GetOwnerUid(), Creates: r.GetCreations(), Deletes: r.GetDeletions()})
	return &queuev1.ObserveResponse{Expectations: left}, err
}

func (s *server) GetExpectations(ctx context.Context, r *queuev1.GetExpectationsRequest) (*queuev1.GetExpectationsResponse, error) {
	left, err := s.observe(ctx, &checks{}, r.GetQueue(), r.GetKey(), nil)
	return &queuev1.GetExpectationsResponse{Expectations: left}, err
}

func (s *server) observe(ctx context.Context, c *checks, queue, key string, seen *workqueue.More) (*queuev1.Expectations, error) {
	c.queue("queue", queue)
	c.key("key", key)
	if err := c.err(); err != nil {
		return nil, err
	}
	done, err := s.do(ctx, queue, workqueue.Op{Kind: workqueue.OpObserve, Key: key, More: seen})
	if err != nil {
		return nil, err
	}
	return expected(done.replies[0].Expect), nil
}

func (s *server) DeleteExpectations(ctx context.Context, r *queuev1.DeleteExpectationsRequest) (*queuev1.DeleteExpectationsResponse, error) {
	if _, err := s.eachKey(ctx, r.GetQueue(), []string{r.GetKey()}, workqueue.OpUnexpect); err != nil {
		return nil, err
	}
	return &queuev1.DeleteExpectationsResponse{}, nil
}

func (s *server) ShutDown(_ context.Context, r *queuev1.ShutDownRequest) (*queuev1.ShutDownResponse, error) {
	if _, err := s.shutDown(r.GetSessionId()); err != nil {
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
	ss, err := s.shutDown(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	left, err := ss.drained(ctx, timeout, s.stopping)
	if err != nil {
		return nil, err
	}
	return &queuev1.ShutDownWithDrainResponse{Remaining: int64(left)}, nil
}

func (s *server) ShuttingDown(_ context.Context, r *queuev1.ShuttingDownRequest) (*queuev1.ShuttingDownResponse, error) {
	c := &checks{}
	c.session("session_id", r.GetSessionId(), true)
	if err := c.err(); err != nil {
		return nil, err
	}
	return &queuev1.ShuttingDownResponse{ShuttingDown: s.sessions.find(r.GetSessionId()).shutDown()}, nil
}

func (s *server) Settle(ctx context.Context, r *queuev1.SettleRequest) (*queuev1.SettleResponse, error) {
	c := &checks{}
	c.session("session_id", r.GetSessionId(), true)
	plan := s.plan(c, r.GetSettlements())
	if err := c.err(); err != nil {
		return nil, err
	}
	ss, err := s.sessions.get(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	results := make(chan settled, 1)
	s.settle(ctx, ss, r.GetRequestId(), plan, func(out settled) {
		ended(out.freed, false)
		results <- out
	})
	select {
	case out := <-results:
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
	ss, err := s.sessions.get(r.GetSessionId())
	if err != nil {
		return nil, err
	}
	done := make(chan extension, 1)
	s.extend(ctx, ss, r.GetLeases(), 0, func(e extension) {
		ended(e.freed, false)
		done <- e
	})
	select {
	case e := <-done:
		if e.err != nil {
			return nil, e.err
		}
		return &queuev1.ExtendResponse{Extended: int64(len(e.kept)), Lost: e.lost, Remaining: durationpb.New(e.remaining)}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
