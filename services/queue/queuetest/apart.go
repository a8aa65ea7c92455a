package queuetest

import (
	"context"
	"sync"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Apart is an engine of which a test can take one partition away: the partition's
// transactions hang for as long as their context lasts, or until the test has it
// refuse them.
type Apart struct {
	engine.Engine
	Part int

	mu     sync.Mutex
	gone   bool
	Refuse chan struct{} // closed when what hangs is refused
}

type apartQueue struct {
	engine.Queue
	a *Apart
}

// ApartPart is a partition of an [Apart].
type ApartPart struct {
	engine.Partition
	Of *Apart
}

// Configure implements [engine.Engine].
func (a *Apart) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := a.Engine.Configure(ctx, name, cfg)
	return apartQueue{q, a}, created, err
}

func (q apartQueue) Partitions() []engine.Partition {
	parts := append([]engine.Partition(nil), q.Queue.Partitions()...)
	parts[q.a.Part] = ApartPart{parts[q.a.Part], q.a}
	return parts
}

// Apply implements [engine.Partition].
func (p ApartPart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	p.Of.mu.Lock()
	gone, refuse := p.Of.gone, p.Of.Refuse
	p.Of.mu.Unlock()
	if gone {
		select {
		case <-refuse:
		case <-ctx.Done():
		}
		return nil, engine.ErrUnavailable
	}
	return p.Partition.Apply(ctx, t)
}

// Away makes the partition hang; back refuses what hung and lets it go on.
func (a *Apart) Away() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone, a.Refuse = true, make(chan struct{})
}

// Deny refuses what hangs, and whatever comes.
func (a *Apart) Deny() { close(a.Refuse) }

// Back refuses what hung and lets the partition go on.
func (a *Apart) Back() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gone = false
	select {
	case <-a.Refuse:
	default:
		close(a.Refuse)
	}
}

// SendSettle settles leases under a number and does not wait.
func (w *Worker) SendSettle(id uint64, ls ...*queuev1.Lease) {
	b := &queuev1.SettleBatch{RequestId: id}
	for _, l := range ls {
		b.Settlements = append(b.Settlements, &queuev1.Settlement{Queue: Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: Done})
	}
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: b}})
}

// The statuses of a settlement.
const (
	SettledOK   = queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	Unavailable = queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE
	Under       = queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
)
