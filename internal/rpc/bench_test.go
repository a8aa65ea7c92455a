package rpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// BenchmarkUnary shows what the server's interceptors and handlers cost, beside
// a bare gRPC server called by the same bare client.
func BenchmarkUnary(b *testing.B) {
	e := &echo{call: func(context.Context, string) error { return nil }}
	b.Run("bare", func(b *testing.B) {
		srv := grpc.NewServer()
		srv.RegisterService(&echoDesc, e)
		lis := bufconn.Listen(1 << 20)
		done := make(chan error, 1)
		go func() { done <- srv.Serve(lis) }()
		calls(b, lis)
		srv.Stop()
		<-done
	})
	b.Run("ours", func(b *testing.B) {
		srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{})
		if err != nil {
			b.Fatal(err)
		}
		srv.RegisterService(&echoDesc, e)
		lis := bufconn.Listen(1 << 20)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx, lis) }()
		calls(b, lis)
		cancel()
		<-done
	})
}

func calls(b *testing.B, lis *bufconn.Listener) {
	b.Helper()
	conn, err := grpc.NewClient("passthrough:///b", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := conn.Invoke(b.Context(), "/test.Echo/Call", wrapperspb.String("x"), &emptypb.Empty{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
