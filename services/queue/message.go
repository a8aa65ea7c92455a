package queue

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
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
	plan *plan
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
	c := &checks{}
	s.plan = &plan{ops: make([]workqueue.Op, 0, len(b)/40+1)}
	for i := 0; len(b) > 0; {
		f, rest, err := nextField(b)
		if err != nil {
			return err
		}
		b = rest
		switch {
		case f.num == 1 && f.typ == protowire.VarintType:
			s.id = f.v
		case f.num == 2 && f.typ == protowire.BytesType:
			if i < maxItems {
				if err := s.settlement(c, i, f.s); err != nil {
					return err
				}
			}
			i++
			if i > maxItems {
				c.errs = nil
				c.count("settlements", i, 1, maxItems)
			}
		case f.num == 3 && f.typ == protowire.VarintType:
			s.hold = f.v != 0
		}
	}
	if len(s.plan.ops) == 0 {
		c.count("settlements", 0, 1, maxItems)
	}
	s.err = c.err()
	return nil
}

// settlement reads one settlement: the common fields here, any other through
// the generated code.
func (s *settleMessage) settlement(c *checks, i int, b string) error {
	var queue string
	var op workqueue.Op
	op.Kind = workqueue.OpSettle
	outcome := queuev1.Outcome(0)
	rare := false
	for rest := b; len(rest) > 0 && !rare; {
		f, next, err := nextField(rest)
		if err != nil {
			return err
		}
		rest = next
		switch {
		case f.num == 1 && f.typ == protowire.BytesType:
			queue = f.s
		case f.num == 2 && f.typ == protowire.BytesType:
			op.Key = f.s
		case f.num == 3 && f.typ == protowire.VarintType:
			op.Token = f.v
		case f.num == 4 && f.typ == protowire.VarintType:
			outcome = queuev1.Outcome(int32(f.v)) //nolint:gosec // an enum is an int32 on the wire
		default:
			rare = true
		}
	}
	if (queue == "" || queue != s.good) && checkName(queue) != nil {
		rare = true
	} else {
		s.good = queue
	}
	op.Outcome = outcomes[outcome]
	if rare || op.Outcome == 0 || !goodKey(op.Key) || op.Token == 0 || op.Token > 1<<53 {
		var st queuev1.Settlement
		if err := proto.Unmarshal([]byte(b), &st); err != nil {
			return err
		}
		s.plan.add(st.GetQueue(), c.settlement(at("settlements", i), &st))
		return nil
	}
	s.plan.add(queue, op)
	return nil
}
