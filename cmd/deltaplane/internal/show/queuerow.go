package show

import (
	"fmt"
	"strings"
	"time"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// QueueHeader is the header of the rows that QueueRow makes.
const QueueHeader = "QUEUE\tREADY\tDELAYED\tPROCESSING\tDIRTY\tDEAD\tOLDEST\tPARTITIONS\tSTATE"

// QueueRow is one queue as a row with cells between tabs.
func QueueRow(q *queuev1.QueueStatus) string {
	c := q.GetCounts()
	return fmt.Sprintf("%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%s", q.GetConfig().GetName(), c.GetReady(), c.GetDelayed(),
		c.GetProcessing(), c.GetDirty(), c.GetDead(), ShortDuration(q.GetOldestReady().AsDuration()),
		max(q.GetConfig().GetPartitions(), 1), QueueState(q))
}

// QueueState is whether a queue takes and hands out keys.
func QueueState(q *queuev1.QueueStatus) string {
	var states []string
	if q.GetClosed() {
		states = append(states, "closed")
	}
	if q.GetPaused() {
		states = append(states, "paused")
	}
	if until := q.GetHeldUntil(); until != nil && time.Until(until.AsTime()) > 0 {
		states = append(states, "held after a restart of the store until "+Moment(until))
	}
	if p := q.GetUnreachable(); len(p) > 0 {
		states = append(states, fmt.Sprintf("partitions %v cannot be reached and are not counted", p))
	}
	if len(states) == 0 {
		return "open"
	}
	return strings.Join(states, ", ")
}
