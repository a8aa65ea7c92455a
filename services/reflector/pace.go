package reflector

import (
	"context"
	"time"
)

// pace says when a publisher does what.
type pace struct {
	wake   <-chan struct{} // something waits to be published
	gather time.Duration
	live   time.Duration // the period of liveness records

	drain func(context.Context) (changes int, err error)
	beat  func(context.Context) error
}

// run publishes what waits, at once after a pause. What follows sooner than gather behind that is
// gathered until then, unless so much comes that it makes full batches by itself.
func (p pace) run(ctx context.Context) error {
	live := time.NewTicker(p.live)
	defer live.Stop()
	wake := p.wake // nil while changes are gathered
	var gathered <-chan time.Time
	for {
		select {
		case <-wake:
			n, err := p.drain(ctx)
			if err != nil {
				return err
			}
			if p.gather > 0 && n > 0 && n < popRecords {
				wake, gathered = nil, time.After(p.gather)
			}
		case <-gathered:
			wake, gathered = p.wake, nil
		case <-live.C:
			if err := p.beat(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
