package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// Query carries the reads of an indexer on one stream, which costs the server a
// third of what single calls do. [NewIndex] uses one by itself while many reads are
// under way; a Query of one's own is for generated clients, and to read by stream
// always. It is a connection; whatever a stream does not carry (watches,
// administration) it passes on to the connection it was made on.
//
//	index := client.NewIndex(client.NewQuery(conn, client.QueryConfig{}))
//
// Answers and errors are those of single calls, and so is what is tried again:
// a call that was answered UNAVAILABLE, or whose stream broke. Streams are
// opened when needed, on any replica. Trace context does not travel on it, and
// call options make a call go by itself. A token that may call Query may read
// everything. It is safe for concurrent use; Close ends it.
type Query struct {
	conn  grpc.ClientConnInterface
	ctx   context.Context //nolint:containedctx // the life of the streams, which is not that of any call
	stop  context.CancelFunc
	slots chan struct{}

	mu     sync.Mutex // guards the rest
	link   *queryLink // for new calls; nil before the first
	tag    uint64
	single bool // the server takes no streams
}

// QueryConfig are the bounds of a [Query]; the zero value is the defaults.
type QueryConfig struct {
	// MaxCalls is how many calls may be under way; others wait. Default 256, which
	// is below what servers take.
	MaxCalls int
}

// NewQuery returns a connection that reads by stream. It opens nothing yet.
func NewQuery(conn grpc.ClientConnInterface, cfg QueryConfig) *Query {
	q := &Query{conn: conn, slots: make(chan struct{}, max(cmp.Or(cfg.MaxCalls, queryCalls), 1))}
	q.ctx, q.stop = context.WithCancel(context.Background()) //nolint:forbidigo // ends with Close
	return q
}

// Close ends the stream; calls under way fail with CANCELLED.
func (q *Query) Close() { q.stop() }

// queryKinds are the calls that a stream carries, by their field in a
// QueryRequest and its answer.
var queryKinds = map[string]protowire.Number{
	indexv1.IndexService_Get_FullMethodName:                 2,
	indexv1.IndexService_BatchGet_FullMethodName:            3,
	indexv1.IndexService_List_FullMethodName:                4,
	indexv1.IndexService_ByIndex_FullMethodName:             5,
	indexv1.IndexService_Index_FullMethodName:               6,
	indexv1.IndexService_IndexKeys_FullMethodName:           7,
	indexv1.IndexService_ListIndexFuncValues_FullMethodName: 8,
	indexv1.IndexService_Count_FullMethodName:               9,
	indexv1.IndexService_WaitForRevision_FullMethodName:     10,
}

// queryCalls are how many calls may be under way on a stream unless told.
const queryCalls = 256

// queryAttempts and the delays between them are what a connection of [Dial]
// does for single calls.
const (
	queryAttempts   = 4
	queryFirstDelay = 50 * time.Millisecond
	queryDelayMost  = time.Second
)

// Invoke implements grpc.ClientConnInterface.
func (q *Query) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	kind, ok := queryKinds[method]
	in, isIn := args.(proto.Message)
	out, isOut := reply.(proto.Message)
	if !ok || !isIn || !isOut || asks(opts) || q.singly() {
		return q.conn.Invoke(ctx, method, args, reply, opts...)
	}
	body, err := proto.Marshal(in)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	select {
	case q.slots <- struct{}{}:
		defer func() { <-q.slots }()
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-q.ctx.Done():
		return status.Error(codes.Canceled, "client: query is closed")
	}
	for attempt, delay := 1, queryFirstDelay; ; attempt++ {
		if q.apart(ctx) {
			return q.conn.Invoke(ctx, method, args, reply)
		}
		err := q.try(ctx, kind, body, out)
		switch {
		case refusesStreams(err) && q.singly():
			return q.conn.Invoke(ctx, method, args, reply)
		case rpc.Code(err) != codes.Unavailable || attempt == queryAttempts || ctx.Err() != nil:
			return err
		}
		timer := time.NewTimer(delay/2 + rand.N(delay/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		delay = min(3*delay, queryDelayMost)
	}
}

// asks reports whether call options ask for anything; generated clients always
// pass one that does not.
func asks(opts []grpc.CallOption) bool {
	for _, o := range opts {
		if _, ok := o.(grpc.StaticMethodCallOption); !ok {
			return true
		}
	}
	return false
}

// NewStream implements grpc.ClientConnInterface.
func (q *Query) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return q.conn.NewStream(ctx, desc, method, opts...)
}

func (q *Query) singly() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.single
}

// apart reports whether a call is for another replica than the one of the stream.
func (q *Query) apart(ctx context.Context) bool {
	q.mu.Lock()
	l := q.link
	q.mu.Unlock()
	return l != nil && rpc.Apart(ctx, &l.place)
}

// try makes a call once.
func (q *Query) try(ctx context.Context, kind protowire.Number, body []byte, into proto.Message) error {
	l, tag, answer, err := q.enter(ctx)
	if err != nil {
		return err
	}
	if p := rpc.PlaceOf(ctx); p != nil {
		p.Move(&l.place)
	}
	if err := l.put(ctx, queryMessage(ctx, tag, kind, body)); err != nil {
		l.leave(tag)
		return err
	}
	select {
	case a := <-answer:
		return a.read(l, kind, into)
	case <-ctx.Done():
		if l.leave(tag) {
			l.cancelCall(tag)
		}
		return status.FromContextError(ctx.Err()).Err()
	}
}

// enter registers a call with a stream, which it may have to open.
func (q *Query) enter(ctx context.Context) (*queryLink, uint64, <-chan queryAnswer, error) {
	for {
		q.mu.Lock()
		if q.ctx.Err() != nil {
			q.mu.Unlock()
			return nil, 0, nil, status.Error(codes.Canceled, "client: query is closed")
		}
		if q.link == nil || q.link.left() {
			q.link = newQueryLink(q)
		}
		l := q.link
		q.tag++
		tag := q.tag
		q.mu.Unlock()
		select {
		case <-l.ready:
		case <-ctx.Done():
			return nil, 0, nil, status.FromContextError(ctx.Err()).Err()
		}
		answer, err := l.enter(tag)
		if answer != nil || err != nil {
			return l, tag, answer, err
		}
	}
}

// refusesStreams reports whether a stream ended because the server knows none, or the
// caller may not open one; single calls may still be answered.
func refusesStreams(err error) bool {
	code := rpc.Code(err)
	return code == codes.Unimplemented || code == codes.PermissionDenied
}

// ended notes how a stream ended.
func (q *Query) ended(l *queryLink, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.link == l {
		q.link = nil
	}
	if refusesStreams(err) {
		q.single = true
	}
}

// queryMessage writes a QueryRequest around a call.
func queryMessage(ctx context.Context, tag uint64, kind protowire.Number, body []byte) []byte {
	b := make([]byte, 0, len(body)+48)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), tag)
	b = protowire.AppendBytes(protowire.AppendTag(b, kind, protowire.BytesType), body)
	if at, ok := ctx.Deadline(); ok {
		left := max(time.Until(at), time.Millisecond)
		var d []byte
		if s := left / time.Second; s > 0 {
			d = protowire.AppendVarint(protowire.AppendTag(d, 1, protowire.VarintType), uint64(s))
		}
		if n := left % time.Second; n > 0 {
			d = protowire.AppendVarint(protowire.AppendTag(d, 2, protowire.VarintType), uint64(n))
		}
		b = protowire.AppendBytes(protowire.AppendTag(b, 12, protowire.BytesType), d)
	}
	return b
}

// errQueryAnswer says that a server does not speak the contract.
func errQueryAnswer(what string) error {
	return status.Error(codes.Internal, fmt.Sprintf("client: query: %s", what))
}
