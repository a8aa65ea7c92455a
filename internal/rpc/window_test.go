package rpc_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// written counts what a connection's owner writes to it.
type written struct {
	net.Conn

	writes *atomic.Int64
}

func (w written) Write(b []byte) (int, error) {
	w.writes.Add(1)
	return w.Conn.Write(b)
}

func TestAReaderOfAStreamAnswersNothingPerMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const messages = 100
		next := make(chan struct{})
		e := &echo{stream: func(ss grpc.ServerStream) error {
			for range next {
				if err := ss.SendMsg(wrapperspb.String(strings.Repeat("x", 5<<10))); err != nil {
					return err
				}
			}
			return nil
		}}
		srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		srv.RegisterService(&echoDesc, e)
		lis := bufconn.Listen(1 << 20)
		var writes atomic.Int64
		conn, err := rpc.Dial("test.local", rpc.DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := lis.DialContext(ctx)
			return written{c, &writes}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx, lis) }()
		defer func() {
			conn.Close()
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Serve = %v", err)
			}
		}()
		defer close(next)
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Stream")
		if err != nil {
			t.Fatal(err)
		}
		before := int64(0)
		for i := range messages {
			next <- struct{}{}
			if err := s.RecvMsg(&wrapperspb.StringValue{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // whatever the message led to has been written
			if i == 9 {
				before = writes.Load()
			}
		}
		if got := writes.Load() - before; got > messages/10 {
			t.Errorf("the client wrote %d times while it read %d messages of 5 KB", got, messages-10)
		}
	})
}
