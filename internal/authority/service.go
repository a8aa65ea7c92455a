package authority

import (
	"context"
	"strings"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/rpc"
	accessv1 "github.com/deltaplane/deltaplane/proto/deltaplane/access/v1"
)

// Register has a server tell callers who they are and what they may do. The authority may be nil:
// then they may do everything.
func Register(r grpc.ServiceRegistrar, a *Authority) {
	accessv1.RegisterAccessServiceServer(r, &server{a: a})
}

type server struct {
	accessv1.UnsafeAccessServiceServer
	a *Authority
}

var sources = map[access.Source]accessv1.Source{
	access.Certificate: accessv1.Source_SOURCE_CERTIFICATE, access.TokenFile: accessv1.Source_SOURCE_TOKEN_FILE, access.Cluster: accessv1.Source_SOURCE_CLUSTER,
}

// WhoAmI implements the AccessService.
func (s *server) WhoAmI(ctx context.Context, _ *accessv1.WhoAmIRequest) (*accessv1.WhoAmIResponse, error) {
	resp := &accessv1.WhoAmIResponse{Identity: &accessv1.Identity{}, Name: rpc.Identity(ctx), Limited: s.a != nil}
	id := rpc.Caller(ctx)
	if id == nil {
		return resp, nil
	}
	resp.Identity, resp.Source = identity(id), sources[id.Source]
	if s.a != nil {
		policy := s.a.policy.get()
		for _, c := range s.a.clusters {
			if as := policy.In(c.name, id); as != nil {
				resp.Clusters = append(resp.Clusters, identity(as))
			}
		}
	}
	return resp, nil
}

func identity(id *access.Identity) *accessv1.Identity {
	return &accessv1.Identity{User: id.User, Uid: id.UID, Groups: id.Groups, Cluster: id.Cluster}
}

// CanI implements the AccessService.
func (s *server) CanI(ctx context.Context, r *accessv1.CanIRequest) (*accessv1.CanIResponse, error) {
	for _, f := range []struct{ name, value string }{{"verb", r.GetVerb()}, {"resource", r.GetResource()}} {
		if f.value == "" {
			return nil, rpc.InvalidArgument(f.name, "is required")
		}
	}
	if strings.Contains(r.GetResource(), "/") {
		return nil, rpc.InvalidArgument("resource", "names a subresource, which has a field of its own")
	}
	w := Want{{
		Cluster: r.GetCluster(), Verb: r.GetVerb(), Group: r.GetGroup(), Version: r.GetVersion(), Resource: r.GetResource(),
		Subresource: r.GetSubresource(), Namespace: r.GetNamespace(), Name: r.GetName(),
	}}
	if r.GetGroup() == access.Group {
		w = Named(r.GetVerb(), r.GetResource(), r.GetName())
		for i := range w {
			w[i].Cluster = r.GetCluster()
		}
	} else if s.a != nil && r.GetCluster() == "" && len(s.a.clusters) == 1 {
		w[0].Cluster = s.a.clusters[0].name
	}
	allowed, reason, err := s.a.Holds(ctx, w)
	if err != nil {
		return nil, err
	}
	return &accessv1.CanIResponse{Allowed: allowed, Reason: reason}, nil
}
