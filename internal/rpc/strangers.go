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
	hosts     map[netip.Prefix]*rate.Limiter
}

func newStrangers() strangers {
	return strangers{known: map[netip.Prefix]time.Time{}, hosts: map[netip.Prefix]*rate.Limiter{}}
}

// may reports whether a host may open one more connection.
func (s *strangers) may(host netip.Prefix, now time.Time) bool {
	if s.everybody {
		return true
	}
	if at, ok := s.known[host]; ok && now.Sub(at) < knownFor {
		return true
	}
	l := s.hosts[host]
	if l == nil {
		if len(s.hosts) >= maxHosts { // those that have been quiet count as new
			for h, l := range s.hosts {
				if l.TokensAt(now) >= strangerConnections {
					delete(s.hosts, h)
				}
			}
		}
		l = rate.NewLimiter(strangerConnectionRate, strangerConnections)
		s.hosts[host] = l
	}
	return l.AllowN(now, 1)
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
	delete(s.hosts, host)
}

// pace is called in a connection's reader for each call that begins. It refuses none: it holds the
// reader up where calls come faster than they can be refused, until somebody is known there.
func (*gate) pace(ctx context.Context, _ *tap.Info) (context.Context, error) {
	c, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok || c.known.Load() {
		return ctx, nil
	}
	wait := min(c.calls.Reserve().Delay(), strangerPause)
	if wait <= 0 {
		return ctx, nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.greeted:
	case <-timer.C:
	}
	return ctx, nil
}

// authorized notes that a call on the connection was authorized: it is no stranger's.
func (g *gate) authorized(c *connection) {
	if c.known.Load() || c.known.Swap(true) {
		return
	}
	close(c.greeted)
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
	if c.known.Load() || c.seat == nil || c.seat.conn == nil {
		return
	}
	c.mu.Lock()
	if c.refusals == nil {
		c.refusals = rate.NewLimiter(strangerRefusalRate, strangerRefusals)
	}
	over := !c.refusals.Allow()
	c.mu.Unlock()
	if over {
		g.refused.WithLabelValues("connection_closed").Inc()
		_ = c.seat.conn.Close() // grpc-go finds it closed, as if the client had gone
	}
}
