package view

import (
	"context"

	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// Queues shows all queues.
func (h *Hub) Queues(changed func()) (Reader, error) {
	return h.polled("queues", changed, func() *poll {
		return newPoll(func(ctx context.Context) (*consolev1.OpenResponse, error) {
			answer, err := h.listQueues(ctx)
			if err != nil {
				return nil, err
			}
			out := &consolev1.Queues{Engine: answer.GetEngine()}
			for _, q := range answer.GetQueues() {
				out.Queues = append(out.Queues, summary(q, nil))
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Queues{Queues: out}}, nil
		})
	})
}
