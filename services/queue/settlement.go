package queue

import (
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// settlement checks one settlement.
func (c *checks) settlement(at string, st *queuev1.Settlement) workqueue.Op {
	c.queue(at+".queue", st.GetQueue())
	c.key(at+".key", st.GetKey())
	c.token(at+".token", st.GetToken())
	outcome, known := outcomes[st.GetOutcome()]
	if !known {
		c.add(at+".outcome", "%v is not allowed", st.GetOutcome())
	}
	op := workqueue.Op{
		Kind: workqueue.OpSettle, Key: st.GetKey(), Token: st.GetToken(), Outcome: outcome,
		Delay: wholeMicros(c.duration(at+".delay", st.GetDelay(), workqueue.MaxDelay)),
	}
	if st.GetDelay() != nil && op.Delay != 0 && outcome != workqueue.After && outcome != workqueue.Release {
		c.add(at+".delay", "only with OUTCOME_RETRY_AFTER and OUTCOME_RELEASE")
	}
	if st.Priority != nil {
		op.Relevel, op.Level = true, c.level(at+".priority", st.GetPriority().GetValue())
	}
	if r := st.GetReason(); len(r) > workqueue.MaxReasonLen || !utf8.ValidString(r) {
		c.add(at+".reason", "%d bytes, at most %d of UTF-8", len(r), workqueue.MaxReasonLen)
	}
	read, wrote := c.barrier(at+".read_at", st.GetReadAt()), c.barrier(at+".wrote", st.GetWrote())
	if st.GetReason() != "" || len(read) > 0 || len(wrote) > 0 {
		op.More = &workqueue.More{Reason: st.GetReason(), Barrier: read, Wrote: wrote}
	}
	return op
}

// lastEvent is the latest time an event may have: what every engine's numbers
// can hold to the microsecond.
var lastEvent = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// event reads a time in microseconds since 1970; zero when it is left out.
func (c *checks) event(field string, t *timestamppb.Timestamp, required bool) int64 {
	switch {
	case t == nil && required:
		c.add(field, "missing")
	case t == nil:
	case t.CheckValid() != nil:
		c.add(field, "not a time")
	case t.AsTime().UnixMicro() <= 0 || t.AsTime().After(lastEvent):
		c.add(field, "%v is not between 1970 and 2200", t.AsTime())
	default:
		return t.AsTime().UnixMicro()
	}
	return 0
}
