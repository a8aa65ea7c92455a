package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/stats"
)

// births remembers in a connection's context when it began.
type births struct{}

type birthKey struct{}

// TagConn implements stats.Handler.
func (births) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return context.WithValue(ctx, birthKey{}, time.Now())
}

// HandleConn implements stats.Handler.
func (births) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (births) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (births) HandleRPC(context.Context, stats.RPCStats) {}

// Aging tells a stream that lasts when to ask its client to move to another
// connection: first in so long, and then every so often until it has. The
// connection says goodbye at about MaxConnectionAge, give or take a tenth, and
// is cut MaxConnectionGrace later, so one of these times lies between. Every is
// zero when connections do not age, or ctx is not of a call.
func (s *Server) Aging(ctx context.Context) (first, every time.Duration) {
	born, ok := ctx.Value(birthKey{}).(time.Time)
	if !ok || s.cfg.MaxConnectionAge <= 0 {
		return 0, 0
	}
	every = max(s.cfg.MaxConnectionGrace/3, 10*time.Millisecond)
	return max(s.cfg.MaxConnectionAge*9/10-time.Since(born)-every, every), every
}
