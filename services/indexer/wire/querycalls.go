package wire

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// The calls of a QueryRequest, by their field; the answers have the same.
const (
	queryGet = 2 + iota
	queryBatchGet
	queryList
	queryByIndex
	queryIndex
	queryIndexKeys
	queryListValues
	queryCount
	queryWaitForRevision
)

var queryNames = [queryFailed]string{
	0: "none", queryGet: "get", queryBatchGet: "batch_get", queryList: "list", queryByIndex: "by_index", queryIndex: "index",
	queryIndexKeys: "index_keys", queryListValues: "list_index_func_values", queryCount: "count", queryWaitForRevision: "wait_for_revision",
}

// answeredBy resolves the counters of answers, since asking a vector costs more
// than some calls.
func answeredBy(queries *prometheus.CounterVec) (list [queryFailed]prometheus.Counter) {
	for kind, name := range queryNames {
		if name != "" {
			list[kind] = queries.WithLabelValues(name, codes.OK.String())
		}
	}
	return list
}

// queryCalls read and begin the calls. What they return has still to run; nil
// when the answer has been sent.
var queryCalls = [queryFailed]func(*querier, *queryRequest) (laterCall, error){
	queryGet:      starter(newGetRequest, (*server).get, func(r *getRequest) bool { return !r.seldom }),
	queryBatchGet: starter(newPlain[indexv1.BatchGetRequest], (*server).batchGet, smallBatch),
	queryList:     starter(newPlain[indexv1.ListRequest], (*server).list, nil),
	queryByIndex:  starter(newByIndexRequest, (*server).byIndex, func(r *byIndexRequest) bool { return !r.seldom }),
	queryIndex:    starter(newPlain[indexv1.IndexRequest], (*server).byExample, nil),
	queryIndexKeys: starter(newPlain[indexv1.IndexKeysRequest], generated((*server).IndexKeys),
		func(*plain[indexv1.IndexKeysRequest]) bool { return true }),
	queryListValues:      starter(newPlain[indexv1.ListIndexFuncValuesRequest], generated((*server).ListIndexFuncValues), nil),
	queryCount:           starter(newPlain[indexv1.CountRequest], generated((*server).Count), smallCount),
	queryWaitForRevision: starter(newPlain[indexv1.WaitForRevisionRequest], generated((*server).WaitForRevision), nil),
}

func smallBatch(r *plain[indexv1.BatchGetRequest]) bool {
	return len(r.m.GetKeys()) <= 100 && r.m.GetFieldMask() == nil && r.m.GetView() != indexv1.View_VIEW_METADATA
}

func smallCount(r *plain[indexv1.CountRequest]) bool {
	return r.m.GetLabelSelector() == "" && r.m.GetFieldSelector() == "" && len(r.m.GetNamespaces()) == 0 && r.m.GetNamespace() == ""
}

// starter makes a call. Those that are small are tried at once, by the
// goroutine that reads.
func starter[R request[M], M any](
	fresh func() R, call func(*server, context.Context, *M) (*message.Writer, error), small func(R) bool,
) func(*querier, *queryRequest) (laterCall, error) {
	return func(q *querier, in *queryRequest) (laterCall, error) {
		req := fresh()
		if err := decodeCall(in.call, req.target()); err != nil {
			return nil, rpc.InvalidField(queryNames[in.kind], err)
		}
		if small != nil && small(req) {
			o, err := guarded(q.instant, q.s, req.message(), call)
			if !errors.Is(err, errWouldWait) {
				q.answer(in.tag, in.kind, o, err)
				if err == nil {
					req.release()
				}
				return nil, nil
			}
		}
		return func(ctx context.Context) (*message.Writer, error) { return guarded(ctx, q.s, req.message(), call) }, nil
	}
}

var errNotMessage = errors.New("not a message")

func decodeCall(data []byte, into any) error {
	if d, ok := into.(decoder); ok {
		return d.decode(data)
	}
	m, ok := into.(proto.Message)
	if !ok {
		return errNotMessage
	}
	return proto.Unmarshal(data, m)
}

// guarded makes an error of a panic: one call must not end the others.
func guarded[M any](ctx context.Context, s *server, m *M, call func(*server, context.Context, *M) (*message.Writer, error)) (o *message.Writer, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.slog.LogAttrs(ctx, slog.LevelError, "query panicked", slog.Any("panic", cause), slog.String("stack", string(debug.Stack())))
			o, err = nil, errPanicked
		}
	}()
	return call(s, ctx, m)
}

var errPanicked = errors.New("call panicked")

// generated adapts a method whose answer generated code writes.
func generated[Req any, Resp proto.Message](call func(*server, context.Context, *Req) (Resp, error)) func(*server, context.Context, *Req) (*message.Writer, error) {
	return func(s *server, ctx context.Context, req *Req) (*message.Writer, error) {
		resp, err := call(s, ctx, req)
		if err != nil {
			return nil, err
		}
		o := message.New()
		if err := o.Message(resp); err != nil {
			o.Free()
			return nil, err
		}
		return o, nil
	}
}
