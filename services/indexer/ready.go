package indexer

import (
	"context"
	"errors"
	"fmt"

	"github.com/deltaplane/deltaplane/core/store"
)

func (s *collections) checkLog(context.Context) error {
	if !s.log.Healthy() {
		return errors.New("not connected to the log: what is served grows stale")
	}
	return nil
}

// checkFiles tells of checkpoints that cannot be written, as on a full disk.
func (s *collections) checkFiles(context.Context) error {
	n, name, err := s.unsaved()
	if n == 0 {
		return nil
	}
	return fmt.Errorf("the checkpoints of %d collections cannot be written, a restart reads their logs: %s: %w", n, name, err)
}

// unsaved counts the collections whose last checkpoint could not be written, and
// names the first.
func (s *collections) unsaved() (n int, name string, err error) {
	for _, c := range s.names.Load().all {
		why := c.unsaved.Load()
		if why == nil {
			continue
		}
		if n++; err == nil || c.name < name {
			name, err = c.name, *why
		}
	}
	return n, name, err
}

// checkReplayed latches: a collection that appears later is not served until it
// is synced, and must not take the others out of rotation.
func (s *collections) checkReplayed(context.Context) error {
	if s.ready.Load() {
		return nil
	}
	if !s.discovered.Load() {
		return errors.New("logs not listed yet")
	}
	for _, c := range s.names.Load().all {
		if !c.replayed.Load() && !c.absent.Load() && c.refused.Load() == nil {
			return fmt.Errorf("%s not replayed yet", c.name)
		}
	}
	s.ready.Store(true)
	return nil
}

// lag is how many log records are not applied yet, as last known. A log begins far above 1.
func (c *collection) lag(state store.State) uint64 {
	applied := max(state.Position.Sequence, max(c.head.Load(), 1)-1)
	return max(c.tail.Load(), applied) - applied
}
