package wire

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// Settlement checks one settlement.
func (c *Checks) Settlement(at string, st *queuev1.Settlement) workqueue.Op {
	c.Queue(at+".queue", st.GetQueue())
	c.Key(at+".key", st.GetKey())
	c.Token(at+".token", st.GetToken())
	outcome, known := Outcomes[st.GetOutcome()]
	if !known {
		c.Add(at+".outcome", "%v is not allowed", st.GetOutcome())
	}
	op := workqueue.Op{
		Kind: workqueue.OpSettle, Key: st.GetKey(), Token: st.GetToken(), Outcome: outcome,
		Delay: WholeMicros(c.Duration(at+".delay", st.GetDelay(), workqueue.MaxDelay)),
	}
	if st.GetDelay() != nil && op.Delay != 0 && outcome != workqueue.After && outcome != workqueue.Release {
		c.Add(at+".delay", "only with OUTCOME_RETRY_AFTER and OUTCOME_RELEASE")
	}
	if st.Priority != nil {
		op.Relevel, op.Level = true, c.Level(at+".priority", st.GetPriority().GetValue())
	}
	if r := st.GetReason(); len(r) > workqueue.MaxReasonLen || !utf8.ValidString(r) {
		c.Add(at+".reason", "%d bytes, at most %d of UTF-8", len(r), workqueue.MaxReasonLen)
	}
	read, wrote := c.Barrier(at+".read_at", st.GetReadAt()), c.Barrier(at+".wrote", st.GetWrote())
	writes := c.writes(at+".writes", st.GetWrites())
	if st.GetReason() != "" || len(read) > 0 || len(wrote) > 0 || len(writes) > 0 {
		op.More = &workqueue.More{Reason: st.GetReason(), Barrier: read, Wrote: wrote, Writes: writes}
	}
	return op
}

// maxWrites is how many writes a settlement may name.
const maxWrites = 16

func (c *Checks) writes(at string, in []*queuev1.Write) []workqueue.Write {
	if len(in) == 0 {
		return nil
	}
	if len(in) > maxWrites {
		c.Add(at, "%d, at most %d", len(in), maxWrites)
		return nil
	}
	out := make([]workqueue.Write, len(in))
	for i, w := range in {
		out[i] = workqueue.Write{Verb: w.GetVerb(), Collection: w.GetCollection(), Key: w.GetKey(), RV: w.GetResourceVersion()}
		for _, f := range [...]struct {
			name, value string
			most        int
		}{
			{"verb", out[i].Verb, 16}, {"collection", out[i].Collection, 512}, {"key", out[i].Key, workqueue.MaxKeyLen}, {"resource_version", out[i].RV, 128},
		} {
			if len(f.value) > f.most || strings.ContainsFunc(f.value, unicode.IsControl) || !utf8.ValidString(f.value) {
				c.Add(at+"."+f.name, "%d bytes, at most %d of UTF-8 without control characters", len(f.value), f.most)
			}
		}
	}
	return out
}

// Writes is the contract's writes.
func Writes(in []workqueue.Write) []*queuev1.Write {
	var out []*queuev1.Write
	for _, w := range in {
		out = append(out, &queuev1.Write{Verb: w.Verb, Collection: w.Collection, Key: w.Key, ResourceVersion: w.RV})
	}
	return out
}

// lastEvent is the latest time an event may have: what every engine's numbers
// can hold to the microsecond.
var lastEvent = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Event reads a time in microseconds since 1970; zero when it is left out.
func (c *Checks) Event(field string, t *timestamppb.Timestamp) int64 {
	switch {
	case t == nil:
	case t.CheckValid() != nil:
		c.Add(field, "not a time")
	case t.AsTime().UnixMicro() <= 0 || t.AsTime().After(lastEvent):
		c.Add(field, "%v is not between 1970 and 2200", t.AsTime())
	default:
		return t.AsTime().UnixMicro()
	}
	return 0
}
