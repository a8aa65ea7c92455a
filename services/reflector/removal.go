package reflector

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// removal is a log to be deleted.
type removal struct {
	after  time.Time
	cancel context.CancelFunc
}

// removalTimeout is for how long a removal waits for a leader to go; one that stays mirrors the
// collection on somebody else's behalf.
const removalTimeout = time.Minute

// removing is told which logs of a cluster are to be deleted.
func (s *Service) removing(cluster string, want map[string]time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.removals {
		if strings.HasPrefix(name, cluster+"/") && !want[name].Equal(r.after) {
			r.cancel()
			delete(s.removals, name)
		}
	}
	for name, after := range want {
		col, err := delta.ParseCollection(name)
		if err != nil || s.removals[name] != nil {
			continue
		}
		ctx, cancel := context.WithCancel(s.mirror)
		s.removals[name] = &removal{after: after, cancel: cancel}
		s.loops.Go(func() {
			defer cancel()
			s.removeLog(ctx, col, after)
		})
	}
}

// removeLog deletes a log once its time has come, tried until that is done or not asked for any
// more.
func (s *Service) removeLog(ctx context.Context, col delta.Collection, after time.Time) {
	b := retry{Backoff: s.cfg.Backoff}
	for attempt.Sleep(ctx, time.Until(after)) {
		err := s.tryRemoveLog(ctx, col)
		if err == nil || ctx.Err() != nil {
			return
		}
		wait := b.fail(0)
		s.slog.LogAttrs(ctx, slog.LevelWarn, "log cannot be deleted yet", slog.String(telemetry.KeyCollection, col.String()), telemetry.Err(err),
			slog.Duration(telemetry.KeyAfter, wait))
		after = time.Now().Add(wait)
	}
}

// tryRemoveLog holds the collection's lease while it deletes the log, so that nobody writes it. Who
// wants the collection again takes the request back before it asks for the lease.
func (s *Service) tryRemoveLog(ctx context.Context, col delta.Collection) error {
	if s.mirrors(col) {
		return s.keep(ctx, col.String())
	}
	short, cancel := context.WithTimeout(ctx, max(removalTimeout, 10*s.cfg.LeaseTTL))
	defer cancel()
	lease, err := s.log.Lease(short, stream.LeaseConfig{
		Name: col.String(), Holder: s.cfg.Holder, TTL: s.cfg.LeaseTTL, PingTimeout: s.cfg.LeasePingTimeout,
	})
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && short.Err() != nil && s.log.Healthy():
		s.slog.LogAttrs(ctx, slog.LevelWarn, "log is kept: the collection is mirrored all the same", slog.String(telemetry.KeyCollection, col.String()))
		return s.keep(ctx, col.String())
	case err != nil:
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(last) // not released in time, it runs out by itself
	}()
	now, err := s.registry.additions(ctx, col.Cluster)
	if err != nil || now.removals[col.String()].IsZero() {
		return err
	}
	if err := lease.Hold(ctx); err != nil {
		return err
	}
	if err := s.log.Remove(ctx, col); err != nil {
		return err
	}
	s.slog.LogAttrs(ctx, slog.LevelInfo, "log deleted", slog.String(telemetry.KeyCollection, col.String()))
	// Not with ctx: it ends when the request does.
	last, cancelLast := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancelLast()
	return s.keep(last, col.String())
}

// keep takes back the request to delete a log, if there is one.
func (s *Service) keep(ctx context.Context, collection string) error {
	s.mu.Lock()
	asked := s.removals[collection] != nil
	s.mu.Unlock()
	if !asked {
		return nil
	}
	cluster, _, _ := strings.Cut(collection, "/")
	return s.registry.edit(ctx, cluster, func(a *additions) (bool, error) {
		_, there := a.removals[collection]
		delete(a.removals, collection)
		return there, nil
	})
}

// mirrors reports whether this process mirrors a collection.
func (s *Service) mirrors(col delta.Collection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.reflections, func(r *reflection) bool { return r.resource.Kind != "" && !r.vanished && r.col == col })
}
