package console

import (
	"context"
	"fmt"

	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// mostKeys is how many keys a call acts on, as the queue takes them.
const mostKeys = 1000

func (s *Service) actOnKeys(ctx context.Context, w who, r *consolev1.ActOnKeysRequest) (*consolev1.ActOnKeysResponse, error) {
	if n := len(r.GetKeys()); n == 0 || n > mostKeys {
		return nil, rpc.InvalidArgument("keys", fmt.Sprintf("are %d, want 1 to %d", n, mostKeys))
	}
	conn := s.parts(w).Queue.Conn
	admin := queuev1.NewQueueAdminServiceClient(conn)
	var results []*queuev1.ItemResult
	switch r.GetAction() {
	case consolev1.KeyAction_KEY_ACTION_RETRY:
		answer, err := admin.RetryNow(ctx, &queuev1.RetryNowRequest{Queue: r.GetQueue(), Keys: r.GetKeys()})
		if err != nil {
			return nil, err
		}
		results = answer.GetResults()
	case consolev1.KeyAction_KEY_ACTION_RELEASE:
		answer, err := admin.ReleaseItems(ctx, &queuev1.ReleaseItemsRequest{Queue: r.GetQueue(), Keys: r.GetKeys()})
		if err != nil {
			return nil, err
		}
		results = answer.GetResults()
	case consolev1.KeyAction_KEY_ACTION_DELETE:
		answer, err := admin.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: r.GetQueue(), Keys: r.GetKeys()})
		if err != nil {
			return nil, err
		}
		results = answer.GetResults()
	case consolev1.KeyAction_KEY_ACTION_FRONT:
		var err error
		if results, err = front(ctx, queuev1.NewQueueServiceClient(conn), r); err != nil {
			return nil, err
		}
	default:
		return nil, rpc.InvalidArgument("action", "is required, and must be one that this console knows")
	}
	s.sessions.Soon(w.token)
	out := &consolev1.ActOnKeysResponse{}
	for _, one := range results {
		out.Results = append(out.Results, &consolev1.KeyResult{Key: one.GetKey(), Status: statuses[one.GetStatus()]})
	}
	return out, nil
}

var statuses = map[queuev1.ItemStatus]consolev1.KeyResultStatus{
	queuev1.ItemStatus_ITEM_STATUS_DONE:      consolev1.KeyResultStatus_KEY_RESULT_STATUS_DONE,
	queuev1.ItemStatus_ITEM_STATUS_UNCHANGED: consolev1.KeyResultStatus_KEY_RESULT_STATUS_UNCHANGED,
	queuev1.ItemStatus_ITEM_STATUS_HELD:      consolev1.KeyResultStatus_KEY_RESULT_STATUS_HELD,
}

func (s *Service) actOnQueue(ctx context.Context, w who, r *consolev1.ActOnQueueRequest) (*consolev1.ActOnQueueResponse, error) {
	admin := queuev1.NewQueueAdminServiceClient(s.parts(w).Queue.Conn)
	var err error
	switch r.GetAction() {
	case consolev1.QueueAction_QUEUE_ACTION_PAUSE:
		_, err = admin.PauseQueue(ctx, &queuev1.PauseQueueRequest{Queue: r.GetQueue()})
	case consolev1.QueueAction_QUEUE_ACTION_RESUME:
		_, err = admin.ResumeQueue(ctx, &queuev1.ResumeQueueRequest{Queue: r.GetQueue()})
	case consolev1.QueueAction_QUEUE_ACTION_CLOSE:
		_, err = admin.CloseQueue(ctx, &queuev1.CloseQueueRequest{Queue: r.GetQueue()})
	case consolev1.QueueAction_QUEUE_ACTION_OPEN:
		_, err = admin.OpenQueue(ctx, &queuev1.OpenQueueRequest{Queue: r.GetQueue()})
	case consolev1.QueueAction_QUEUE_ACTION_DELETE:
		_, err = admin.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: r.GetQueue()})
	default:
		err = rpc.InvalidArgument("action", "is required, and must be one that this console knows")
	}
	if err != nil {
		return nil, err
	}
	s.sessions.Soon(w.token)
	return &consolev1.ActOnQueueResponse{}, nil
}

// foremost is the highest priority that a queue knows.
const foremost = 3

// front adds keys with the highest priority; one that waits already keeps that.
func front(ctx context.Context, queues queuev1.QueueServiceClient, r *consolev1.ActOnKeysRequest) ([]*queuev1.ItemResult, error) {
	add := &queuev1.AddRequest{Queue: r.GetQueue()}
	for _, key := range r.GetKeys() {
		add.Items = append(add.Items, &queuev1.AddItem{Key: key, Priority: foremost})
	}
	answer, err := queues.Add(ctx, add)
	if err != nil {
		return nil, err
	}
	out := make([]*queuev1.ItemResult, len(answer.GetResults()))
	for i, one := range answer.GetResults() {
		out[i] = &queuev1.ItemResult{Key: r.GetKeys()[i], Status: queuev1.ItemStatus_ITEM_STATUS_DONE}
		if one.GetStatus() == queuev1.AddStatus_ADD_STATUS_DEAD {
			out[i].Status = queuev1.ItemStatus_ITEM_STATUS_UNCHANGED
		}
	}
	return out, nil
}
