package reflector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// identifyWithin bounds how long AddReflection looks for a resource that nobody mirrors yet. What
// is not found by then is added all the same.
const identifyWithin = 2 * time.Second

// AddReflection mirrors one more resource, in every reflector process.
func (v *server) AddReflection(ctx context.Context, req *reflectorv1.AddReflectionRequest) (*reflectorv1.AddReflectionResponse, error) {
	s := v.s
	if req.GetSpec() == nil {
		return nil, rpc.InvalidArgument("spec", "must be set")
	}
	spec := fromProto(req.GetSpec())
	name, err := s.clusterOf("spec.cluster", spec.Cluster)
	if err != nil {
		return nil, err
	}
	spec.Cluster = name
	if err := invalid("spec", spec.faults()); err != nil {
		return nil, err
	}
	if s.cluster(name) == nil {
		return nil, fmt.Errorf("%w: %.100q; this process mirrors %s", errNoCluster, name, strings.Join(s.cfg.clusterNames(), ", "))
	}
	if spec.secrets() && !s.cfg.MirrorSecrets {
		return nil, errSecrets
	}
	if err := s.permitAdd(ctx, spec); err != nil {
		return nil, err
	}
	same := s.sameAs(ctx, spec)
	if kept, err := s.fixed(spec, req.GetReplace(), same); kept != nil || err != nil {
		return &reflectorv1.AddReflectionResponse{Spec: kept}, err
	}
	if req.GetServed() && s.unserved(ctx, spec) {
		return nil, fmt.Errorf("%w: %s", errNotServed, spec)
	}
	resp := &reflectorv1.AddReflectionResponse{}
	err = s.registry.edit(ctx, name, func(a *additions) (bool, error) {
		resp.Spec, resp.Added = spec.proto(), true
		i := slices.IndexFunc(a.reflections, func(x addition) bool { return x.err == nil && same(x.Resource) })
		switch {
		case i >= 0 && a.reflections[i].fingerprint() == spec.fingerprint():
			resp.Spec, resp.Added = a.reflections[i].proto(), false
			return false, nil
		case i >= 0 && !req.GetReplace():
			theirs, mine := apart(a.reflections[i].fingerprint(), spec.fingerprint())
			return false, fmt.Errorf("%w: %s was added with %s, not with %s", errDiffers, a.reflections[i].Resource, theirs, mine)
		case i >= 0:
			a.reflections[i] = addition{Resource: spec}
		case len(a.reflections) >= s.cfg.MaxAdded:
			return false, fmt.Errorf("%w: %d were added to %s, at most %d", errTooMany, len(a.reflections), name, s.cfg.MaxAdded)
		default:
			a.reflections = append(a.reflections, addition{Resource: spec})
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// clusterOf is the cluster that a request means.
func (s *Service) clusterOf(field, name string) (string, error) {
	if name == "" && len(s.clusters) > 1 {
		return "", rpc.InvalidArgument(field, "must be set: this process mirrors "+strings.Join(s.cfg.clusterNames(), ", "))
	}
	if name == "" {
		return s.clusters[0].name, nil
	}
	return name, nil
}

// fixed answers for what stands in the way of an added reflection in this process. In the same form
// it is returned.
func (s *Service) fixed(spec Resource, replace bool, same func(Resource) bool) (*reflectorv1.ReflectionSpec, error) {
	for _, w := range s.standing() {
		if w.origin != reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_CONFIGURED || !same(w.spec) {
			continue
		}
		if w.spec.fingerprint() == spec.fingerprint() {
			return w.spec.proto(), nil
		}
		theirs, mine := apart(w.spec.fingerprint(), spec.fingerprint())
		return nil, fmt.Errorf("%w: %s with %s, not with %s", errConfigured, w.spec, theirs, mine)
	}
	if replace || spec.Name == everything {
		return nil, nil
	}
	for _, r := range s.all() {
		found := r.state.get()
		if found.origin == reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_DISCOVERED && same(r.want) && r.want.fingerprint() != spec.fingerprint() {
			theirs, mine := apart(r.want.fingerprint(), spec.fingerprint())
			return nil, fmt.Errorf(`%w: %s is found by "*" and mirrored with %s, not with %s`, errDiffers, found.name, theirs, mine)
		}
	}
	return nil, nil
}

// sameAs tells whether another spec is for the same resource as spec: written the same, or found
// under both names. It asks the API server, within identifyWithin for all specs together, for those
// that this process has not found yet: one that was added a moment ago is among them.
func (s *Service) sameAs(ctx context.Context, spec Resource) func(Resource) bool {
	deadline := time.Now().Add(identifyWithin)
	found := map[string]delta.Collection{}
	s.mu.Lock()
	for _, r := range s.reflections {
		if r.resource.Kind != "" {
			found[r.want.String()] = r.col
		}
	}
	s.mu.Unlock()
	find := func(x Resource) (delta.Collection, bool) {
		if col, ok := found[x.String()]; ok || x.Name == everything {
			return col, ok
		}
		short, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		res, err := s.served(short, x, time.Now().Add(-s.cfg.DiscoverEvery))
		if err != nil {
			return delta.Collection{}, false
		}
		found[x.String()] = res.Collection(x.Cluster)
		return found[x.String()], true
	}
	return func(other Resource) bool {
		if other.Cluster == "" {
			other.Cluster = spec.Cluster
		}
		if other.String() == spec.String() {
			return true
		}
		if other.Cluster != spec.Cluster {
			return false
		}
		mine, ok := find(spec)
		if !ok {
			return false
		}
		theirs, ok := find(other)
		return ok && theirs == mine
	}
}

// served is the API server's resource of a spec, by answers that were asked for after since.
func (s *Service) served(ctx context.Context, spec Resource, since time.Time) (kube.Resource, error) {
	resource, version, group := spec.parts()
	col := delta.Collection{Cluster: spec.Cluster, Group: group, Version: version, Resource: resource}
	res, _, err := s.cluster(spec.Cluster).catalog.find(ctx, col, since)
	return res, err
}

// unserved reports that the API server has just said that there is no such resource.
func (s *Service) unserved(ctx context.Context, spec Resource) bool {
	if spec.Name == everything {
		return false
	}
	short, cancel := context.WithTimeout(ctx, identifyWithin)
	defer cancel()
	_, err := s.served(short, spec, time.Now())
	return errors.Is(err, kube.ErrNotServed)
}

// resolved reports whether the API server's name of a reflection's resource is known.
func (s *Service) resolved(r *reflection) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return r.resource.Kind != ""
}

// RemoveReflection stops mirroring what was added, in every reflector process.
func (v *server) RemoveReflection(ctx context.Context, req *reflectorv1.RemoveReflectionRequest) (*reflectorv1.RemoveReflectionResponse, error) {
	s := v.s
	name, resource := req.GetCluster(), req.GetResource()
	if cluster, rest, ok := strings.Cut(resource, "/"); ok && (name == "" || name == cluster) {
		name, resource = cluster, rest
	}
	if resource == "" || strings.Contains(resource, "/") {
		return nil, rpc.InvalidArgument("resource", "want a resource as it was added, or a collection's whole name")
	}
	name, err := s.clusterOf("cluster", name)
	if err != nil {
		return nil, err
	}
	if s.cluster(name) == nil {
		return nil, fmt.Errorf("%w: no cluster %.100q; this process mirrors %s", errNotAdded, name, strings.Join(s.cfg.clusterNames(), ", "))
	}
	if err := s.permit(ctx, "delete", name, resource); err != nil {
		return nil, err
	}
	means := s.meaning(name, resource)
	resp := &reflectorv1.RemoveReflectionResponse{}
	err = s.registry.edit(ctx, name, func(a *additions) (bool, error) {
		i := slices.IndexFunc(a.reflections, func(x addition) bool { return x.err == nil && means(x.Resource) })
		if i < 0 {
			return false, s.notAdded(name, resource, means)
		}
		gone := a.reflections[i]
		gone.Cluster = name
		resp.Spec = gone.proto()
		a.reflections = slices.Delete(a.reflections, i, i+1)
		if req.GetDeleteLog() {
			cols, err := s.logsOf(ctx, gone.Resource)
			if err != nil {
				return false, err
			}
			for _, col := range cols {
				a.remove(col.String(), time.Now())
			}
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// meaning tells whether a spec of the cluster is what a request calls by that name.
func (s *Service) meaning(cluster, name string) func(Resource) bool {
	found := map[string]bool{}
	for _, r := range s.all() {
		if r.want.Cluster == cluster && s.resolved(r) && matches(r.state.get().name, name) {
			found[r.want.Name] = true
		}
	}
	return func(x Resource) bool { return x.Name == name || found[x.Name] }
}

// notAdded is why something cannot be removed.
func (s *Service) notAdded(cluster, name string, means func(Resource) bool) error {
	for _, w := range s.standing() {
		if w.spec.Cluster == cluster && w.origin == reflectorv1.ReflectionOrigin_REFLECTION_ORIGIN_CONFIGURED && means(w.spec) {
			return fmt.Errorf("%w: %s", errConfigured, w.spec)
		}
	}
	for _, r := range s.all() {
		if r.want.Cluster == cluster && means(r.want) {
			return fmt.Errorf(`%w: %s is found by "*"`, errNotAdded, r.want)
		}
	}
	return fmt.Errorf("%w: %.200q in %s; %s", errNotAdded, name, cluster, rpc.ThereAre(s.mirrored(cluster), name))
}

// logsOf are the collections that a spec was mirrored into. Where the resource was never found,
// those are the logs of its name.
func (s *Service) logsOf(ctx context.Context, spec Resource) ([]delta.Collection, error) {
	var out []delta.Collection
	s.mu.Lock()
	for _, r := range s.reflections {
		if r.resource.Kind != "" && resourceKey(r.desired.spec.Cluster, r.desired.spec.Name) == resourceKey(spec.Cluster, spec.Name) {
			out = append(out, r.col)
		}
	}
	s.mu.Unlock()
	if len(out) > 0 || spec.Name == everything {
		return out, nil
	}
	logs, err := s.log.Collections(ctx)
	if err != nil {
		return nil, storeAway(err)
	}
	resource, version, group := spec.parts()
	for _, col := range logs {
		if col.Cluster == spec.Cluster && col.Resource == resource && (version == "" || col.Version == version) &&
			(group == col.Group || group == "" && version == "") {
			out = append(out, col)
		}
	}
	return out, nil
}
