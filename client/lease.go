package client

import (
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// drift is the share of a time that two monotonic clocks may differ by: one in
// so many. Clocks that are kept right by NTP drift by less than one in 1000.
const drift = 200

// anchor says what the server's clock showed at most at a moment of ours: it was
// read after a message had come that was sent at that moment.
//
// A lease that ends at E by the server's clock is held only before
// sent + (E - clock), less a share for drift. For at a moment t before that,
// t - sent has gone by since the message was sent, so that no more than that
// has since the clock was read, and the server's clock shows less than
// clock + (E - clock) = E. Nothing of this depends on how long the network took.
type anchor struct {
	sent  time.Time // zero: nothing is known
	clock int64
}

// at is a moment of ours at which the server's clock does not yet show more
// than us.
func (a anchor) at(us int64) time.Time {
	d := time.Duration(us-a.clock) * time.Microsecond
	return a.sent.Add(d - max(d, -d)/drift)
}

// or is the anchor that allows more, of two that are both true.
func (a anchor) or(b anchor) anchor {
	if a.sent.IsZero() || !b.sent.Before(a.at(b.clock)) {
		return b
	}
	return a
}

// ping asks for the server's clock, where it tells it.
func (w *Worker) ping(l *link) {
	w.mu.Lock()
	ask := !l.awaits && !l.anchor.sent.IsZero()
	if ask {
		l.pings++
		l.awaits, l.pinged = true, time.Now()
	}
	req := &queuev1.Ping{Id: l.pings}
	w.mu.Unlock()
	if ask {
		_ = l.s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Ping{Ping: req}}) // receive knows why it failed
	}
}

func (w *Worker) pong(l *link, p *queuev1.Pong) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l.awaits && p.GetId() == l.pings {
		l.awaits = false
		l.anchor = l.anchor.or(anchor{l.pinged, p.GetClockUs()})
	}
}
