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
	"google.golang.org/protobuf/types/known/emptypb"
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

// countWrites serves e, and returns a client and how often it has written. It is
// to be called in a bubble; stop ends both.
func countWrites(t *testing.T, e *echo) (conn *grpc.ClientConn, writes *atomic.Int64, stop func()) {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	srv.RegisterService(&echoDesc, e)
	lis := bufconn.Listen(1 << 20)
	writes = new(atomic.Int64)
	conn, err = rpc.Dial("test.local", rpc.DialConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := lis.DialContext(ctx)
		return written{c, writes}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, lis) }()
	return conn, writes, func() {
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve = %v", err)
		}
	}
}

func TestAReaderOfAStreamAnswersNothingPerMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const messages = 100
		next := make(chan struct{})
		conn, writes, stop := countWrites(t, &echo{stream: func(ss grpc.ServerStream) error {
			for range next {
				if err := ss.SendMsg(wrapperspb.String(strings.Repeat("x", 5<<10))); err != nil {
					return err
				}
			}
			return nil
		}})
		defer stop()
		defer close(next)
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/test.Echo/Stream")
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

func TestACallerAnswersNothingPerCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const calls = 100
		conn, writes, stop := countWrites(t, &echo{call: func(context.Context, string) error { return nil }})
		defer stop()
		before := int64(0)
		for i := range calls {
			if err := conn.Invoke(t.Context(), "/test.Echo/Call", wrapperspb.String("x"), &emptypb.Empty{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // whatever the call led to has been written
			if i == 9 {
				before = writes.Load()
			}
		}
		if got := writes.Load() - before; got > (calls-10)*3/2 { // one for each call
			t.Errorf("the client wrote %d times for %d calls", got, calls-10)
		}
	})
}
