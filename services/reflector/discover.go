package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What a resource that was found can be wrong with.
var (
	// errSecondScope says that two desired resources are for the same resource.
	errSecondScope = errors.New("reflector: second scope of a resource")
	// errNoNamespaces says that a namespace was asked of a resource that has none.
	errNoNamespaces = errors.New("reflector: a namespace of a resource without namespaces")
)

// resolve finds a reflection's resource, waiting for as long as it is not served or mirrored under
// another name; false when ctx ended.
func (s *Service) resolve(ctx context.Context, r *reflection) bool {
	b := retry{Backoff: s.cfg.Backoff}
	catalog := s.cluster(r.want.Cluster).catalog
	since := time.Now().Add(-s.cfg.DiscoverEvery) // what others have just asked for will do
	for {
		moved := s.change()
		res, asked, err := catalog.find(ctx, r.col, since)
		if err == nil {
			err = s.adopt(ctx, r, res)
		}
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		since = asked
		wait := b.fail(kube.RetryAfter(err))
		if errors.Is(err, errSecondScope) || errors.Is(err, errNoNamespaces) {
			wait = s.cfg.DiscoverEvery
		} else {
			if errors.Is(err, kube.ErrNotServed) {
				wait = min(wait, s.cfg.DiscoverEvery)
			}
			moved = nil
		}
		r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_BACKOFF)
		r.fail(ctx, "resolve", err, wait)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-moved:
		case <-r.relist:
			since = time.Now()
		case <-ctx.Done():
		}
		t.Stop()
		if ctx.Err() != nil {
			return false
		}
	}
}

// adopt makes res the resource of a reflection, unless that cannot be.
func (s *Service) adopt(ctx context.Context, r *reflection, res kube.Resource) error {
	col := res.Collection(r.want.Cluster)
	switch {
	case !res.Watchable() && len(res.Verbs) > 0:
		return fmt.Errorf("%w: %s cannot be listed and watched", kube.ErrNotServed, res.Name)
	case secret(res) && !s.cfg.MirrorSecrets:
		return fmt.Errorf("%w: %s", errSecrets, col)
	case r.want.narrowed() && !res.Namespaced:
		return fmt.Errorf("%w: %s has none, and %s was asked for", errNoNamespaces, col, quoted(r.want.namespaces()))
	}
	names := delta.OtherNames(res.Name, slices.Concat([]string{res.Singular, res.Kind}, res.ShortNames)...)
	if r.want.MetadataOnly { // the kind is another one then
		res = res.MetadataOnly()
	}
	if err := s.keep(ctx, col.String()); err != nil { // a log that was to be deleted
		return err
	}
	s.mu.Lock()
	taken := slices.ContainsFunc(s.reflections, func(o *reflection) bool { return o != r && o.resource.Kind != "" && !o.vanished && o.col == col })
	if !taken {
		r.col, r.resource, r.names = col, res, names
		s.touch()
	}
	asked := s.relists[col.String()]
	s.mu.Unlock()
	if taken {
		return fmt.Errorf("%w: %s is mirrored already under another name; a resource has one scope", errSecondScope, col)
	}
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, col.String()))
	if old := r.state.get().name; old != col.String() {
		r.metrics.forget(old)
	}
	r.state.set(func(v *view) { v.name = col.String() })
	r.well(ctx)
	r.ask(asked)
	s.disown(col.Cluster)
	return nil
}
