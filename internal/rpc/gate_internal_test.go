package rpc

import (
	"context"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc/stats"
)

// BenchmarkAdmission shows what the limits cost a call; a unary call takes about 14 µs.
func BenchmarkAdmission(b *testing.B) {
	s, err := NewServer(ServerConfig{StreamWorkers: -1}, Options{})
	if err != nil {
		b.Fatal(err)
	}
	ctx := s.gate.TagConn(b.Context(), &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 5}})
	for range 8 { // a handler's context is about so deep
		ctx = context.WithValue(ctx, new(int), 0) //nolint:fatcontext // on purpose
	}
	for _, name := range []string{"", "a-token"} {
		b.Run("name="+name, func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					c, err := s.gate.call(ctx, name)
					if err != nil {
						b.Error(err)
						return
					}
					s.gate.done(c)
				}
			})
		})
	}
}

// connect is a new connection from a host; end is its end.
func (g *gate) connect(ctx context.Context, host byte) (conn context.Context, end func()) {
	conn = g.TagConn(ctx, &stats.ConnTagInfo{RemoteAddr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, host), Port: 5}})
	return conn, func() { g.HandleConn(conn, &stats.ConnEnd{}) }
}

// known is how many clients the gate remembers.
func (g *gate) known() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.clients)
}

func newTestGate(t *testing.T, cfg ServerConfig) *gate {
	t.Helper()
	s, err := NewServer(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return s.gate
}

// A client that reconnects has no fresh allowance while its old calls still run.
func TestCallsThatOutliveTheirConnectionStillCount(t *testing.T) {
	t.Parallel()
	g := newTestGate(t, ServerConfig{StreamWorkers: -1, MaxClientCalls: 1, MaxClientStreams: 1})
	for _, name := range []string{"", "a-token"} {
		first, end := g.connect(t.Context(), 1)
		c, err := g.call(first, name)
		if err != nil {
			t.Fatal(err)
		}
		_, leave, err := g.stream(first, name)
		if err != nil {
			t.Fatal(err)
		}
		end()
		if _, err := g.call(first, name); err == nil { // it was on its way when the connection ended
			t.Errorf("name %q: a late call of the connection that ended is admitted beside one that still runs", name)
		}
		second, end := g.connect(t.Context(), 1)
		if _, err := g.call(second, name); err == nil {
			t.Errorf("name %q: after a reconnect another call is admitted beside one that still runs", name)
		}
		if _, _, err := g.stream(second, name); err == nil {
			t.Errorf("name %q: after a reconnect another stream is admitted beside one that still runs", name)
		}
		g.done(c)
		leave()
		if c, err = g.call(second, name); err != nil {
			t.Errorf("name %q: when the old call has ended: %v", name, err)
		}
		end()
		if n := g.known(); n != 1 {
			t.Errorf("name %q: %d clients are known while one has a call, want 1", name, n)
		}
		g.done(c)
		if n := g.known(); n != 0 {
			t.Errorf("name %q: %d clients are known when all have ended, want 0", name, n)
		}
	}
}

// In any order of connections, calls and their ends the limit holds and every client is forgotten.
func TestTheLimitHoldsWhileConnectionsComeAndGo(t *testing.T) {
	t.Parallel()
	const limit = 3
	g := newTestGate(t, ServerConfig{StreamWorkers: -1, MaxClientCalls: limit})
	var under, admitted int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				conn, end := g.connect(t.Context(), 1)
				var calls sync.WaitGroup
				for range 2 {
					calls.Go(func() {
						c, err := g.call(conn, "")
						if err != nil {
							return
						}
						mu.Lock()
						under++
						admitted++
						if under > limit {
							t.Errorf("%d calls are under way, at most %d may be", under, limit)
						}
						mu.Unlock()
						mu.Lock()
						under--
						mu.Unlock()
						g.done(c)
					})
				}
				end()
				calls.Wait()
			}
		})
	}
	wg.Wait()
	if n := g.known(); n != 0 || admitted == 0 {
		t.Errorf("%d clients are known after the last connection and call (%d admitted), want 0", n, admitted)
	}
}
