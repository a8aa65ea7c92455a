package transaction

import (
	"hash/maphash"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// fold makes one operation of duplicate adds: an immediate add of a key that an
// immediate add of the same transaction made wait already can only answer that it
// waits, so it does not go to the store. What may differ is merged into the
// first, or else the add stays on its own: a higher level moves the key to the
// tail of another line, and other collections may not fit. Nothing else may
// have happened to the key in between.
type fold struct {
	slots []slot // by hash of the key, open addressing
	gen   uint32 // slots of other generations are free
	used  int
	prev  []int32 // per operation: the add before it that carries a trace of the same key, −1 for none
}

var foldSeed = maphash.MakeSeed()

// slot is the last operation of a transaction on one key.
type slot struct {
	gen    uint32
	op     int32
	traces int32 // operations in a row that carry one, the last included
}

// folded is where the operations of a call went.
type folded struct {
	place   []int32 // in the transaction; its complement for a duplicate
	replies []workqueue.Reply
}

// maxFold is how many operations one transaction may make of one: it bounds how long
// answers take to be dealt out.
const maxFold = 16

// take appends the operations of calls to a transaction, about limit of them, and
// returns how many calls went in.
func (f *fold) take(t *workqueue.Transaction, calls []*Call, limit int) int {
	f.grow(calls, limit)
	f.prev = f.prev[:0]
	f.renew()
	raw := 0
	for n, c := range calls {
		if raw += len(c.Ops); n > 0 && raw > limit {
			if raw > maxFold*limit || len(t.Ops)+f.strange(t, c.Ops) > limit {
				return n
			}
		}
		c.first = len(t.Ops)
		f.add(t, c)
	}
	return len(calls)
}

// grow makes room for what may go into one transaction.
func (f *fold) grow(calls []*Call, limit int) {
	ops := 0
	for _, c := range calls {
		if ops += len(c.Ops); ops > limit+wire.MaxItems {
			break
		}
	}
	n := max(len(f.slots), 64)
	for n < 2*ops {
		n *= 2
	}
	if n > len(f.slots) {
		f.slots, f.gen = make([]slot, n), 0
	}
}

// renew frees every slot.
func (f *fold) renew() {
	f.used = 0
	if f.gen++; f.gen == 0 {
		clear(f.slots)
		f.gen = 1
	}
}

// immediate says that an add only makes its key wait now.
func immediate(op *workqueue.Op) bool {
	return op.Kind == workqueue.OpAdd && op.Delay <= 0 && !op.Limited
}

// strange is how many operations are no adds of keys seen in this transaction.
func (f *fold) strange(t *workqueue.Transaction, ops []workqueue.Op) int {
	n := 0
	for i := range ops {
		if !immediate(&ops[i]) || f.find(t, ops[i].Key).gen != f.gen {
			n++
		}
	}
	return n
}

// find is the slot of a key: its own, or the free one where it belongs.
func (f *fold) find(t *workqueue.Transaction, key string) *slot {
	mask := uint64(len(f.slots) - 1)
	for h := maphash.String(foldSeed, key); ; h++ {
		s := &f.slots[h&mask]
		if s.gen != f.gen || t.Ops[s.op].Key == key {
			return s
		}
	}
}

func (f *fold) add(t *workqueue.Transaction, c *Call) {
	c.folded = nil
	for i := range c.Ops {
		op := &c.Ops[i]
		if !immediate(op) {
			if keyless(op.Kind) {
				f.renew()
			} else if f.used > 0 {
				if s := f.find(t, op.Key); s.gen == f.gen {
					s.op, s.traces = int32(len(t.Ops)), 0
				}
			}
			f.append(t, c, i)
			continue
		}
		s := f.find(t, op.Key)
		if s.gen != f.gen {
			f.used++
			*s = slot{gen: f.gen, op: int32(len(t.Ops))}
		} else if base := &t.Ops[s.op]; immediate(base) && op.Level <= base.Level && f.merge(t, s, base, op) {
			c.fold(i, ^s.op)
			continue
		} else {
			if !immediate(base) {
				s.traces = 0
			}
			for len(f.prev) <= len(t.Ops) {
				f.prev = append(f.prev, -1)
			}
			if s.traces > 0 {
				f.prev[len(t.Ops)] = s.op
			}
			s.op = int32(len(t.Ops))
		}
		if op.Trace != "" {
			s.traces++
		}
		f.append(t, c, i)
	}
}

func (f *fold) append(t *workqueue.Transaction, c *Call, i int) {
	if c.folded != nil {
		c.folded.place = append(c.folded.place, int32(len(t.Ops)))
	}
	t.Ops = append(t.Ops, c.Ops[i])
}

// fold notes that operation i is a duplicate.
func (c *Call) fold(i int, place int32) {
	if c.folded == nil {
		c.folded = &folded{place: make([]int32, i, len(c.Ops))}
		for n := range i {
			c.folded.place[n] = int32(c.first + n)
		}
	}
	c.folded.place = append(c.folded.place, place)
}

// merge puts what a duplicate carries into the add before it. It reports false
// when that cannot be done without changing what the store would make of both.
func (f *fold) merge(t *workqueue.Transaction, s *slot, base, op *workqueue.Op) bool {
	trace := op.Trace
	if trace == base.Trace {
		trace = ""
	}
	if trace != "" && base.Trace != "" && s.traces < workqueue.MaxTraces {
		return false // one more of those that are kept
	}
	had, has := marksOf(base), marksOf(op)
	if !covers(had, has) || !covers(has, had) {
		return false // it may not fit where the other does
	}
	if len(has) > 0 {
		base.More = &workqueue.More{Barrier: had.Merge(has)}
	}
	switch {
	case trace == "":
	case base.Trace == "":
		base.Trace = trace
		s.traces++
	default: // only the last ones are kept: each moves one forward
		for at := s.op; at >= 0; {
			t.Ops[at].Trace, trace = trace, t.Ops[at].Trace
			if int(at) >= len(f.prev) {
				break
			}
			at = f.prev[at]
		}
	}
	return true
}

func marksOf(op *workqueue.Op) workqueue.Barrier {
	if op.More == nil {
		return nil
	}
	return op.More.Barrier
}

// covers says that every collection of b is in a as well.
func covers(a, b workqueue.Barrier) bool {
	for _, m := range b {
		found := false
		for _, o := range a {
			if found = o.Collection == m.Collection; found {
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}

// Status is what operation i of a call did.
func (c *Call) Status(i int) workqueue.Status { return c.Reply(i).Status }

// Reply is the reply to operation i of a call without an error.
func (c *Call) Reply(i int) workqueue.Reply {
	if c.folded == nil {
		return c.Replies[i]
	}
	at := c.folded.place[i]
	if at >= 0 {
		return c.folded.replies[at]
	}
	r := c.folded.replies[^at]
	if r.Status == workqueue.Queued {
		r.Status = workqueue.AlreadyQueued
	}
	return r
}

// Unfold gives every operation a reply of its own.
func (c *Call) Unfold() {
	if c.folded == nil {
		return
	}
	replies := make([]workqueue.Reply, len(c.Ops))
	for i := range replies {
		replies[i] = c.Reply(i)
	}
	c.Replies, c.folded = replies, nil
}

// ownOps is how many operations of a call are in its transaction.
func (c *Call) ownOps() int {
	if c.folded == nil {
		return len(c.Ops)
	}
	n := 0
	for _, p := range c.folded.place {
		if p >= 0 {
			n++
		}
	}
	return n
}

// Failure is why operation i was not done, nil when it was.
func (c *Call) Failure(i int) error {
	if c.Failed != nil {
		return c.Failed[i]
	}
	return c.Err
}
