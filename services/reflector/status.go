package reflector

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

// What can go wrong with a call.
var (
	errUnknown   = errors.New("reflector: no such collection")
	errNotLeader = errors.New("reflector: another reflector leads the collection")
)

var rules = []rpc.Rule{
	{Is: errUnknown, Code: codes.NotFound, Reason: "COLLECTION_NOT_FOUND"},
	{Is: errNotLeader, Code: codes.FailedPrecondition, Reason: "NOT_LEADER"},
}

// server answers the ReflectorService.
type server struct {
	reflectorv1.UnimplementedReflectorServiceServer
	s *Service
}

// ListReflections tells the state of every reflection.
func (v *server) ListReflections(_ context.Context, req *reflectorv1.ListReflectionsRequest) (*reflectorv1.ListReflectionsResponse, error) {
	resp := &reflectorv1.ListReflectionsResponse{}
	for _, r := range v.s.all() {
		p := r.state.proto()
		if req.GetCollection() == "" || matches(p.GetCollection(), req.GetCollection()) {
			resp.Reflections = append(resp.Reflections, p)
		}
	}
	if req.GetCollection() != "" && len(resp.GetReflections()) == 0 {
		return nil, fmt.Errorf("%w: %q", errUnknown, req.GetCollection())
	}
	slices.SortFunc(resp.GetReflections(), func(a, b *reflectorv1.Reflection) int {
		return strings.Compare(a.GetCollection(), b.GetCollection())
	})
	return resp, nil
}

// Relist begins a list of one collection.
func (v *server) Relist(_ context.Context, req *reflectorv1.RelistRequest) (*reflectorv1.RelistResponse, error) {
	if req.GetCollection() == "" {
		return nil, rpc.InvalidArgument("collection", "must be set")
	}
	for _, r := range v.s.all() {
		name := r.state.get().name
		if !matches(name, req.GetCollection()) {
			continue
		}
		if !r.leading() {
			return nil, fmt.Errorf("%w: %s", errNotLeader, name)
		}
		select {
		case r.relist <- struct{}{}:
		default: // one is asked for already
		}
		return &reflectorv1.RelistResponse{Collection: name}, nil
	}
	return nil, fmt.Errorf("%w: %q", errUnknown, req.GetCollection())
}

// matches reports whether asked names the collection: in whole, without the cluster, or by leading parts such as "pods" and "jobs.batch".
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

func spanAttributes(col delta.Collection, n int) []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("deltaplane.collection", col.String()), attribute.Int("deltaplane.records", n)}
}

// traceparent is the span context of ctx as a header value; empty without one.
func traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	rpc.Propagator().Inject(ctx, carrier)
	return carrier.Get("traceparent")
}
