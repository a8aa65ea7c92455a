package reflector

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"github.com/deltaplane/deltaplane/internal/telemetry"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// desired is one resource, or "*", that is to be mirrored for as long as it stands in the
// configuration or in the bucket.
type desired struct {
	spec   Resource
	origin reflectorv1.ReflectionOrigin
	cancel context.CancelFunc
	done   chan struct{} // closed when nothing of it runs any more
}

func resourceKey(cluster, name string) string { return cluster + "/" + name }

// begin mirrors a resource once what stood in its place has ended.
func (s *Service) begin(spec Resource, origin reflectorv1.ReflectionOrigin, after <-chan struct{}) {
	s.mu.Lock()
	ctx, cancel := context.WithCancel(s.mirror)
	w := &desired{spec: spec, origin: origin, cancel: cancel, done: make(chan struct{})}
	s.desired[resourceKey(spec.Cluster, spec.Name)] = w
	s.touch()
	s.mu.Unlock()
	var r *reflection
	if spec.Name != everything {
		r = s.reflect(w, spec, origin)
	}
	s.loops.Go(func() {
		defer close(w.done)
		defer cancel()
		if after != nil {
			<-after
		}
		if r == nil {
			s.everything(ctx, w)
			return
		}
		s.single(ctx, r)
	})
}

// end stops mirroring a desired resource. Nothing of it is listed any more when end returns; what
// runs ends soon after, see done.
func (s *Service) end(w *desired) {
	s.mu.Lock()
	if key := resourceKey(w.spec.Cluster, w.spec.Name); s.desired[key] == w {
		delete(s.desired, key)
	}
	s.mu.Unlock()
	w.cancel()
	s.drop(func(r *reflection) bool { return r.desired == w })
}

// single mirrors one resource until ctx ends.
func (s *Service) single(ctx context.Context, r *reflection) {
	if s.resolve(ctx, r) {
		r.run(ctx)
	}
}

// take is the registry's handler.
func (s *Service) take(kind, name string, value []byte, revision uint64) {
	switch kind {
	case keyAdded:
		set, err := decodeAdditions(value)
		if err != nil { // what is in use stays
			s.slog.LogAttrs(s.mirror, slog.LevelError, "reflections that were added cannot be used", slog.String(telemetry.KeyCluster, name), telemetry.Err(err))
			return
		}
		if s.cluster(name) != nil {
			s.reconcile(name, set)
			s.removing(name, set.removals)
		}
	case keyFound:
		if s.cluster(name) != nil {
			s.noted(name, value)
		}
	case keyRelist:
		s.asked(name, len(value) > 0, revision)
	}
}

// reconcile makes the added desired resources of a cluster those of the set.
func (s *Service) reconcile(cluster string, set additions) {
	want := map[string]Resource{}
	for _, x := range set.reflections {
		if x.err != nil {
			s.slog.LogAttrs(s.mirror, slog.LevelWarn, "a reflection that was added cannot be used", slog.String(telemetry.KeyCluster, cluster), telemetry.Err(x.err))
			continue
		}
		x.Cluster = cluster
		want[resourceKey(cluster, x.Name)] = x.Resource
	}
	ended := map[string]<-chan struct{}{}
	for key, w := range s.standing() {
		if w.spec.Cluster != cluster {
			continue
		}
		next, ok := want[key]
		switch {
		case w.origin == reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_CONFIGURED,
			ok && next.fingerprint() == w.spec.fingerprint():
			delete(want, key)
		default:
			s.end(w)
			ended[key] = w.done
		}
	}
	for key, spec := range want {
		s.begin(spec, reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_ADDED, ended[key])
	}
}

// standing is the resources desired now.
func (s *Service) standing() map[string]*desired {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.desired)
}

// named reports whether a collection is asked for by name, by another than "*". A desired resource
// that names no group means that of the resource it found, or any as long as it found none.
func (s *Service) named(cluster, group, version, resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.desired {
		n, v, g := w.spec.parts()
		if w.spec.Cluster != cluster || n != resource || v != "" && v != version {
			continue
		}
		found := slices.IndexFunc(s.reflections, func(r *reflection) bool { return r.desired == w && r.resource.Kind != "" })
		if found >= 0 {
			g, v = s.reflections[found].col.Group, s.reflections[found].col.Version
			if g == group && v == version {
				return true
			}
			continue
		}
		if g == "" || g == group {
			return true
		}
	}
	return false
}
