package console

import (
	"context"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console/session"
	"github.com/deltaplane/deltaplane/services/console/view"
)

func (s *Service) subscribe(ctx context.Context, w who, r *consolev1.SubscribeRequest) (*consolev1.SubscribeResponse, error) {
	one, err := s.sessions.Find(w.token, r.GetSession())
	if err != nil {
		return nil, err
	}
	if r.GetSubscription() == 0 {
		return nil, rpc.InvalidArgument("subscription", "is 0, which is the session itself")
	}
	return &consolev1.SubscribeResponse{}, subscribe(ctx, one, r)
}

// subscribe begins a view.
func subscribe(ctx context.Context, one *session.Session, r *consolev1.SubscribeRequest) error {
	h := one.Hub
	var open func(changed func()) (view.Reader, error)
	switch v := r.GetView().(type) {
	case *consolev1.SubscribeRequest_Flow:
		open = h.Flow
	case *consolev1.SubscribeRequest_Queues:
		open = h.Queues
	case *consolev1.SubscribeRequest_Collection:
		ranged, err := one.Range(r.GetSubscription(), v.Collection)
		if ranged || err != nil {
			return err
		}
		open = with(ctx, h.Collection, v.Collection)
	case *consolev1.SubscribeRequest_Object:
		open = with(ctx, h.Object, v.Object)
	case *consolev1.SubscribeRequest_Queue:
		open = with(ctx, h.Queue, v.Queue)
	case *consolev1.SubscribeRequest_Key:
		open = with(ctx, h.Key, v.Key)
	case *consolev1.SubscribeRequest_Nodes:
		open = with(ctx, h.Nodes, v.Nodes)
	case *consolev1.SubscribeRequest_Traces:
		open = with(ctx, h.Traces, v.Traces)
	case *consolev1.SubscribeRequest_Trace:
		open = with(ctx, h.Trace, v.Trace)
	default:
		return rpc.InvalidArgument("view", "is required, and must be one that this console knows")
	}
	return one.Subscribe(r.GetSubscription(), open)
}

// with is a view of something that is asked for.
func with[V any](ctx context.Context, open func(context.Context, V, func()) (view.Reader, error), v V) func(func()) (view.Reader, error) {
	return func(changed func()) (view.Reader, error) { return open(ctx, v, changed) }
}

func (s *Service) unsubscribe(_ context.Context, w who, r *consolev1.UnsubscribeRequest) (*consolev1.UnsubscribeResponse, error) {
	one, err := s.sessions.Find(w.token, r.GetSession())
	if err != nil {
		return nil, err
	}
	one.Unsubscribe(r.GetSubscription())
	return &consolev1.UnsubscribeResponse{}, nil
}

func (s *Service) search(ctx context.Context, w who, r *consolev1.SearchRequest) (*consolev1.SearchResponse, error) {
	h := view.NewHub(ctx, s.parts(w), nil, s.log)
	defer h.Close()
	return h.Search(ctx, r.GetText())
}
