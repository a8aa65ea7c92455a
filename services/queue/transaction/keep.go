package transaction

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Keep has a queue kept by a stream until release is called.
func (s *Queues) Keep(l *Queue) {
	l.Streams.Add(1)
	if !l.usedWithin(engine.UseEvery) {
		select {
		case s.Kept <- struct{}{}:
		default:
		}
	}
}

// Release ends what keep began.
func (l *Queue) Release() { l.Streams.Add(-1) }

func (l *Queue) usedWithin(d time.Duration) bool {
	return time.Since(time.Unix(0, l.Used.Load())) < d
}

// KeepQueues has the store know of queues that streams are open on, where their
// transactions do not tell: a worker without credit, a producer that adds nothing.
func (s *Queues) KeepQueues(ctx context.Context) error {
	ticker := time.NewTicker(engine.UseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.Kept:
		}
		for _, l := range s.All() {
			if l.Streams.Load() == 0 || l.usedWithin(engine.UseEvery) {
				continue
			}
			at := time.Now()
			switch err := s.Engine.Keep(ctx, l.Name); {
			case err == nil:
				l.Used.Store(at.UnixNano())
			case errors.Is(err, engine.ErrNoQueue):
				l.Request() // its next transaction finds out why
			}
		}
	}
}
