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
	full  func() bool // what waits is gathered no longer
	beat  func(context.Context) error
}

// run publishes what waits, at once after a pause. What follows sooner than gather behind changes
// is gathered until then, or until full.
func (p pace) run(ctx context.Context) error {
	live := time.NewTicker(p.live)
	defer live.Stop()
	var gathered <-chan time.Time // nil while nothing is gathered
	for {
		select {
		case <-p.wake:
			if gathered != nil && !p.full() {
				continue
			}
		case <-gathered:
			gathered = nil
		case <-live.C:
			if err := p.beat(ctx); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return ctx.Err()
		}
		n, err := p.drain(ctx)
		if err != nil {
			return err
		}
		if p.gather > 0 && n > 0 {
			gathered = time.After(p.gather)
		}
	}
}
