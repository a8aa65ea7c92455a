package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/message"
	"github.com/deltaplane/deltaplane/services/indexer/read"
)

// maxAnswers is how many answers of one stream may be in the making, or wait
// for their turn to be sent, beside the one that is being sent: a reader that
// does not read costs no more than that.
const maxAnswers = 8

// querier serves one Query stream. Small calls that need not wait are answered
// by the goroutine that reads; each other call has a goroutine of its own.
type querier struct {
	s       *server
	stream  grpc.ServerStream
	instant context.Context // of calls that must not wait
	slots   chan struct{}   // one for each call with a goroutine
	answers chan struct{}   // one for each answer in the making
	last    chan struct{}   // one for an error beyond what may be held
	sending sync.Mutex

	mu       sync.Mutex // guards the rest
	idle     sync.Cond  // under has become zero
	under    int        // calls under way, of either kind
	open     map[uint64]*queryCall
	draining bool // no call begins any more; each is instructed to go elsewhere
	mute     bool // the stream has failed: what is made is not sent
	closed   bool // nothing is sent any more
}

// queryCall is a call that has a goroutine.
type queryCall struct {
	tag       uint64
	kind      protowire.Number
	give      context.CancelFunc
	free      func() // gives back the memory it was counted for
	cancelled bool   // by the client; guarded by the querier
}

// Query answers tagged calls until the client has closed its side and all were
// answered, or the server or the connection is about to go away.
func (s *server) Query(stream grpc.BidiStreamingServer[indexv1.QueryRequest, indexv1.QueryResponse]) error {
	ctx := stream.Context()
	q := &querier{
		s: s, stream: stream, instant: nonBlocking{ctx}, slots: make(chan struct{}, s.cfg.MaxQueryCalls),
		answers: make(chan struct{}, maxAnswers), last: make(chan struct{}, 1), open: map[uint64]*queryCall{},
	}
	q.idle.L = &q.mu
	var old <-chan time.Time
	if first, _ := s.rpc.Aging(ctx); first > 0 {
		timer := time.NewTimer(first)
		defer timer.Stop()
		old = timer.C
	}
	ended := make(chan error, 1)
	go func() { ended <- q.read(ctx) }()
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.waits.Stopping:
		err = fault.New(fault.ErrStopping, "ask another replica what was not answered")
	case <-old:
		err = fault.New(fault.ErrStopping, "the connection is old; ask on another what was not answered")
	}
	q.drain(err != nil && !errors.Is(err, fault.ErrStopping))
	return err
}

// drain waits for the answers of the calls under way; abandon ends those.
func (q *querier) drain(abandon bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.draining, q.mute = true, abandon
	if abandon {
		for _, c := range q.open {
			c.give()
		}
	}
	for q.under > 0 {
		q.idle.Wait()
	}
	q.closed = true
}

// read takes requests until the client ends or breaks the stream.
func (q *querier) read(ctx context.Context) error {
	var req queryRequest
	for {
		err := q.stream.RecvMsg(&req)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if req.kind == queryCancel && !req.several {
			q.cancel(req.cancel)
			continue
		}
		if !q.begin() {
			return nil // its closer tells the client
		}
		err = q.take(ctx, &req)
		q.end()
		if err != nil {
			return err
		}
	}
}

// begin counts a call; false when nothing may be sent any more.
func (q *querier) begin() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.under++
	return true
}

func (q *querier) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.under--; q.under == 0 && q.draining {
		q.idle.Broadcast()
	}
}

func (q *querier) cancel(tag uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.open[tag]; c != nil {
		c.cancelled = true
		c.give()
	}
}

// take answers a request, or sees to it that it will be. An error ends the
// stream.
func (q *querier) take(ctx context.Context, req *queryRequest) error {
	if req.kind == 0 {
		q.fail(req.tag, 0, rpc.InvalidArgument("call", "is required"))
		return nil
	}
	if req.several {
		q.fail(req.tag, 0, rpc.InvalidArgument("call", "is given more than once"))
		return nil
	}
	q.mu.Lock()
	_, twice := q.open[req.tag]
	draining := q.draining
	q.mu.Unlock()
	if twice { // an answer could not be distinguished from the other's
		return rpc.InvalidArgument("tag", fmt.Sprintf("%d is that of a call still under way", req.tag))
	}
	if draining {
		q.fail(req.tag, req.kind, fault.New(fault.ErrStopping, "ask on another stream"))
		return nil
	}
	timeout, err := queryWait(req.timeout)
	if err != nil {
		q.fail(req.tag, req.kind, err)
		return nil
	}
	later, err := queryCalls[req.kind](q, req)
	if err != nil || later == nil {
		return err
	}
	free, err := q.s.requests.Hold(rpc.Client(ctx), callCost+3*len(req.call), "calls of Query streams wait")
	if err != nil {
		q.fail(req.tag, req.kind, err)
		return nil
	}
	select {
	case q.slots <- struct{}{}:
	case <-ctx.Done():
		free()
		return ctx.Err()
	}
	c := &queryCall{tag: req.tag, kind: req.kind, free: free}
	if timeout > 0 {
		ctx, c.give = context.WithTimeout(ctx, timeout)
	} else {
		ctx, c.give = context.WithCancel(ctx)
	}
	q.mu.Lock()
	q.open[c.tag] = c
	q.under++
	q.mu.Unlock()
	go q.run(ctx, c, later)
	return nil
}

func queryWait(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, rpc.InvalidField("timeout", err)
	}
	if d.AsDuration() < 0 {
		return 0, rpc.InvalidArgument("timeout", fmt.Sprintf("%v is negative", d.AsDuration()))
	}
	return d.AsDuration(), nil
}

// laterCall makes the answer of a call that may wait.
type laterCall func(ctx context.Context) (*message.Writer, error)

// run answers a call that may wait.
func (q *querier) run(ctx context.Context, c *queryCall, later laterCall) {
	defer q.end()
	defer c.free()
	defer func() { <-q.slots }()
	defer c.give()
	var o *message.Writer
	var err error
	if c.kind == queryWaitForRevision { // has a small answer, and waits for all of its time
		o, err = later(ctx)
	} else {
		p := blocking{ctx, q.answers}
		p.Resume()
		defer func() { _ = p.Pause() }()
		if err = ctx.Err(); err == nil {
			o, err = later(p)
		}
	}
	q.mu.Lock()
	if c.cancelled && err != nil {
		err = context.Canceled
	}
	delete(q.open, c.tag)
	mute := q.mute
	q.mu.Unlock()
	if !mute {
		q.answer(c.tag, c.kind, o, err)
	}
}

// nonBlocking is the context of a call that gives up rather than wait.
type nonBlocking struct{ context.Context }

var errWouldWait = errors.New("would wait")

func (nonBlocking) Pause() error { return errWouldWait }
func (nonBlocking) Resume()      {}

// blocking is the context of a call that holds a place among the answers in the
// making, but while it waits.
type blocking struct {
	context.Context
	answers chan struct{}
}

func (p blocking) Pause() error { <-p.answers; return nil }
func (p blocking) Resume()      { p.answers <- struct{}{} }

// answer sends what became of a call.
func (q *querier) answer(tag uint64, kind protowire.Number, o *message.Writer, err error) {
	if err != nil {
		q.fail(tag, kind, err)
		return
	}
	if err := q.s.charge(q.stream.Context(), o, 0); err != nil {
		o.Free()
		q.fail(tag, kind, err)
		return
	}
	q.s.metrics.answered[kind].Inc()
	q.send(tag, kind, o)
}

func (q *querier) send(tag uint64, field protowire.Number, o *message.Writer) {
	o.Wrap(tag, int(field))
	q.sending.Lock()
	defer q.sending.Unlock()
	_ = q.stream.SendMsg(o) // a stream that broke is found by its reader
}

// queryFailed is the field of an answer that is an error.
const queryFailed = 11

// fail answers a call with the status that it would have ended with by itself.
func (q *querier) fail(tag uint64, kind protowire.Number, err error) {
	st := rpc.Status(err, fault.Rules)
	e := &indexv1.QueryError{
		Code: int32(rpc.Code(st)), Message: read.Readable(rpc.Message(st)), Reason: rpc.Reason(st), Metadata: rpc.Info(st).GetMetadata(),
		FieldViolations: rpc.Violations(st),
	}
	if codes.Code(e.Code) == codes.Internal {
		q.s.slog.LogAttrs(q.stream.Context(), slog.LevelError, "query failed", slog.String("call", queryNames[kind]), telemetry.Err(err))
	}
	if d := rpc.RetryDelay(st); d > 0 {
		e.RetryDelay = durationpb.New(d)
	}
	q.s.metrics.queries.WithLabelValues(queryNames[kind], codes.Code(e.Code).String()).Inc()
	o := message.NewSmall()
	if o.Message(e) != nil { // text in it is not UTF-8
		o = message.NewSmall()
		_ = o.Message(&indexv1.QueryError{Code: e.Code, Reason: e.Reason})
	}
	if q.s.charge(q.stream.Context(), o, 0) != nil && !q.beyond(o) {
		return
	}
	q.send(tag, queryFailed, o)
}

// beyond sends an error for which there is no memory: one at a time, so a stream
// that is not read holds one of them. It reports false when the stream has ended.
func (q *querier) beyond(o *message.Writer) bool {
	select {
	case q.last <- struct{}{}:
		last := q.last // not q, through whose stream the transport holds o
		o.Lease.After = func() { <-last }
		return true
	case <-q.stream.Context().Done():
		return false
	}
}
