package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/expectations"
	"github.com/deltaplane/deltaplane/core/workqueue"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Stamp is a time of the store's clock; zero is no time.
func Stamp(us int64) *timestamppb.Timestamp {
	if us == 0 {
		return nil
	}
	return &timestamppb.Timestamp{Seconds: us / 1e6, Nanos: int32(us%1e6) * 1000}
}

// Span is a duration in microseconds.
func Span(us int64) *durationpb.Duration {
	return durationpb.New(time.Duration(us) * time.Microsecond)
}

// AddStatus is the contract's status of an add.
var AddStatus = map[workqueue.Status]queuev1.AddStatus{
	workqueue.Queued:        queuev1.AddStatus_ADD_STATUS_QUEUED,
	workqueue.AlreadyQueued: queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED,
	workqueue.MarkedDirty:   queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY,
	workqueue.Delayed:       queuev1.AddStatus_ADD_STATUS_DELAYED,
	workqueue.Died:          queuev1.AddStatus_ADD_STATUS_DEAD,
}

// AddResult is the answer to an add.
func AddResult(r *workqueue.Reply) *queuev1.AddResult {
	return &queuev1.AddResult{Status: AddStatus[r.Status], ReadyAt: Stamp(r.ReadyAt), NumRequeues: int64(r.Requeues)}
}

// Outcomes are the outcomes of the contract; what is not in it is not allowed.
var Outcomes = map[queuev1.Outcome]workqueue.Outcome{
	queuev1.Outcome_OUTCOME_DONE:               workqueue.Done,
	queuev1.Outcome_OUTCOME_FORGET:             workqueue.Forget,
	queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED: workqueue.Retry,
	queuev1.Outcome_OUTCOME_RETRY_AFTER:        workqueue.After,
	queuev1.Outcome_OUTCOME_RELEASE:            workqueue.Release,
	queuev1.Outcome_OUTCOME_DEAD:               workqueue.Dead,
}

// OutcomeOut is the contract's outcome.
func OutcomeOut(o workqueue.Outcome) queuev1.Outcome {
	for out, in := range Outcomes {
		if in == o {
			return out
		}
	}
	return queuev1.Outcome_OUTCOME_UNSPECIFIED
}

// SettleStatus is the contract's status of a settlement.
func SettleStatus(s workqueue.Status) queuev1.SettleStatus {
	switch s {
	case workqueue.Settled:
		return queuev1.SettleStatus_SETTLE_STATUS_SETTLED
	case workqueue.Requeued:
		return queuev1.SettleStatus_SETTLE_STATUS_REQUEUED
	case workqueue.Lost:
		return queuev1.SettleStatus_SETTLE_STATUS_LOST
	case workqueue.NotLeased:
		return queuev1.SettleStatus_SETTLE_STATUS_NOT_LEASED
	default:
		return queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
	}
}

// Revisions is the contract's barrier.
func Revisions(b workqueue.Barrier) []*deltav1.CollectionRevision {
	if len(b) == 0 {
		return nil
	}
	out := make([]*deltav1.CollectionRevision, len(b))
	for i, m := range b {
		out[i] = &deltav1.CollectionRevision{Collection: m.Collection, Revision: &deltav1.Revision{Epoch: m.Epoch, ResourceVersion: m.RV}}
	}
	return out
}

// Expectations is the contract's expectations, nil for none.
func Expectations(s *expectations.Set) *queuev1.Expectations {
	if s == nil {
		return nil
	}
	return &queuev1.Expectations{OwnerUid: s.Owner, Creations: s.Creates, Deletions: s.Deletes, Token: s.Token, StoredAt: Stamp(s.StoredAt)}
}

// Lease is a lease granted at a time of the store's clock; ends is its deadline
// by the server's.
func Lease(queue string, l *workqueue.Lease, now, ends int64) *queuev1.Lease {
	return &queuev1.Lease{
		Queue: queue, Key: l.Key, Token: l.Token, Deadline: Stamp(l.Deadline), Remaining: Span(l.Deadline - now),
		NumRequeues: int64(l.Requeues), Attempt: int64(l.Attempt), Priority: int32(workqueue.Priority(l.Level)),
		AddedAt: Stamp(l.AddedAt), ReadyAt: Stamp(l.ReadyAt), Barrier: Revisions(l.Barrier), Traceparents: l.Traces,
		State: l.State, Expectations: Expectations(l.Expect), EndsUs: ends,
	}
}

// States is the contract's state of a key.
var States = map[workqueue.State]queuev1.State{
	workqueue.Idle:       queuev1.State_STATE_IDLE,
	workqueue.Ready:      queuev1.State_STATE_READY,
	workqueue.Waiting:    queuev1.State_STATE_DELAYED,
	workqueue.Processing: queuev1.State_STATE_PROCESSING,
	workqueue.Dirty:      queuev1.State_STATE_DIRTY,
	workqueue.StateDead:  queuev1.State_STATE_DEAD,
}

// Item is a key for people: it has no token, which is its holder's. A token is the time of its
// lease, which is therefore cut to milliseconds.
func Item(it *workqueue.Item) *queuev1.Item {
	_, holder := SplitSession(it.Holder)
	out := &queuev1.Item{
		Key: it.Key, State: States[it.State], Holder: holder, Deadline: Stamp(it.Deadline),
		NumRequeues: int64(it.Requeues), Attempt: int64(it.Attempt),
		AddedAt: Stamp(it.AddedAt), ReadyAt: Stamp(it.ReadyAt), DelayedUntil: Stamp(it.DelayedUntil),
		Barrier: Revisions(it.Barrier), StateBytes: int32(it.StateBytes), Expectations: Expectations(it.Expect), LastReason: it.Reason,
		LastHolders: it.Holders,
	}
	if out.Expectations != nil {
		out.Expectations.Token = 0
	}
	if it.State == workqueue.Processing || it.State == workqueue.Dirty {
		out.LeasedAt = Stamp(int64(it.Token) / 1000 * 1000)
	}
	if it.State != workqueue.Idle && it.State != workqueue.StateDead {
		out.Priority = int32(workqueue.Priority(it.Level))
	}
	return out
}

// ItemStatus is the contract's status of an operator's operation.
func ItemStatus(s workqueue.Status) queuev1.ItemStatus {
	switch s {
	case workqueue.OK:
		return queuev1.ItemStatus_ITEM_STATUS_DONE
	case workqueue.Unchanged:
		return queuev1.ItemStatus_ITEM_STATUS_UNCHANGED
	case workqueue.Held:
		return queuev1.ItemStatus_ITEM_STATUS_HELD
	default:
		return queuev1.ItemStatus_ITEM_STATUS_UNSPECIFIED
	}
}

// Counts is the contract's counts.
func Counts(c workqueue.Counts) *queuev1.Counts {
	return &queuev1.Counts{
		Ready: int64(c.Ready), Delayed: int64(c.Delayed), Processing: int64(c.Processing), Dirty: int64(c.Dirty), Dead: int64(c.Dead),
	}
}
