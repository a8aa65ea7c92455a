package session

import (
	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// Row is the result of one settlement.
type Row struct {
	Status   workqueue.Status
	Requeues int
	ReadyAt  int64
	waits    bool // the answer is to come
	away     bool // there was none: the store's part was not reached
}

// SettleResults are the results of a settlement request, or of some of it.
type SettleResults struct {
	Plan  *Plan
	Rows  []Row   // one per settlement, in order
	More  bool    // other rows follow
	Freed []Freed // leases of the session that ended, with their credit
	Via   *transaction.Dispatcher
	Err   error
}

// Results are the rows as the contract has them, for a client that knows partial
// answers or for one that does not.
func (s *SettleResults) Results(partial bool) []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, 0, len(s.Rows))
	for i, r := range s.Rows {
		if !r.waits {
			out = append(out, s.Result(i, r, partial))
		}
	}
	return out
}

// each is the result of every settlement, where one answer is all there is: what
// is under way was not reached in time.
func (s *SettleResults) each() []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, len(s.Rows))
	for i, r := range s.Rows {
		r.away, r.waits = r.away || r.waits, false
		out[i] = s.Result(i, r, true)
	}
	return out
}

// Result is a row as the contract has it, for one who knows partial answers or does not.
func (s *SettleResults) Result(i int, r Row, partial bool) *queuev1.SettleResult {
	op := &s.Plan.Ops[i]
	return &queuev1.SettleResult{
		Key: op.Key, Token: op.Token, Status: r.Code(partial), NumRequeues: int64(r.Requeues), ReadyAt: wire.Stamp(r.ReadyAt),
	}
}

// Code is the row's status. A client that does not know that a part of the store can
// be away gets the safe answer: that the lease is lost.
func (r *Row) Code(partial bool) queuev1.SettleStatus {
	switch {
	case r.waits:
		return queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
	case r.away && partial:
		return queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE
	case r.away:
		return queuev1.SettleStatus_SETTLE_STATUS_LOST
	}
	return wire.SettleStatus(r.Status)
}
