package queue

import (
	"context"
	"time"
)

// mover tells a stream when to ask its client for another one, because the
// connection is getting old. As long as the server has not said goodbye to the
// whole connection, the client's next stream may be on the same one: it is
// asked again.
type mover struct {
	timer *time.Timer // nil when connections do not age
	every time.Duration
}

func newMover(ctx context.Context, aging func(context.Context) (first, every time.Duration)) *mover {
	first, every := aging(ctx)
	if every == 0 {
		return &mover{}
	}
	return &mover{timer: time.NewTimer(first), every: every}
}

// C is when to ask.
func (m *mover) C() <-chan time.Time {
	if m.timer == nil {
		return nil
	}
	return m.timer.C
}

func (m *mover) again() { m.timer.Reset(m.every) }

func (m *mover) stop() {
	if m.timer != nil {
		m.timer.Stop()
	}
}
