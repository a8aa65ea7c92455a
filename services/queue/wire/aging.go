package wire

import (
	"context"
	"time"
)

// AgingTimer tells a stream when to ask its client for another one, because the
// connection is getting old. As long as the server has not said goodbye to the
// whole connection, the client's next stream may be on the same one: it is
// asked again.
type AgingTimer struct {
	timer *time.Timer // nil when connections do not age
	every time.Duration
}

// NewAgingTimer is the timer of a stream, given when connections age: never when every is zero.
func NewAgingTimer(ctx context.Context, aging func(context.Context) (first, every time.Duration)) *AgingTimer {
	first, every := aging(ctx)
	if every == 0 {
		return &AgingTimer{}
	}
	return &AgingTimer{timer: time.NewTimer(first), every: every}
}

// C is when to ask.
func (m *AgingTimer) C() <-chan time.Time {
	if m.timer == nil {
		return nil
	}
	return m.timer.C
}

// Again lets the timer run once more.
func (m *AgingTimer) Again() { m.timer.Reset(m.every) }

// Stop ends the timer. It does nothing to one that never ran.
func (m *AgingTimer) Stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}
