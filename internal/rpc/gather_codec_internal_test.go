package rpc

import (
	"bytes"
	"context"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A codec that uses its buffers again would give one client what is another's.
func TestAnswersOfTheDefaultCodecAreNotMixedUp(t *testing.T) {
	t.Parallel()
	srv, err := NewServer(ServerConfig{}, Options{Gather: always})
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Get", Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			v := &wrapperspb.UInt32Value{}
			err := dec(v)
			return wrapperspb.Bytes(bytes.Repeat([]byte{byte(v.GetValue())}, 2*LentIn)), err
		}}},
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Run(ctx) }()
	addr, err := srv.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	client, err := Dial(addr, DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for c := range uint32(32) {
		group.Go(func() error {
			for range 20 {
				got := &wrapperspb.BytesValue{}
				if err := client.Invoke(t.Context(), "/test.Echo/Get", wrapperspb.UInt32(c), got); err != nil {
					return err
				}
				if n := bytes.Count(got.GetValue(), []byte{byte(c)}); n != 2*LentIn {
					t.Errorf("%d bytes of another answer", 2*LentIn-n)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	client.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
