package follow

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// CheckLog tells that the log is away.
func (s *Collections) CheckLog(context.Context) error {
	if err := s.log.Away(); err != nil {
		return fmt.Errorf("what is served grows stale: %w", err)
	}
	return nil
}

// CheckFiles tells of checkpoints that cannot be written, as on a full disk.
func (s *Collections) CheckFiles(context.Context) error {
	n, name, err := s.unsaved()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the checkpoints of %d collections cannot be written, a restart reads their logs: %s: %w", n, name, err)
}

// unsaved counts the collections whose last checkpoint could not be written, and
// names the first.
func (s *Collections) unsaved() (n int, name string, err error) {
	for _, c := range s.names.Load().All {
		why := c.unsaved.Load()
		if why == nil {
			continue
		}
		if n++; err == nil || c.Name < name {
			name, err = c.Name, *why
		}
	}
	return n, name, err
}

// CheckReplayed latches: a collection that appears later is not served until it
// is synced, and must not take the others out of rotation.
func (s *Collections) CheckReplayed(context.Context) error {
	if s.ready.Load() {
		return nil
	}
	if err := s.log.Away(); err != nil && !s.discovered.Load() {
		return fmt.Errorf("waiting for the log: %w", err)
	}
	if !s.discovered.Load() {
		return errors.New("logs not listed yet")
	}
	for _, c := range s.names.Load().All {
		if !c.replayed.Load() && !c.absent.Load() && c.refused.Load() == nil {
			return errors.New(c.Because(c.Name + " not replayed yet"))
		}
	}
	s.ready.Store(true)
	return nil
}

// Lag is how many log records are not applied yet, as last known. A log begins far above 1.
func (c *Collection) Lag(state store.State) uint64 {
	applied := max(state.Position.Sequence, max(c.head.Load(), 1)-1)
	return max(c.tail.Load(), applied) - applied
}

// laggingAfter is how long the revision of a collection may stand still behind a
// hole in the log before it is said. Usually that is over within moments. Before a
// record that a later build must read it is not, and is said at once.
const laggingAfter = 10 * time.Second

// FrozenSince is when the revision began to stand still; zero when it does not.
func (c *Collection) FrozenSince() time.Time {
	if at := c.frozen.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Lagging reports whether the revision has stood still for too long.
func (c *Collection) Lagging() bool { return c.lagging(c.now()) }

// lagging reports whether the revision has stood still for too long: what is
// asked at a revision is not answered here.
func (c *Collection) lagging(now time.Time) bool {
	at := c.FrozenSince()
	return !at.IsZero() && (c.newer.Load() != nil || now.Sub(at) > laggingAfter)
}
