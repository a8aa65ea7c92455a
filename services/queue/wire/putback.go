package wire

import (
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// PutBack is what gives the keys of a request what a backup has of them, checked.
func PutBack(queue string, items []*queuev1.Item, now time.Time) ([]workqueue.Op, error) {
	c := &Checks{}
	c.Queue("queue", queue)
	c.Count("items", len(items), 1, MaxItems)
	ops := make([]workqueue.Op, min(len(items), MaxItems))
	for i := range ops {
		ops[i] = c.putBack("items["+strconv.Itoa(i)+"]", items[i], now)
	}
	return ops, c.Err()
}

func (c *Checks) putBack(field string, it *queuev1.Item, now time.Time) workqueue.Op {
	c.Key(field+".key", it.GetKey())
	op := workqueue.Op{
		Kind: workqueue.OpPutBack, Key: it.GetKey(), Level: c.Level(field+".priority", it.GetPriority()), Outcome: workqueue.Done,
		More: &workqueue.More{Data: it.GetSavedState(), Reason: it.GetLastReason()},
	}
	switch it.GetState() {
	case queuev1.State_STATE_READY, queuev1.State_STATE_PROCESSING, queuev1.State_STATE_DIRTY:
		op.Outcome = workqueue.Release
	case queuev1.State_STATE_DEAD:
		op.Outcome = workqueue.Dead
	case queuev1.State_STATE_IDLE, queuev1.State_STATE_DELAYED:
	default:
		c.Add(field+".state", "%v is none that a key has", it.GetState())
	}
	if due := it.GetDelayedUntil(); due != nil {
		if err := due.CheckValid(); err != nil {
			c.Add(field+".delayed_until", "not a time")
		}
		op.Delay = WholeMicros(max(due.AsTime().Sub(now), time.Microsecond)) // what is due runs
		op.Delay = min(op.Delay, WholeMicros(workqueue.MaxDelay))
	} else if it.GetState() == queuev1.State_STATE_DELAYED {
		c.Add(field+".delayed_until", "required for a delayed key")
	}
	if n := it.GetNumRequeues(); n < 0 || n > 1<<30 {
		c.Add(field+".num_requeues", "%d, must be 0 to %d", n, 1<<30)
	} else {
		op.Count = int(n)
	}
	if n := len(it.GetSavedState()); n > workqueue.MaxStateLen {
		c.Add(field+".saved_state", "%d bytes, at most %d", n, workqueue.MaxStateLen)
	}
	if r := it.GetLastReason(); len(r) > workqueue.MaxReasonLen || !utf8.ValidString(r) {
		c.Add(field+".last_reason", "%d bytes, at most %d of UTF-8", len(r), workqueue.MaxReasonLen)
	}
	if marks := it.GetBarrier(); len(marks) > workqueue.MaxMarks { // a key may have more than one request adds
		c.Add(field+".barrier", "%d collections, at most %d", len(marks), workqueue.MaxMarks)
	} else {
		for len(marks) > 0 {
			n := min(len(marks), MaxMarks)
			op.More.Barrier = op.More.Barrier.Merge(c.Barrier(field+".barrier", marks[:n]))
			marks = marks[n:]
		}
	}
	if e := it.GetExpectations(); e != nil {
		c.Owner(field+".expectations.owner_uid", e.GetOwnerUid(), true)
		c.Names(field+".expectations.creations", e.GetCreations())
		c.Names(field+".expectations.deletions", e.GetDeletions())
		op.More.Owner, op.More.Creates, op.More.Deletes = e.GetOwnerUid(), e.GetCreations(), e.GetDeletions()
	}
	return op
}
