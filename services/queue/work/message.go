package work

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/session"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// workMessage is a WorkRequest as the server reads it: settlements become
// operations at once.
type workMessage struct {
	queuev1.WorkRequest
	settle *settleMessage // instead of the generated one
}

type settleMessage struct {
	id   uint64
	hold bool
	plan *session.Plan
	err  error  // what is wrong with the settlements
	good string // the last name of a queue that was checked
}

const fieldSettle = 3 // of WorkRequest

// Decode reads one message.
func (m *workMessage) Decode(b []byte) error {
	m.settle = nil
	m.WorkRequest.Kind = nil
	num, typ, n := protowire.ConsumeTag(b)
	if n > 0 && num == fieldSettle && typ == protowire.BytesType {
		if body, k := protowire.ConsumeBytes(b[n:]); k > 0 && n+k == len(b) {
			s := &settleMessage{}
			if err := s.decode(string(body)); err != nil {
				return err
			}
			m.settle = s
			return nil
		}
	}
	return proto.Unmarshal(b, &m.WorkRequest)
}

// decode reads a SettleBatch.
func (s *settleMessage) decode(b string) error {
	c := &wire.Checks{}
	s.plan = &session.Plan{Ops: make([]workqueue.Op, 0, len(b)/40+1)}
	for i := 0; len(b) > 0; {
		f, rest, err := wire.NextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.Num == 1 && f.Typ == protowire.VarintType:
			s.id = f.V
		case f.Num == 2 && f.Typ == protowire.BytesType:
			if i < wire.MaxItems {
				if err := s.settlement(c, i, f.S); err != nil {
					return err
				}
			}
			i++
			if i > wire.MaxItems {
				c.Errs = nil
				c.Count("settlements", i, 1, wire.MaxItems)
			}
		case f.Num == 3 && f.Typ == protowire.VarintType:
			s.hold = f.V != 0
		}
	}
	if len(s.plan.Ops) == 0 {
		c.Count("settlements", 0, 1, wire.MaxItems)
	}
	s.err = c.Err()
	return nil
}

// settlement reads one settlement: the common fields here, any other through
// the generated code.
func (s *settleMessage) settlement(c *wire.Checks, i int, b string) error {
	var queue string
	var op workqueue.Op
	op.Kind = workqueue.OpSettle
	outcome := queuev1.Outcome(0)
	rare := false
	for rest := b; len(rest) > 0 && !rare; {
		f, next, err := wire.NextField(rest)
		if err != nil {
			return err
		}
		rest = next
		switch {
		case f.Num == 1 && f.Typ == protowire.BytesType:
			queue = f.S
		case f.Num == 2 && f.Typ == protowire.BytesType:
			op.Key = f.S
		case f.Num == 3 && f.Typ == protowire.VarintType:
			op.Token = f.V
		case f.Num == 4 && f.Typ == protowire.VarintType:
			outcome = queuev1.Outcome(int32(f.V)) //nolint:gosec // an enum is an int32 on the wire
		default:
			rare = true
		}
	}
	if (queue == "" || queue != s.good) && wire.CheckName(queue) != nil {
		rare = true
	} else {
		s.good = queue
	}
	op.Outcome = wire.Outcomes[outcome]
	if rare || op.Outcome == 0 || !wire.GoodKey(op.Key) || op.Token == 0 || op.Token > 1<<53 {
		var st queuev1.Settlement
		if err := proto.Unmarshal([]byte(b), &st); err != nil {
			return err
		}
		s.plan.Add(st.GetQueue(), c.Settlement(wire.At("settlements", i), &st))
		return nil
	}
	s.plan.Add(queue, op)
	return nil
}
