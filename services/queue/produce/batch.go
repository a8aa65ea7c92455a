package produce

import (
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// produceBatch is one ProduceBatch from its receipt to its answer.
type produceBatch struct {
	id      uint64
	queue   string
	n       int              // operations asked for
	call    transaction.Call // those that are done
	at      []int            // their places, when some are not
	dropped []int            // places of adds that a shut session did not make
	bad     []badOp
	err     error // why the whole batch is refused
	bytes   int
	after   int  // AddAfter without a delay, which client-go counts as retries too
	ready   bool // to be answered; guarded by the producer's mu
	known   wire.Collections
}

// badOp is an operation that was refused.
type badOp struct {
	at  int
	err error
}

func (b *produceBatch) reset() {
	clear(b.call.Ops)
	clear(b.bad)
	*b = produceBatch{
		call: transaction.Call{Ops: b.call.Ops[:0], Done: b.call.Done, ReadsReplies: true},
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
	for i := range b.call.Ops {
		d.Number(uint64(b.place(i))) //nolint:gosec // not negative
		d.Op(&b.call.Ops[i])
	}
	for _, bad := range b.bad {
		d.Number(uint64(bad.at)) //nolint:gosec // not negative
		d.Text(bad.err.Error())
	}
	return uint64(d)
}

// dropAdds takes the adds out: their session was shut down.
func (b *produceBatch) dropAdds() {
	kept, places := b.call.Ops[:0], make([]int, 0, len(b.call.Ops))
	for i := range b.call.Ops {
		if at := b.place(i); b.call.Ops[i].Kind == workqueue.OpAdd {
			b.dropped = append(b.dropped, at)
		} else {
			kept, places = append(kept, b.call.Ops[i]), append(places, at)
		}
	}
	b.call.Ops, b.at = kept, places
}
