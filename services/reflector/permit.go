package reflector

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/authority"
)

// reflectionsResource is what rights to mirror are granted on, in the cluster that is mirrored; its
// objects have the names of resources as callers write them: "pods", "jobs.batch".
const reflectionsResource = "reflections"

// permit lets the caller do something with the reflections of a resource; an empty name is all.
func (s *Service) permit(ctx context.Context, verb, cluster, name string) error {
	if s.authority == nil {
		return nil
	}
	w := authority.Named(verb, reflectionsResource, name)
	for i := range w {
		w[i].Cluster = cluster
	}
	return s.authority.Allow(ctx, w)
}

// permitAdd lets the caller mirror a resource: one who may list and watch it as well.
func (s *Service) permitAdd(ctx context.Context, spec Resource) error {
	if s.authority == nil {
		return nil
	}
	if err := s.permit(ctx, "create", spec.Cluster, spec.Name); err != nil {
		return err
	}
	resource, version, group := spec.parts()
	of := access.Attributes{Cluster: spec.Cluster, Group: group, Version: version, Resource: resource}
	if spec.Name == everything {
		of.Group, of.Resource = access.Any, access.Any
	} else {
		short, cancel := context.WithTimeout(ctx, identifyWithin)
		defer cancel()
		if found, err := s.served(short, spec, time.Now().Add(-s.cfg.DiscoverEvery)); err == nil {
			of.Group, of.Version, of.Resource = found.Group, found.Version, found.Name
		}
	}
	namespaces := spec.Namespaces
	if spec.Scope.Namespace != "" {
		namespaces = []string{spec.Scope.Namespace}
	}
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	var wants []authority.Want
	for _, of.Namespace = range namespaces {
		for _, of.Verb = range []string{"list", "watch"} {
			wants = append(wants, authority.Want{of})
		}
	}
	return s.authority.Allow(ctx, wants...)
}

// seen reports whether the caller may see a reflection of a cluster.
func (s *Service) seen(ctx context.Context, cluster string) (bool, error) {
	if s.authority == nil {
		return true, nil
	}
	w := authority.Named("list", reflectionsResource, "")
	w[0].Cluster = cluster
	ok, _, err := s.authority.Holds(ctx, w)
	return ok, err
}

// listed lets the caller see the reflections of at least one cluster, and says of which.
func (v *server) listed(ctx context.Context) (map[string]bool, error) {
	out := map[string]bool{}
	for _, c := range v.s.clusters {
		ok, err := v.s.seen(ctx, c.name)
		if err != nil {
			return nil, err
		}
		if ok {
			out[c.name] = true
		}
	}
	if len(out) == 0 {
		return nil, v.s.permit(ctx, "list", v.s.clusters[0].name, "")
	}
	return out, nil
}
