package clientgo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/informer"
)

// ErrAmbiguous: several clusters have the resource, so that one must be named.
var ErrAmbiguous = errors.New("clientgo: several clusters have the resource")

// Index is what informers read. *client.Index is one.
type Index interface {
	informer.Source
	Collections(ctx context.Context) ([]client.CollectionStatus, error)
}

// Collection is the name of the collection of a resource, as the index lists it. An empty cluster
// is the only one that has the resource. Errors wrap [client.ErrCollectionNotFound],
// [ErrAmbiguous], or are those of an index that cannot be reached.
func Collection(ctx context.Context, index Index, cluster string, resource schema.GroupVersionResource) (string, error) {
	c, err := discover(ctx, index, cluster, resource)
	return c.Collection, err
}

func discover(ctx context.Context, index Index, cluster string, resource schema.GroupVersionResource) (client.CollectionStatus, error) {
	all, err := index.Collections(ctx)
	if err != nil {
		return client.CollectionStatus{}, fmt.Errorf("clientgo: discover %s: %w", text(resource), err)
	}
	var found []client.CollectionStatus
	names, clusters := make([]string, len(all)), []string(nil)
	for i, c := range all {
		names[i] = c.Collection
		if (schema.GroupVersionResource{Group: c.Group, Version: c.Version, Resource: c.Resource}) == resource && (cluster == "" || cluster == c.Cluster) {
			found = append(found, c)
			clusters = append(clusters, c.Cluster)
		}
	}
	slices.Sort(clusters)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		slices.Sort(names)
		return client.CollectionStatus{}, fmt.Errorf("clientgo: %w: %s of cluster %q; the index has %s",
			client.ErrCollectionNotFound, text(resource), cluster, strings.Join(names, ", "))
	default:
		return client.CollectionStatus{}, fmt.Errorf("%w: %s in %s; set Cluster", ErrAmbiguous, text(resource), strings.Join(clusters, ", "))
	}
}

// text writes a resource as kubectl does: pods.v1, jobs.v1.batch.
func text(r schema.GroupVersionResource) string {
	return strings.TrimSuffix(r.Resource+"."+r.Version+"."+r.Group, ".")
}
