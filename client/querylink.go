package client

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// queryLink is one Query stream. One goroutine sends and one receives, until
// the stream ends.
type queryLink struct {
	ready chan struct{} // closed when the stream is open, or will not be
	out   chan []byte
	ended chan struct{} // closed when nothing will be received any more
	place rpc.Place     // of the stream

	mu      sync.Mutex // guards the rest
	calls   map[uint64]chan queryAnswer
	leaving bool // takes no new calls
	err     error
}

// queryAnswer is the answer to a call, or how its stream ended.
type queryAnswer struct {
	kind protowire.Number
	body []byte
	err  error
}

// queryFailedField is the field of an answer that is an error.
const queryFailedField = 11

func newQueryLink(q *Query) *queryLink {
	l := &queryLink{ready: make(chan struct{}), out: make(chan []byte, 64), ended: make(chan struct{}), calls: map[uint64]chan queryAnswer{}}
	go l.run(q)
	return l
}

// run opens the stream and receives until it ends.
func (l *queryLink) run(q *Query) {
	ctx, cancel := context.WithCancel(q.ctx)
	defer cancel()
	s, err := q.conn.NewStream(l.place.Call(ctx), &indexv1.IndexService_ServiceDesc.Streams[queryStream], indexv1.IndexService_Query_FullMethodName, grpc.ForceCodec(queryCodec{}))
	if err == nil {
		var sender sync.WaitGroup
		sender.Go(func() { l.send(s) })
		defer sender.Wait()
		close(l.ready)
		err = l.receive(s)
		cancel() // so that the sender is not held up
	}
	q.ended(l, err) // first: who notices the end asks for its reason
	l.mu.Lock()
	l.leaving, l.err = true, err
	for tag, c := range l.calls {
		c <- queryAnswer{err: err}
		delete(l.calls, tag)
	}
	l.mu.Unlock()
	close(l.ended)
	if s == nil {
		close(l.ready)
	}
}

// queryStream is where Query stands among the streams of the service.
var queryStream = func() int {
	for i, s := range indexv1.IndexService_ServiceDesc.Streams {
		if s.StreamName == "Query" {
			return i
		}
	}
	return 0
}()

func (l *queryLink) send(s grpc.ClientStream) {
	for {
		select {
		case b := <-l.out:
			if s.SendMsg(&queryFrame{b}) != nil {
				return // the receiver learns why
			}
		case <-l.ended:
			return
		}
	}
}

func (l *queryLink) receive(s grpc.ClientStream) error {
	for {
		var f queryFrame
		if err := s.RecvMsg(&f); errors.Is(err, io.EOF) {
			return status.Error(codes.Unavailable, "client: the server ended the query stream")
		} else if err != nil {
			return err
		}
		tag, a, err := f.answer()
		if err != nil {
			return err
		}
		l.mu.Lock()
		c := l.calls[tag]
		delete(l.calls, tag)
		l.mu.Unlock()
		if c != nil { // else the caller has given up
			c <- a
		}
	}
}

// left reports whether the link takes no new calls.
func (l *queryLink) left() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving
}

// enter registers a call; nothing when the link is being left. A link that could
// not be opened fails it.
func (l *queryLink) enter(tag uint64) (<-chan queryAnswer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, l.err
	}
	if l.leaving {
		return nil, nil
	}
	c := make(chan queryAnswer, 1)
	l.calls[tag] = c
	return c, nil
}

// leave forgets a call; false when it was answered already.
func (l *queryLink) leave(tag uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, waiting := l.calls[tag]
	delete(l.calls, tag)
	return waiting
}

// put hands a message to the sender.
func (l *queryLink) put(ctx context.Context, b []byte) error {
	select {
	case l.out <- b:
		return nil
	case <-l.ended: // the answer says why
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// cancelCall tells the server that nobody waits any more, unless that would
// have to wait itself.
func (l *queryLink) cancelCall(tag uint64) {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 11, protowire.VarintType), tag)
	select {
	case l.out <- b:
	default:
	}
}

// read turns an answer into what a single call would have returned.
func (a queryAnswer) read(l *queryLink, kind protowire.Number, into proto.Message) error {
	switch {
	case a.err != nil:
		return a.err
	case a.kind == kind:
		if err := proto.Unmarshal(a.body, into); err != nil {
			return errQueryAnswer(err.Error())
		}
		return nil
	case a.kind != queryFailedField:
		return errQueryAnswer("the answer is to another call")
	}
	var e indexv1.QueryError
	if err := proto.Unmarshal(a.body, &e); err != nil {
		return errQueryAnswer(err.Error())
	}
	if e.GetReason() == "STOPPING" { // the next calls go elsewhere
		l.mu.Lock()
		l.leaving = true
		l.mu.Unlock()
	}
	return queryStatus(&e)
}

// queryStatus is the status that a single call would have ended with.
func queryStatus(e *indexv1.QueryError) error {
	st := status.New(codes.Code(e.GetCode()), e.GetMessage())
	var details []protoadapt.MessageV1
	if e.GetReason() != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: e.GetReason(), Domain: rpc.Domain, Metadata: e.GetMetadata()})
	}
	if len(e.GetFieldViolations()) > 0 {
		bad := &errdetails.BadRequest{}
		for field, text := range e.GetFieldViolations() {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: field, Description: text})
		}
		details = append(details, bad)
	}
	if e.GetRetryDelay() != nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: e.GetRetryDelay()})
	}
	if with, err := st.WithDetails(details...); err == nil {
		st = with
	}
	if st.Code() == codes.OK {
		return errQueryAnswer("an error has no code")
	}
	return st.Err()
}

// queryFrame is a message of the stream as it is on the wire: callers encode
// and decode their own.
type queryFrame struct{ data []byte }

func (f *queryFrame) answer() (tag uint64, a queryAnswer, err error) {
	for b := f.data; len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, a, errQueryAnswer("malformed answer")
		}
		b = b[n:]
		switch {
		case num == 1 && typ == protowire.VarintType:
			tag, n = protowire.ConsumeVarint(b)
		case num > 1 && num <= queryFailedField && typ == protowire.BytesType:
			a.kind = num
			a.body, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return 0, a, errQueryAnswer("malformed answer")
		}
		b = b[n:]
	}
	return tag, a, nil
}

// queryCodec passes frames through.
type queryCodec struct{}

// Name implements encoding.Codec.
func (queryCodec) Name() string { return "proto" }

// Marshal implements encoding.Codec.
func (queryCodec) Marshal(v any) ([]byte, error) {
	f, ok := v.(*queryFrame)
	if !ok {
		return nil, errQueryAnswer("not a frame")
	}
	return f.data, nil
}

// Unmarshal implements encoding.Codec. The data is the frame's to keep.
func (queryCodec) Unmarshal(data []byte, v any) error {
	f, ok := v.(*queryFrame)
	if !ok {
		return errQueryAnswer("not a frame")
	}
	f.data = data
	return nil
}
