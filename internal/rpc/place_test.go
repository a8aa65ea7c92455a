package rpc_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// several is servers behind one name.
type several struct {
	conn  *grpc.ClientConn
	calls []atomic.Int64
	stop  []func()
	// last is the server of the last call whose text begins with "place".
	last atomic.Int64
}

func serveSeveral(t *testing.T, n int) *several {
	t.Helper()
	s := &several{calls: make([]atomic.Int64, n), stop: make([]func(), n)}
	var at []resolver.Address
	for i := range n {
		srv, err := rpc.NewServer(rpc.ServerConfig{}, rpc.Options{})
		if err != nil {
			t.Fatal(err)
		}
		srv.RegisterService(&echoDesc, &echo{call: func(_ context.Context, text string) error {
			s.calls[i].Add(1)
			if text == "place" {
				s.last.Store(int64(i))
			}
			return nil
		}})
		srv.SetServing("test.Echo", true)
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- srv.Serve(ctx, lis) }()
		s.stop[i] = sync.OnceFunc(func() { cancel(); <-done })
		t.Cleanup(s.stop[i])
		at = append(at, resolver.Address{Addr: lis.Addr().String()})
	}
	names := manual.NewBuilderWithScheme("several")
	names.InitialState(resolver.State{Addresses: at})
	conn, err := rpc.Dial("several:///test", rpc.DialConfig{Extra: []grpc.DialOption{grpc.WithResolvers(names)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.conn = conn
	for deadline := time.Now().Add(time.Minute); ; { // until all are connected
		missing := 0
		for i := range s.calls {
			if s.calls[i].Load() == 0 {
				missing++
			}
		}
		if missing == 0 {
			return s
		}
		if err := s.call(t.Context(), "plain"); time.Now().After(deadline) {
			t.Fatalf("call: %v; %d servers were not asked", err, missing)
		}
	}
}

func (s *several) call(ctx context.Context, text string) error {
	return s.conn.Invoke(ctx, "/test.Echo/Call", wrapperspb.String(text), &emptypb.Empty{})
}

func TestCallsReturnToTheirPlaceAmongOthers(t *testing.T) {
	t.Parallel()
	s := serveSeveral(t, 3)
	ctx, stop := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 2 { // they take turns of the round robin meanwhile
		others.Go(func() {
			for ctx.Err() == nil {
				if err := s.call(ctx, "plain"); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for range 5 {
		var place rpc.Place
		for n, first := 0, int64(0); n < 20; n++ {
			if err := s.call(place.Call(t.Context()), "place"); err != nil {
				t.Fatal(err)
			}
			switch at := s.last.Load(); {
			case n == 0:
				first = at
			case at != first:
				t.Fatalf("call %d went to server %d, the first to %d", n, at, first)
			}
		}
	}
	stop()
	others.Wait()
	for i := range s.calls {
		if s.calls[i].Load() < 10 {
			t.Errorf("server %d had %d calls: others are not spread", i, s.calls[i].Load())
		}
	}
}

func TestAPlaceThatIsGoneIsLeftForAnother(t *testing.T) {
	t.Parallel()
	s := serveSeveral(t, 2)
	var place rpc.Place
	if err := s.call(place.Call(t.Context()), "place"); err != nil {
		t.Fatal(err)
	}
	first := s.last.Load()
	s.stop[first]()
	for range 4 {
		if err := s.call(place.Call(t.Context()), "place"); err != nil {
			t.Fatal(err)
		}
		if at := s.last.Load(); at == first {
			t.Fatalf("server %d was called, which has stopped", at)
		}
	}
}

func TestAPlaceThatIsLeftIsAnyServer(t *testing.T) {
	t.Parallel()
	s := serveSeveral(t, 2)
	var place rpc.Place
	seen := map[int64]bool{}
	for range 4 {
		if err := s.call(place.Call(t.Context()), "place"); err != nil {
			t.Fatal(err)
		}
		seen[s.last.Load()] = true
		place.Leave()
	}
	if len(seen) != 2 {
		t.Errorf("calls that leave went to %v, want both servers", seen)
	}
}
