package wire

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/message"
	"github.com/deltaplane/deltaplane/services/indexer/read"
	"github.com/deltaplane/deltaplane/services/indexer/watch"
)

// server is the IndexService. Methods whose answers are stored bytes return
// frames and are not part of the generated interface; serviceDesc calls them.
type server struct {
	indexv1.UnimplementedIndexServiceServer

	cfg         Config
	collections *follow.Collections
	reader      *read.Reader
	watches     *watch.Watches
	waits       *consistency.Waits
	gate        grant.Gate
	requests    *limit.Quota // bytes that requests hold while they wait
	metrics     *metrics
	slog        *slog.Logger
	rpc         *rpc.Server
}

// Config bounds calls, and says what is told of the process; see indexer.Config.
type Config struct {
	MaxQueryCalls, MaxIndexes int
	StaleAfter                time.Duration
	Replica                   string
}

// Parts are what calls are answered from.
type Parts struct {
	Collections *follow.Collections
	Reader      *read.Reader
	Watches     *watch.Watches
	Waits       *consistency.Waits
	Gate        grant.Gate
	Requests    *limit.Quota
	Slog        *slog.Logger
	Registry    prometheus.Registerer
}

// Register has srv serve the IndexService.
func Register(cfg Config, p Parts, srv *rpc.Server) error {
	_, err := newServer(cfg, p, srv)
	return err
}

func newServer(cfg Config, p Parts, srv *rpc.Server) (*server, error) {
	s := &server{
		cfg: cfg, collections: p.Collections, reader: p.Reader, watches: p.Watches, waits: p.Waits, gate: p.Gate, requests: p.Requests, slog: p.Slog, rpc: srv,
	}
	var err error
	if s.metrics, err = newMetrics(p.Registry, p.Requests); err != nil {
		return nil, err
	}
	srv.RegisterService(&serviceDesc, s)
	return s, nil
}

func (s *server) get(ctx context.Context, req *indexv1.GetRequest) (*message.Writer, error) {
	return s.reader.Get(ctx, req)
}

func (s *server) batchGet(ctx context.Context, req *indexv1.BatchGetRequest) (*message.Writer, error) {
	return s.reader.BatchGet(ctx, req)
}

func (s *server) list(ctx context.Context, req *indexv1.ListRequest) (*message.Writer, error) {
	return s.reader.List(ctx, req)
}

func (s *server) byIndex(ctx context.Context, req *indexv1.ByIndexRequest) (*message.Writer, error) {
	return s.reader.ByIndex(ctx, req)
}

// byExample is the method Index.
func (s *server) byExample(ctx context.Context, req *indexv1.IndexRequest) (*message.Writer, error) {
	return s.reader.ByExample(ctx, req)
}

// IndexKeys returns the keys under one value, sorted.
func (s *server) IndexKeys(ctx context.Context, req *indexv1.IndexKeysRequest) (*indexv1.IndexKeysResponse, error) {
	return s.reader.IndexKeys(ctx, req)
}

// ListIndexFuncValues returns a page of the values of an index.
func (s *server) ListIndexFuncValues(ctx context.Context, req *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	return s.reader.ListIndexFuncValues(ctx, req)
}

// Count returns how many objects match.
func (s *server) Count(ctx context.Context, req *indexv1.CountRequest) (*indexv1.CountResponse, error) {
	return s.reader.Count(ctx, req)
}

// WaitForRevision answers when every revision asked for has been reached.
func (s *server) WaitForRevision(ctx context.Context, req *indexv1.WaitForRevisionRequest) (*indexv1.WaitForRevisionResponse, error) {
	return s.reader.WaitForRevision(ctx, req)
}

// Watch streams the initial state, a marker, and what happens after it.
func (s *server) Watch(req *indexv1.WatchRequest, stream grpc.ServerStreamingServer[indexv1.WatchResponse]) error {
	return s.watches.Watch(req, stream)
}

// serviceDesc is the generated description with the hot methods replaced by
// ones that read their requests themselves and answer messages being built.
var serviceDesc = func() grpc.ServiceDesc {
	hot := map[string]grpc.MethodHandler{
		"Get":      unary(indexv1.IndexService_Get_FullMethodName, newGetRequest, (*server).get),
		"BatchGet": unary(indexv1.IndexService_BatchGet_FullMethodName, newPlain[indexv1.BatchGetRequest], (*server).batchGet),
		"List":     unary(indexv1.IndexService_List_FullMethodName, newPlain[indexv1.ListRequest], (*server).list),
		"ByIndex":  unary(indexv1.IndexService_ByIndex_FullMethodName, newByIndexRequest, (*server).byIndex),
		"Index":    unary(indexv1.IndexService_Index_FullMethodName, newPlain[indexv1.IndexRequest], (*server).byExample),
		// The answers of these are counted too, while they are sent.
		"IndexKeys":           unary(indexv1.IndexService_IndexKeys_FullMethodName, newPlain[indexv1.IndexKeysRequest], generated((*server).IndexKeys)),
		"ListIndexFuncValues": unary(indexv1.IndexService_ListIndexFuncValues_FullMethodName, newPlain[indexv1.ListIndexFuncValuesRequest], generated((*server).ListIndexFuncValues)),
		"ListIndexers":        unary(indexv1.IndexService_ListIndexers_FullMethodName, newPlain[indexv1.ListIndexersRequest], generated((*server).ListIndexers)),
		"Count":               unary(indexv1.IndexService_Count_FullMethodName, newPlain[indexv1.CountRequest], generated((*server).Count)),
		"ListCollections":     unary(indexv1.IndexService_ListCollections_FullMethodName, newPlain[indexv1.ListCollectionsRequest], generated((*server).ListCollections)),
		"WaitForRevision":     unary(indexv1.IndexService_WaitForRevision_FullMethodName, newPlain[indexv1.WaitForRevisionRequest], generated((*server).WaitForRevision)),
	}
	desc := indexv1.IndexService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		if h, ok := hot[m.MethodName]; ok {
			desc.Methods[i].Handler = h
		}
	}
	return desc
}()

// request is a message, and where it comes from.
type request[M any] interface {
	// target is what the codec decodes into.
	target() any
	message() *M
	// release ends the use of the message and its strings.
	release()
}

// plain is a request that generated code reads.
type plain[M any] struct{ m M }

func newPlain[M any]() *plain[M] { return new(plain[M]) }

func (p *plain[M]) target() any { return &p.m }
func (p *plain[M]) message() *M { return &p.m }
func (p *plain[M]) release()    {}

// unary is what protoc-gen-go-grpc generates for a method, but for the types of
// request and answer. After an error the request is left to the collector: the
// error may hold its strings.
func unary[R request[M], M any](name string, fresh func() R, call func(*server, context.Context, *M) (*message.Writer, error)) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		req := fresh()
		if err := dec(req.target()); err != nil {
			return nil, err
		}
		handle := func(ctx context.Context, _ any) (any, error) {
			s := srv.(*server)
			o, err := call(s, ctx, req.message())
			if err != nil {
				return nil, err
			}
			if err := s.charge(ctx, o, streamCost); err != nil {
				o.Free()
				return nil, err
			}
			req.release()
			return o, nil
		}
		if interceptor == nil {
			return handle(ctx, req)
		}
		return interceptor(ctx, req, &grpc.UnaryServerInfo{Server: srv, FullMethod: name}, handle)
	}
}
