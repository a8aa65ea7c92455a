package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// errSecondScope says that two of the configured resources are the same one.
var errSecondScope = errors.New("reflector: second scope of a resource")

// resolve finds a reflection's resource, waiting for as long as it is not served; false when ctx ended or another reflection mirrors it.
func (s *Service) resolve(ctx context.Context, r *reflection) bool {
	b := retry{Backoff: s.cfg.Backoff}
	for {
		res, err := s.find(ctx, r.col)
		if err == nil && !res.Watchable() && len(res.Verbs) > 0 {
			err = fmt.Errorf("%w: %s cannot be listed and watched", kube.ErrNotServed, res.Name)
		}
		if err == nil {
			return s.adopt(ctx, r, res)
		}
		if ctx.Err() != nil {
			return false
		}
		wait := b.fail(time.Now(), kube.RetryAfter(err))
		if errors.Is(err, kube.ErrNotServed) {
			wait = min(wait, s.cfg.DiscoverEvery)
		}
		r.fail(ctx, "resolve", err, wait)
		if !sleep(ctx, wait, r.relist) {
			return false
		}
	}
}

func (s *Service) adopt(ctx context.Context, r *reflection, res kube.Resource) bool {
	col := res.Collection(s.cfg.Cluster)
	s.mu.Lock()
	taken := slices.ContainsFunc(s.reflections, func(o *reflection) bool { return o != r && o.resource.Kind != "" && o.col == col })
	if !taken {
		r.col, r.resource = col, res
	}
	s.mu.Unlock()
	if taken {
		r.fail(ctx, "resolve", fmt.Errorf("%w: %s is mirrored already under another name; a resource has one scope", errSecondScope, col), 0)
		r.phase(reflectorv1.ReflectionState_REFLECTION_STATE_STOPPED)
		return false
	}
	r.slog = s.slog.With(slog.String(telemetry.KeyCollection, col.String()))
	r.state.set(func(v *view) { v.name = col.String() })
	r.state.well()
	return true
}

// find resolves a collection whose version, or version and group, may be missing.
func (s *Service) find(ctx context.Context, col delta.Collection) (kube.Resource, error) {
	if col.Version != "" {
		return s.kube.Resolve(ctx, col)
	}
	if col.Group == "" {
		if res, err := s.kube.Resolve(ctx, delta.Collection{Cluster: col.Cluster, Version: "v1", Resource: col.Resource}); err == nil {
			return res, nil
		}
	}
	all, err := s.kube.DiscoverAll(ctx)
	for _, res := range all {
		if res.Name == col.Resource && (col.Group == "" || res.Group == col.Group) {
			return res, nil
		}
	}
	return kube.Resource{}, cmp.Or(err, fmt.Errorf("%w: %s", kube.ErrNotServed, col.Resource))
}

// everything mirrors all that can be watched, now and as it appears; secrets only when they are named (design 5). events.k8s.io is a second
// name of the core group's events.
func (s *Service) everything(ctx context.Context, want Resource, loops *sync.WaitGroup) {
	for {
		all, err := s.kube.DiscoverAll(ctx)
		if err != nil && ctx.Err() == nil {
			s.slog.Warn("discovery is incomplete", telemetry.Err(err))
		}
		for _, res := range all {
			if !res.Watchable() || res.Name == "secrets" && res.Group == "" || res.Group == "events.k8s.io" || s.named(res) {
				continue
			}
			one := want
			one.Name = res.Collection("").ResourceName()
			r := s.reflect(one)
			if s.adopt(ctx, r, res) {
				loops.Go(func() { r.run(ctx) })
			}
		}
		if !sleep(ctx, s.cfg.DiscoverEvery, nil) {
			return
		}
	}
}

// named reports whether a reflection for the resource exists, or is configured and not resolved yet.
func (s *Service) named(res kube.Resource) bool {
	return slices.ContainsFunc(s.all(), func(r *reflection) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := r.col
		return c.Resource == res.Name && (c.Group == res.Group || c.Group == "" && r.resource.Kind == "") &&
			(c.Version == res.Version || c.Version == "")
	})
}
