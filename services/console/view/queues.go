package view

import (
	"context"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/meter"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
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
				s := summary(q, nil)
				s.Rates = h.did.rates(s.GetQueue(), time.Now())
				out.Queues = append(out.Queues, s)
			}
			return &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Queues{Queues: out}}, nil
		})
	})
}

// activity is what servers did with queues. It is safe for concurrent use.
type activity struct {
	mu     sync.Mutex
	meters meter.Set // guarded by mu
}

// count takes in an answer of one of the servers.
func (a *activity) count(answer *queuev1.ListQueuesResponse, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range answer.GetQueues() {
		if did := q.GetActivity(); did != nil {
			a.meters.Count(q.GetConfig().GetName(), did.GetSince().AsTime().UnixNano(), at, meter.Reading{did.GetAdds(), did.GetSettlements()})
		}
	}
	a.meters.Forget(at)
}

// rates are those of a queue, by all servers that answered lately; nil while they are not known.
func (a *activity) rates(queue string, at time.Time) *consolev1.Rates {
	a.mu.Lock()
	defer a.mu.Unlock()
	flow, known := a.meters.Flow(queue, at)
	if !known {
		return nil
	}
	return &consolev1.Rates{Adds: flow[0], Settlements: flow[1]}
}
