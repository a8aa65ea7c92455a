package queue

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// keep has a queue kept by a stream until release is called.
func (s *queues) keep(l *lines) {
	l.streams.Add(1)
	if !l.usedWithin(engine.UseEvery) {
		select {
		case s.kept <- struct{}{}:
		default:
		}
	}
}

// release ends what keep began.
func (l *lines) release() { l.streams.Add(-1) }

func (l *lines) usedWithin(d time.Duration) bool {
	return time.Since(time.Unix(0, l.used.Load())) < d
}

// keepQueues has the store know of queues that streams are open on, where their
// transactions do not tell: a worker without credit, a producer that adds nothing.
func (s *queues) keepQueues(ctx context.Context) error {
	ticker := time.NewTicker(engine.UseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.kept:
		}
		for _, l := range s.all() {
			if l.streams.Load() == 0 || l.usedWithin(engine.UseEvery) {
				continue
			}
			at := time.Now()
			switch err := s.Engine.Keep(ctx, l.name); {
			case err == nil:
				l.used.Store(at.UnixNano())
			case errors.Is(err, engine.ErrNoQueue):
				l.request() // its next transaction finds out why
			}
		}
	}
}
