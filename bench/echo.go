package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// The echoes are what a call costs before anybody does anything for it: the
// same server builder with the same interceptors, metrics and codec as every
// service, and a handler that returns what it holds.
const (
	echoService = "deltaplane.bench.Echo"
	// echoEmpty takes and returns an empty message: the baseline.
	echoEmpty = "/" + echoService + "/Empty"
	// echoGet, echoByIndex and echoObjects decode the index service's requests
	// and return fixed bytes of the size of its answers: the ceiling. They decode
	// with generated code, as a service would that has no reader of its own: what
	// the indexer saves by having one is for its users, and counts.
	echoGet     = "/" + echoService + "/Get"
	echoByIndex = "/" + echoService + "/ByIndex"
	echoObjects = "/" + echoService + "/Objects"
	// echoGetPieces and echoObjectsPieces return the same bytes in as many
	// buffers as the index service does: one for each stored object, and what is
	// between them.
	echoGetPieces     = "/" + echoService + "/GetPieces"
	echoObjectsPieces = "/" + echoService + "/ObjectsPieces"
	// echoObjectsNear returns the same pieces out of one buffer: what they take
	// beyond it is the transport's work on pieces, and not that they lie apart.
	echoObjectsNear = "/" + echoService + "/ObjectsNear"
)

// echo holds the bytes that the sized methods answer with.
type echo struct{ get, byIndex, objects, getPieces, objectsPieces, objectsNear *answers }

// answers are given in turn: as many different ones as the service itself gives,
// so that neither has its bytes in the processor's cache more than the other.
type answers struct {
	all []*wire
	at  atomic.Uint32
}

func oneAnswer(w *wire) *answers { return &answers{all: []*wire{w}} }

func (a *answers) next() *wire { return a.all[int(a.at.Add(1))%len(a.all)] }

// startEcho serves an echo on a free loopback port until ctx ends.
func startEcho(ctx context.Context, e *echo) (addr string, err error) {
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "echo", LogLevel: "warn"})
	if err != nil {
		return "", err
	}
	o := rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Extra: []grpc.ServerOption{serverCodec()}}
	srv, err := rpc.NewServer(rpc.ServerConfig{}, o)
	if err != nil {
		return "", err
	}
	srv.RegisterService(e.desc(), e)
	lis, err := rpc.Listen(rpc.ServerConfig{})
	if err != nil {
		return "", err
	}
	srv.SetServing(echoService, true)
	go func() { _ = srv.Serve(ctx, lis) }() // an echo that fails fails the calls that are made to it
	return lis.Addr().String(), nil
}

func (e *echo) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: echoService,
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{echoStreamDesc},
		Methods: []grpc.MethodDesc{
			echoMethod("Empty", func(*echo) any { return &emptypb.Empty{} }, func() proto.Message { return &emptypb.Empty{} }),
			echoMethod("Get", func(e *echo) any { return e.get.next() }, func() proto.Message { return &indexv1.GetRequest{} }),
			echoMethod("ByIndex", func(e *echo) any { return e.byIndex.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("Objects", func(e *echo) any { return e.objects.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("GetPieces", func(e *echo) any { return e.getPieces.next() }, func() proto.Message { return &indexv1.GetRequest{} }),
			echoMethod("ObjectsPieces", func(e *echo) any { return e.objectsPieces.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("ObjectsNear", func(e *echo) any { return e.objectsNear.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
		},
	}
}

func echoMethod(name string, answer func(*echo) any, request func() proto.Message) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := request()
			if err := decode(in); err != nil {
				return nil, err
			}
			e, ok := srv.(*echo)
			if !ok {
				return nil, fmt.Errorf("echo is a %T", srv)
			}
			handle := func(context.Context, any) (any, error) { return answer(e), nil }
			if interceptor == nil {
				return handle(ctx, in)
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + echoService + "/" + name}, handle)
		},
	}
}
