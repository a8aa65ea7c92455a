package rpc

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func TestAHostThatNobodyIsKnownFromOpensConnectionsAtARate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	stranger, known := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	s := newStrangers()
	open := func(host netip.Prefix, n int) (opened int) {
		for range n {
			if s.may(host, now) {
				opened++
			}
		}
		return opened
	}
	if n := open(stranger, 1000); n != strangerConnections {
		t.Errorf("%d connections at once, want %d", n, strangerConnections)
	}
	now = now.Add(time.Second)
	if n := open(stranger, 1000); n != strangerConnectionRate {
		t.Errorf("%d connections a second later, want %d", n, strangerConnectionRate)
	}
	s.greet(known, now)
	if n := open(known, 1000); n != 1000 {
		t.Errorf("%d connections of a known host", n)
	}
	s.greet(stranger, now) // somebody there has a name after all
	if n := open(stranger, 1000); n != 1000 {
		t.Errorf("%d connections of a host that has become known", n)
	}
	now = now.Add(knownFor)
	if n := open(known, 1000); n != strangerConnections {
		t.Errorf("%d connections of a host that nobody has called from for long", n)
	}
}

func TestAServerThatAsksNobodyForANameHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s, err := NewServer(ServerConfig{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.grpc.Stop()
	host := netip.MustParsePrefix("192.0.2.1/32")
	for range 10 * strangerConnections {
		if !s.gate.seats.strangers.may(host, time.Unix(1000, 0)) {
			t.Fatal("a connection is refused")
		}
	}
	ctx, end := s.gate.connect(t.Context(), 1)
	defer end()
	if ctx.Value(connectionKey{}).(*connection).stranger.Load() != nil {
		t.Error("a connection is a stranger's")
	}
}

func TestHostsOfStrangersAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	s := newStrangers()
	host := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
	}
	for i := range 2 * maxHosts {
		s.may(host(i), now)
		s.greet(host(3*maxHosts+i), now)
		now = now.Add(time.Millisecond)
	}
	if len(s.hosts.of) > maxHosts || len(s.known) > maxHosts {
		t.Errorf("%d strangers and %d known hosts are remembered, at most %d", len(s.hosts.of), len(s.known), maxHosts)
	}
}

func TestCallsOnAConnectionAreHeldUpUntilOneIsAuthorized(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := NewServer(ServerConfig{StreamWorkers: -1}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.gate.seats.strangers.everybody = false // as where callers have names
		ctx, end := s.gate.connect(t.Context(), 1)
		defer end()
		begin := func(n int) time.Duration {
			began := time.Now()
			for range n {
				if _, err := s.gate.pace(ctx, nil); err != nil {
					t.Fatal(err)
				}
			}
			return time.Since(began)
		}
		if took := begin(strangerCalls); took != 0 {
			t.Errorf("the first calls took %v", took)
		}
		if took, want := begin(100), 100*time.Second/strangerCallRate; took < want-strangerPause || took > want+strangerPause {
			t.Errorf("100 more took %v, want %v", took, want)
		}
		held := make(chan time.Duration, 1)
		go func() { held <- begin(1) }()
		synctest.Wait()
		s.gate.authorized(ctx.Value(connectionKey{}).(*connection))
		if took := <-held; took != 0 {
			t.Errorf("a call that waited when another was authorized took %v", took)
		}
		if took := begin(1000); took != 0 {
			t.Errorf("calls of a known caller took %v", took)
		}
	})
}
