package load

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	EchoService = "deltaplane.bench.Echo"
	// EchoEmpty takes and returns an empty message: the baseline.
	EchoEmpty = "/" + EchoService + "/Empty"
	// EchoGet, EchoByIndex and EchoObjects decode the index service's requests
	// and return fixed bytes of the size of its answers: the ceiling. They decode
	// with generated code, as a service would that has no reader of its own: what
	// the indexer saves by having one is for its users, and counts.
	EchoGet     = "/" + EchoService + "/Get"
	EchoByIndex = "/" + EchoService + "/ByIndex"
	EchoObjects = "/" + EchoService + "/Objects"
	// EchoGetPieces and EchoObjectsPieces return the same bytes in as many
	// buffers as the index service does: one for each stored object, and what is
	// between them.
	EchoGetPieces     = "/" + EchoService + "/GetPieces"
	EchoObjectsPieces = "/" + EchoService + "/ObjectsPieces"
	// EchoObjectsNear returns the same pieces out of one buffer: what they take
	// beyond it is the transport's work on pieces, and not that they lie apart.
	EchoObjectsNear = "/" + EchoService + "/ObjectsNear"
)

// Echo holds the bytes that the sized methods answer with.
type Echo struct{ Get, ByIndex, Objects, GetPieces, ObjectsPieces, ObjectsNear *Answers }

// Answers are given in turn: as many different ones as the service itself gives,
// so that neither has its bytes in the processor's cache more than the other.
type Answers struct {
	All []*Wire
	at  atomic.Uint32
}

// OneAnswer answers every call with the same bytes.
func OneAnswer(w *Wire) *Answers { return &Answers{All: []*Wire{w}} }

func (a *Answers) next() *Wire { return a.All[int(a.at.Add(1))%len(a.All)] }

// StartEcho serves an echo on a free loopback port until ctx ends.
func StartEcho(ctx context.Context, e *Echo) (addr string, err error) {
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "echo", LogLevel: "warn"})
	if err != nil {
		return "", err
	}
	o := rpc.Options{Log: tel.Log, Registry: tel.Registry, Tracer: tel.Tracer, Extra: []grpc.ServerOption{serverCodec()}}
	srv, err := rpc.NewServer(rpc.ServerConfig{TLS: ServerTLS()}, o)
	if err != nil {
		return "", err
	}
	srv.RegisterService(e.desc(), e)
	lis, err := rpc.Listen(rpc.ServerConfig{})
	if err != nil {
		return "", err
	}
	srv.SetServing(EchoService, true)
	go func() { _ = srv.Serve(ctx, lis) }() // an echo that fails fails the calls that are made to it
	return lis.Addr().String(), nil
}

func (e *Echo) desc() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: EchoService,
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{EchoStreamDesc},
		Methods: []grpc.MethodDesc{
			echoMethod("Empty", func(*Echo) any { return &emptypb.Empty{} }, func() proto.Message { return &emptypb.Empty{} }),
			echoMethod("Get", func(e *Echo) any { return e.Get.next() }, func() proto.Message { return &indexv1.GetRequest{} }),
			echoMethod("ByIndex", func(e *Echo) any { return e.ByIndex.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("Objects", func(e *Echo) any { return e.Objects.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("GetPieces", func(e *Echo) any { return e.GetPieces.next() }, func() proto.Message { return &indexv1.GetRequest{} }),
			echoMethod("ObjectsPieces", func(e *Echo) any { return e.ObjectsPieces.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
			echoMethod("ObjectsNear", func(e *Echo) any { return e.ObjectsNear.next() }, func() proto.Message { return &indexv1.ByIndexRequest{} }),
		},
	}
}

func echoMethod(name string, answer func(*Echo) any, request func() proto.Message) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := request()
			if err := decode(in); err != nil {
				return nil, err
			}
			e, ok := srv.(*Echo)
			if !ok {
				return nil, fmt.Errorf("echo is a %T", srv)
			}
			handle := func(context.Context, any) (any, error) { return answer(e), nil }
			if interceptor == nil {
				return handle(ctx, in)
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{Server: srv, FullMethod: "/" + EchoService + "/" + name}, handle)
		},
	}
}

// EchoStreamDesc is the bidirectional method of the echo service: the bytes come back as they went.
var EchoStreamDesc = grpc.StreamDesc{
	StreamName: "Stream", ServerStreams: true, ClientStreams: true,
	Handler: func(_ any, s grpc.ServerStream) error {
		for {
			m := Wire{Data: make([]byte, 0, 256)}
			if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(&m); err != nil {
				return err
			}
		}
	},
}
