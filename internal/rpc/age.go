package rpc

import (
	"context"
	"time"
)

// Aging tells a stream that lasts when to ask its client to move to another
// connection: first in so long, and then every so often until it has. The
// connection says goodbye at about MaxConnectionAge, give or take a tenth, and
// is cut MaxConnectionGrace later, so one of these times lies between. Every is
// zero when connections do not age, or ctx is not of a call.
func (s *Server) Aging(ctx context.Context) (first, every time.Duration) {
	conn, ok := ctx.Value(connectionKey{}).(*connection)
	if !ok || s.cfg.MaxConnectionAge <= 0 {
		return 0, 0
	}
	every = max(s.cfg.MaxConnectionGrace/3, 10*time.Millisecond)
	return max(s.cfg.MaxConnectionAge*9/10-time.Since(conn.born)-every, every), every
}
