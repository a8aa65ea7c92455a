package work

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

const (
	// maxAssign is how many leases one Assign message holds.
	maxAssign = 500
	// maxUnsent is how many bytes of leases may wait for a worker that does not
	// read, before it gets no more.
	maxUnsent = 4 << 20
	// keptBytes is the largest buffer that a stream keeps for the next time.
	keptBytes = 64 << 10
)

// outbox is what waits to be sent on a Work stream: answers first, then leases.
type outbox struct {
	messages []any // generated or encoded
	leases   []*queuev1.Lease
	packed   []packed // compact leases
	used     int      // of packed
	bytes    int      // of leases
}

// packed is the leases of one compact Assign.
type packed struct {
	queue string
	body  []byte
	n     int
}

func (o *outbox) empty() bool { return len(o.messages) == 0 && len(o.leases) == 0 && o.used == 0 }

func (o *outbox) reset() {
	clear(o.messages)
	clear(o.leases)
	for i := range o.used {
		o.packed[i].body, o.packed[i].n = o.packed[i].body[:0], 0
		if cap(o.packed[i].body) > keptBytes {
			o.packed[i].body = nil
		}
	}
	o.messages, o.leases, o.used, o.bytes = o.messages[:0], o.leases[:0], 0, 0
	if len(o.packed) > 4 {
		o.packed = o.packed[:4:4]
	}
}

func (o *outbox) control(c *queuev1.Control) {
	o.messages = append(o.messages, &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Control{Control: c}})
}

func (o *outbox) lease(l *queuev1.Lease) {
	o.leases = append(o.leases, l)
	o.bytes += weight(l)
}

// encode adds a lease in compact form.
func (o *outbox) encode(queue string, l *workqueue.Lease, now, ends int64) {
	if o.used == 0 || o.packed[o.used-1].queue != queue || o.packed[o.used-1].n >= maxAssign || len(o.packed[o.used-1].body) >= wire.MaxAssignBytes {
		if o.used == len(o.packed) {
			o.packed = append(o.packed, packed{})
		}
		o.packed[o.used].queue = queue
		o.used++
	}
	p := &o.packed[o.used-1]
	was := len(p.body)
	p.body = appendLease(p.body, l, now, ends)
	p.n++
	o.bytes += len(p.body) - was
}

// send sends all of it.
func (o *outbox) send(to queuev1.QueueService_WorkServer) error {
	for _, m := range o.messages {
		if err := to.SendMsg(m); err != nil {
			return err
		}
	}
	for leases := o.leases; len(leases) > 0; {
		n := fitting(leases)
		m := &queuev1.WorkResponse{Kind: &queuev1.WorkResponse_Assign{Assign: &queuev1.Assign{Leases: leases[:n]}}}
		if err := to.SendMsg(m); err != nil {
			return err
		}
		leases = leases[n:]
	}
	for i := range o.used {
		p := &o.packed[i]
		var head [512]byte
		name := protowire.AppendString(protowire.AppendTag(head[:0], fieldAssignQueue, protowire.BytesType), p.queue)
		if err := to.SendMsg(wire.Message(fieldAssign, name, p.body)); err != nil {
			return err
		}
	}
	return nil
}

// fitting is how many leases go into one assignment.
func fitting(leases []*queuev1.Lease) int { return within(leases[:min(maxAssign, len(leases))]) }

// within is how many leases go into one message of any kind, at least one.
func within(leases []*queuev1.Lease) int {
	size := 0
	for n, l := range leases {
		if size += weight(l); size > wire.MaxAssignBytes && n > 0 {
			return n
		}
	}
	return len(leases)
}

// weight is about how many bytes a lease takes.
func weight(l *queuev1.Lease) int {
	size := 96 + len(l.GetKey()) + len(l.GetState())
	for _, m := range l.GetBarrier() {
		size += len(m.GetCollection()) + len(m.GetRevision().GetResourceVersion()) + 16
	}
	for _, trace := range l.GetTraceparents() {
		size += len(trace)
	}
	for _, names := range [][]string{l.GetExpectations().GetCreations(), l.GetExpectations().GetDeletions()} {
		for _, name := range names {
			size += len(name)
		}
	}
	return size
}
