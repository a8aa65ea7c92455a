package queue

import (
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// produceBatch is one ProduceBatch from its receipt to its answer.
type produceBatch struct {
	id      uint64
	queue   string
	n       int   // operations asked for
	call    call  // those that are done
	at      []int // their places, when some are not
	dropped []int // places of adds that a shut session did not make
	bad     []badOp
	err     error // why the whole batch is refused
	bytes   int
	after   int  // AddAfter without a delay: a retry to client-go all the same
	ready   bool // to be answered; guarded by the producer's mu
	known   wire.Collections
}

// badOp is an operation that was refused.
type badOp struct {
	at  int
	err error
}

func (b *produceBatch) reset() {
	clear(b.call.ops)
	clear(b.bad)
	*b = produceBatch{
		call: call{ops: b.call.ops[:0], done: b.call.done, reads: true},
		at:   b.at[:0], dropped: b.dropped[:0], bad: b.bad[:0], known: b.known,
	}
}

// place is where operation i of the call stands in the batch.
func (b *produceBatch) place(i int) int {
	if len(b.at) == 0 {
		return i
	}
	return b.at[i]
}

// sum tells batches apart that ask for different operations.
func (b *produceBatch) sum() uint64 {
	d := wire.Digest(b.n)
	d.Text(b.queue)
	for i := range b.call.ops {
		d.Number(uint64(b.place(i))) //nolint:gosec // not negative
		d.Op(&b.call.ops[i])
	}
	for _, bad := range b.bad {
		d.Number(uint64(bad.at)) //nolint:gosec // not negative
		d.Text(bad.err.Error())
	}
	return uint64(d)
}

// dropAdds takes the adds out: their session was shut down.
func (b *produceBatch) dropAdds() {
	kept, places := b.call.ops[:0], make([]int, 0, len(b.call.ops))
	for i := range b.call.ops {
		if at := b.place(i); b.call.ops[i].Kind == workqueue.OpAdd {
			b.dropped = append(b.dropped, at)
		} else {
			kept, places = append(kept, b.call.ops[i]), append(places, at)
		}
	}
	b.call.ops, b.at = kept, places
}
