package wire

import (
	"context"
	"time"
)

// agingTimer tells a stream when to ask its client for another one, because the
// connection is getting old. As long as the server has not said goodbye to the
// whole connection, the client's next stream may be on the same one: it is
// asked again.
type agingTimer struct {
	timer *time.Timer // nil when connections do not age
	every time.Duration
}

func NewAgingTimer(ctx context.Context, aging func(context.Context) (first, every time.Duration)) *agingTimer {
	first, every := aging(ctx)
	if every == 0 {
		return &agingTimer{}
	}
	return &agingTimer{timer: time.NewTimer(first), every: every}
}

// C is when to ask.
func (m *agingTimer) C() <-chan time.Time {
	if m.timer == nil {
		return nil
	}
	return m.timer.C
}

func (m *agingTimer) Again() { m.timer.Reset(m.every) }

func (m *agingTimer) Stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}
