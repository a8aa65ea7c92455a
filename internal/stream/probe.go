package stream

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// probeEvery is how far apart probes are at least.
const probeEvery = 5 * time.Millisecond

// unanswered is how many write timeouts a probe may take before the server counts as stopped. The window is too small to fill the kernel's buffers,
// by which a write would find that out.
const unanswered = 4

// probe measures how long the connection's queue is, while appends fill it and once when they have ended, by pings: the server answers them in their turn among what the
// connection carries, without looking at any log. A server that took everything and answers nothing, or takes nothing, is left.
func (c *Conn) probe(ctx context.Context) {
	for late := false; late || c.window.again(); {
		began, acked := time.Now(), c.window.acks()
		taken, _ := c.dialer.taken()
		waiting, cancel := context.WithTimeout(ctx, unanswered*c.cfg.WriteTimeout)
		err := c.nc.FlushWithContext(waiting)
		cancel()
		now := time.Now()
		late = errors.Is(err, context.DeadlineExceeded)
		switch {
		case err == nil:
			c.window.probed(now.Sub(began), now)
		case late:
			c.window.probed(now.Sub(began), now)
			after, waits := c.dialer.taken()
			if acked == c.window.acks() && (waits == 0 || after == taken) && after > 0 && c.nc.IsConnected() {
				late = false
				c.cfg.Log.Warn("the log's server answers nothing: the connection is made anew", slog.Duration("after", now.Sub(began)))
				_ = c.nc.ForceReconnect() // it fails when the connection was closed meanwhile
			}
		case c.nc.IsClosed():
			return
		}
		<-time.After(probeEvery - now.Sub(began))
	}
}
