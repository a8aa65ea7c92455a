package rpc

import (
	"context"
	"net/netip"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/tap"
)

// What a host may do from which no call has been authorized for knownFor, and a connection on which
// none has been: so much at once, and so much a second after that.
const (
	strangerConnections, strangerConnectionRate = 256, 10
	strangerRefusals, strangerRefusalRate       = 200, 20
	strangerCalls, strangerCallRate             = 32, 200
	// strangerPause is the longest that one call waits for that.
	strangerPause = 10 * time.Millisecond

	knownFor = 10 * time.Minute
	// maxHosts bounds the hosts that are remembered.
	maxHosts = 10_000
)

// strangers tells hosts apart from which somebody who is known has called. It is guarded by mu of
// seats.
type strangers struct {
	everybody bool                       // is known: the server asks nobody for a name; set before it listens
	known     map[netip.Prefix]time.Time // when a call was last authorized on a new connection
	hosts     Limiters[netip.Prefix]
}

func newStrangers() strangers {
	return strangers{
		known: map[netip.Prefix]time.Time{},
		hosts: Limiters[netip.Prefix]{Burst: strangerConnections, Rate: strangerConnectionRate, Most: maxHosts},
	}
}

// may reports whether a host may open one more connection.
func (s *strangers) may(host netip.Prefix, now time.Time) bool {
	if s.everybody {
		return true
	}
	if at, ok := s.known[host]; ok && now.Sub(at) < knownFor {
		return true
	}
	return s.hosts.Take(host, now)
}

// greet notes that a call from a host was authorized.
func (s *strangers) greet(host netip.Prefix, now time.Time) {
	if len(s.known) >= maxHosts {
		for h, at := range s.known {
			if now.Sub(at) >= knownFor {
				delete(s.known, h)
			}
		}
	}
	if len(s.known) < maxHosts {
		s.known[host] = now
	}
	s.hosts.Forget(host)
}

// stranger is who has a connection on which no call was authorized.
type stranger struct {
	greeted         chan struct{} // closed when one is
	calls, refusals *rate.Limiter
}

func newStranger() *stranger {
	return &stranger{
		greeted: make(chan struct{}),
		calls:   rate.NewLimiter(strangerCallRate, strangerCalls), refusals: rate.NewLimiter(strangerRefusalRate, strangerRefusals),
	}
}

// pace is called in a connection's reader for each call that begins. It refuses none: it holds the
// reader up where calls come faster than they can be refused, until somebody is known there.
func (*gate) pace(ctx context.Context, _ *tap.Info) (context.Context, error) {
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok {
		return ctx, nil
	}
	s := c.stranger.Load()
	if s == nil {
		return ctx, nil
	}
	wait := min(s.calls.Reserve().Delay(), strangerPause)
	if wait <= 0 {
		return ctx, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.greeted:
	case <-timer.C:
	}
	return ctx, nil
}

// authorized notes that a call on the connection was authorized: it is no stranger's.
func (g *gate) authorized(c *connection) {
	if c.stranger.Load() == nil { // nearly always, and cheaper than a swap
		return
	}
	s := c.stranger.Swap(nil)
	if s == nil {
		return
	}
	close(s.greeted)
	if c.seat == nil {
		return
	}
	g.seats.mu.Lock()
	defer g.seats.mu.Unlock()
	g.seats.strangers.greet(c.seat.host, time.Now())
}

// unauthorized notes that a call on the connection was refused before anybody was known on it. One
// that is refused again and again is closed.
func (g *gate) unauthorized(c *connection) {
	if s := c.stranger.Load(); s != nil && c.seat != nil && !s.refusals.Allow() {
		g.refused.WithLabelValues("connection_closed").Inc()
		_ = c.seat.conn.Close() // grpc-go finds it closed, as if the client had gone
	}
}
