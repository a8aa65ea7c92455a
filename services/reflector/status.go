package reflector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What can go wrong with a call.
var (
	errUnknown    = errors.New("reflector: no such collection")
	errNoCluster  = errors.New("reflector: no such cluster")
	errDiffers    = errors.New("reflector: mirrored in another form")
	errConfigured = errors.New("reflector: fixed by the configuration of this process")
	errTooMany    = errors.New("reflector: too many reflections")
	errNotServed  = errors.New("reflector: the API server does not serve the resource")
	errSecrets    = errors.New("reflector: secrets are not mirrored without --mirror-secrets")
	errNotAdded   = errors.New("reflector: no such reflection was added")
	errStoreAway  = errors.New("reflector: NATS cannot be reached for the bucket " + reflectionsBucket + ", which keeps what was added")
)

// errPlainSecrets is a fault of a configuration.
var errPlainSecrets = errors.New("reflector: secrets are mirrored only into a log that encrypts them")

var rules = []rpc.Rule{
	{Is: errUnknown, Code: codes.NotFound, Reason: "COLLECTION_NOT_FOUND"},
	{Is: errNoCluster, Code: codes.NotFound, Reason: "CLUSTER_NOT_FOUND"},
	{Is: errDiffers, Code: codes.AlreadyExists, Reason: "REFLECTION_DIFFERS"},
	{Is: errConfigured, Code: codes.FailedPrecondition, Reason: "CONFIGURED"},
	{Is: errTooMany, Code: codes.ResourceExhausted, Reason: "TOO_MANY_REFLECTIONS"},
	{Is: errNotServed, Code: codes.NotFound, Reason: "RESOURCE_NOT_SERVED"},
	{Is: errSecrets, Code: codes.FailedPrecondition, Reason: "SECRETS_NOT_MIRRORED"},
	{Is: errNotAdded, Code: codes.NotFound, Reason: "REFLECTION_NOT_FOUND"},
	{Is: errStoreAway, Code: codes.Unavailable, Reason: "REFLECTIONS_UNAVAILABLE", Retry: time.Second},
}

// server answers the ReflectorService.
type server struct {
	reflectorv1.UnsafeReflectorServiceServer
	s *Service
}

// ListReflections tells the state of every reflection.
func (v *server) ListReflections(ctx context.Context, req *reflectorv1.ListReflectionsRequest) (*reflectorv1.ListReflectionsResponse, error) {
	clusters, err := v.listed(ctx)
	if err != nil {
		return nil, err
	}
	resp := &reflectorv1.ListReflectionsResponse{}
	for _, r := range v.s.all() {
		if !clusters[r.want.Cluster] {
			continue
		}
		p := r.state.proto()
		if req.GetCollection() == "" || matches(p.GetCollection(), req.GetCollection()) {
			resp.Reflections = append(resp.Reflections, p)
		}
	}
	if req.GetCollection() != "" && len(resp.GetReflections()) == 0 {
		return nil, v.s.unknown(req.GetCollection())
	}
	slices.SortFunc(resp.GetReflections(), func(a, b *reflectorv1.Reflection) int {
		return strings.Compare(a.GetCollection(), b.GetCollection())
	})
	if req.GetCollection() == "" {
		resp.Added, resp.AddedKnown = v.s.added(clusters)
	}
	return resp, nil
}

// added are the specs that callers added to some clusters, and whether they are all.
func (s *Service) added(clusters map[string]bool) (specs []*reflectorv1.ReflectionSpec, all bool) {
	all = s.registry.complete()
	for _, cluster := range slices.Sorted(maps.Keys(clusters)) {
		set, err := decodeAdditions(s.registry.value(keyAdded + "/" + cluster))
		all = all && err == nil
		for _, x := range set.reflections {
			if x.err != nil { // a newer version wrote it
				all = false
				continue
			}
			x.Cluster = cluster
			specs = append(specs, x.proto())
		}
	}
	return specs, all
}

// unknown says that nothing of the name is mirrored, and what is.
func (s *Service) unknown(name string) error {
	return fmt.Errorf("%w: %.200q; %s", errUnknown, name, rpc.ThereAre(s.mirrored(""), name))
}

// mirrored are the collections of a cluster, or of all where it is empty.
func (s *Service) mirrored(cluster string) (names []string) {
	for _, r := range s.all() {
		if cluster == "" || r.want.Cluster == cluster {
			names = append(names, r.state.get().name)
		}
	}
	return names
}

// Relist asks the leader of a collection for a list, whichever process that is.
func (v *server) Relist(ctx context.Context, req *reflectorv1.RelistRequest) (*reflectorv1.RelistResponse, error) {
	if req.GetCollection() == "" {
		return nil, rpc.InvalidArgument("collection", "must be set")
	}
	var found []*reflection
	var names []string
	for _, r := range v.s.all() {
		if name := r.state.get().name; matches(name, req.GetCollection()) {
			found, names = append(found, r), append(names, name)
		}
	}
	switch clusters, err := v.listed(ctx); {
	case err != nil:
		return nil, err
	case len(found) == 0 || !clusters[found[0].want.Cluster]:
		return nil, v.s.unknown(req.GetCollection())
	case len(found) > 1:
		slices.Sort(names)
		return nil, rpc.InvalidArgument("collection", "means several: "+strings.Join(names, ", "))
	}
	if err := v.s.permit(ctx, "update", found[0].want.Cluster, found[0].want.Name); err != nil {
		return nil, err
	}
	if !v.s.resolved(found[0]) {
		found[0].retryNow() // it is looked for at once, and listed when it is found
	} else if err := v.s.registry.request(ctx, keyRelist+"/"+names[0], []byte(v.s.cfg.Holder)); err != nil {
		return nil, err
	}
	return &reflectorv1.RelistResponse{Collection: names[0]}, nil
}

// matches reports whether asked names the collection: in whole, without the cluster, or by leading
// parts such as "pods" and "jobs.batch".
func matches(name, asked string) bool {
	if name == asked {
		return true
	}
	_, resource, _ := strings.Cut(name, "/")
	if _, rest, ok := strings.Cut(asked, "/"); ok {
		if !strings.HasPrefix(name, asked[:len(asked)-len(rest)]) {
			return false
		}
		asked = rest
	}
	if resource == asked || strings.HasPrefix(resource, asked+".") {
		return true
	}
	c, err := delta.ParseCollection(name)
	return err == nil && c.Group != "" && asked == c.Resource+"."+c.Group
}
