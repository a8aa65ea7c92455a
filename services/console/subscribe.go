package console

import (
	"context"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	"github.com/deltaplane/deltaplane/services/console/session"
	"github.com/deltaplane/deltaplane/services/console/view"
)

func (s *Service) subscribe(_ context.Context, w who, r *consolev1.SubscribeRequest) (*consolev1.SubscribeResponse, error) {
	one, err := s.sessions.Find(w.token, r.GetSession())
	if err != nil {
		return nil, err
	}
	if r.GetSubscription() == 0 {
		return nil, rpc.InvalidArgument("subscription", "is 0, which is the session itself")
	}
	return &consolev1.SubscribeResponse{}, subscribe(one, r)
}

// subscribe begins a view.
func subscribe(one *session.Session, r *consolev1.SubscribeRequest) error {
	h := one.Hub
	var open func(changed func()) (view.Reader, error)
	switch r.GetView().(type) {
	case *consolev1.SubscribeRequest_Flow:
		open = plain(h.Flow)
	case *consolev1.SubscribeRequest_Queues:
		open = plain(h.Queues)
	default:
		return rpc.InvalidArgument("view", "is required, and must be one that this console knows")
	}
	return one.Subscribe(r.GetSubscription(), open)
}

// plain is a view that needs nothing to be asked for.
func plain(open func(func()) view.Reader) func(func()) (view.Reader, error) {
	return func(changed func()) (view.Reader, error) { return open(changed), nil }
}

func (s *Service) unsubscribe(_ context.Context, w who, r *consolev1.UnsubscribeRequest) (*consolev1.UnsubscribeResponse, error) {
	one, err := s.sessions.Find(w.token, r.GetSession())
	if err != nil {
		return nil, err
	}
	one.Unsubscribe(r.GetSubscription())
	return &consolev1.UnsubscribeResponse{}, nil
}
