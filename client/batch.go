package client

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// batch is one ProduceBatch: filled under the producer's mu, then sent, then
// answered. What it says after done was closed does not change any more.
type batch struct {
	id      uint64 // zero until it is sent
	ops     []*queuev1.ProduceOp
	last    map[string]int32 // while it is filled: the last operation on each key
	bytes   int
	slots   int           // callers' operations, duplicates counted
	calls   []call        // with the callbacks for their answers
	told    chan struct{} // closed when they were; nil without any
	waiting atomic.Int64  // operations somebody waits for
	parent  *batch        // it is operation `of` of a batch that was refused whole
	of      int
	left    int // operations sent on their own and not answered

	done       chan struct{}
	err        error         // of the whole
	errs       map[int]error // of operations sent on their own
	statuses   []queuev1.AddStatus
	details    []*queuev1.ProduceDetail // by operation; nil when none has any
	generation string
}

// slot is one caller's operation in a batch.
type slot struct {
	b    *batch
	i    int32
	dupe bool // another caller's operation does for it as well
}

type call struct {
	slot slot
	done func(OpResult, error)
}

const (
	maxBatchOps   = maxItems
	maxBatchBytes = 512 << 10
	maxFree       = 8 * maxBatchOps
)

// put adds an operation to the batch that is being filled. Mu must be held.
func (p *Producer) put(op *Op) (slot, error) {
	if p.stopped {
		return slot{}, ErrStopped
	}
	if p.refused != nil {
		return slot{}, p.refused
	}
	b := p.filling
	if b != nil && (len(b.ops) >= maxBatchOps || b.bytes >= maxBatchBytes) {
		p.seal()
		b = nil
	}
	if b == nil {
		b = &batch{done: make(chan struct{}), ops: make([]*queuev1.ProduceOp, 0, 16)}
		if n := len(p.maps); n > 0 {
			b.last, p.maps = p.maps[n-1], p.maps[:n-1]
		} else {
			b.last = make(map[string]int32, 64)
		}
		p.filling = b
	}
	b.waiting.Add(1)
	b.slots++
	p.pending++
	if i, ok := b.last[op.Key]; ok && collapse(b.ops[i], op) {
		return slot{b, i, true}, nil
	}
	i := int32(len(b.ops)) //nolint:gosec // at most maxBatchOps
	b.ops = append(b.ops, p.wire(op))
	b.last[op.Key] = i
	b.bytes += len(op.Key) + len(op.Trace) + 64*len(op.Barrier) + 16
	return slot{b, i, false}, nil
}

// collapse makes an add that waits to be sent do for another one of its key as
// well, as the queue itself would a moment later.
func collapse(w *queuev1.ProduceOp, op *Op) bool {
	if OpKind(w.Kind) != OpAdd || op.Kind != OpAdd && op.Kind != 0 || op.Trace != "" && op.Trace != w.Traceparent {
		return false
	}
	w.Priority = max(w.Priority, int32(op.Priority)) //nolint:gosec // checked
	if len(op.Barrier) > 0 {
		b := fromBarrier(w.Barrier)
		if b == nil {
			b = Barrier{}
		}
		b.Merge(op.Barrier)
		w.Barrier = b.proto()
	}
	return true
}

// wire is an operation as it is sent, made of what an answered one has left.
func (p *Producer) wire(op *Op) *queuev1.ProduceOp {
	n := len(p.free)
	if n == 0 {
		slab := make([]queuev1.ProduceOp, 64)
		for i := range slab {
			p.free = append(p.free, &slab[i])
		}
		n = len(p.free)
	}
	w := p.free[n-1]
	p.free = p.free[:n-1]
	w.Key, w.Kind, w.Priority, w.Traceparent = op.Key, queuev1.ProduceKind(op.Kind), int32(op.Priority), op.Trace //nolint:gosec // checked
	w.Delay, w.Policy, w.Barrier = nil, queuev1.DelayPolicy_DELAY_POLICY_UNSPECIFIED, nil
	if w.Kind == queuev1.ProduceKind_PRODUCE_KIND_UNSPECIFIED {
		w.Kind = queuev1.ProduceKind(OpAdd)
	}
	if op.Kind == OpAddAfter {
		w.Delay = durationpb.New(op.Delay)
		if op.Last {
			w.Policy = queuev1.DelayPolicy_DELAY_POLICY_LAST
		}
	}
	if len(op.Barrier) > 0 {
		w.Barrier = op.Barrier.proto()
	}
	return w
}

// seal ends the filling of a batch. Mu must be held.
func (p *Producer) seal() {
	b := p.filling
	clear(b.last)
	p.maps = append(p.maps, b.last)
	b.last, p.filling = nil, nil
	p.sealed = append(p.sealed, b)
}

const (
	// eager is how many batches may be under way before small ones wait for company.
	eager = 3
	// large is what a batch must hold to be sent beside so many others.
	large = 128
)

// sendable reports whether there is a batch that may be sent now. Mu must be held.
func (p *Producer) sendable() bool {
	switch {
	case len(p.flight) >= p.window || !p.hold.IsZero():
		return false
	case len(p.sealed) > 0:
		return true
	}
	return p.filling != nil && (len(p.flight) < eager || len(p.filling.ops) >= large)
}

// take returns the next batch to be sent, or nil. Mu must be held.
func (p *Producer) take() *batch {
	for p.sendable() {
		if len(p.sealed) == 0 {
			p.seal()
		}
		b := p.sealed[0]
		p.sealed = slices.Delete(p.sealed, 0, 1)
		if b.waiting.Load() <= 0 && b.parent == nil {
			p.finish(b) // everybody who wanted it is gone
			continue
		}
		if b.id == 0 {
			p.lastID++
			b.id = p.lastID
		}
		p.flight = append(p.flight, b)
		return b
	}
	return nil
}

// answered takes the server's answer to a batch.
func (p *Producer) answered(m *queuev1.Produced) {
	p.mu.Lock()
	if g := m.GetGeneration(); g != "" {
		p.generation = g
	}
	at := slices.IndexFunc(p.flight, func(b *batch) bool { return b.id == m.GetRequestId() })
	if at < 0 { // of a batch sent twice
		p.mu.Unlock()
		return
	}
	b := p.flight[at]
	p.flight = slices.Delete(p.flight, at, at+1)
	b.generation = p.generation
	e := m.GetError()
	switch {
	case e == nil && len(m.GetStatuses()) == len(b.ops):
		b.statuses, p.fault = m.GetStatuses(), nil
		if len(m.GetDetails()) > 0 {
			b.details = make([]*queuev1.ProduceDetail, len(b.ops))
			for _, d := range m.GetDetails() {
				if i := int(d.GetIndex()); i >= 0 && i < len(b.details) {
					b.details[i] = d
				}
			}
		}
		p.finish(b)
	case e == nil:
		b.err = fmt.Errorf("client: queue %s answered %d statuses for %d operations", p.cfg.Queue, len(m.GetStatuses()), len(b.ops))
		p.finish(b)
	case again(e):
		p.fault = p.refusal(e)
		p.retry(b)
		p.hold = time.Now().Add(max(e.GetRetryAfter().AsDuration(), retryAfter))
		p.notify() // the sender has to wait for another moment
	case e.GetCode() == int32(codes.InvalidArgument) && len(b.ops) > 1:
		p.divide(b)
	default:
		b.err = p.refusal(e)
		p.finish(b)
	}
	p.unlockAndWake()
}

// retryAfter is the least pause after a batch that could not be done.
const retryAfter = 50 * time.Millisecond

// again reports whether a refused batch is tried again: it was surely not done
// and will be soon, or doing it twice is as well.
func again(e *queuev1.ProduceError) bool {
	code := e.GetCode()
	return code == int32(codes.Unavailable) || code == int32(codes.Unknown) || e.GetReason() == "OVERLOADED"
}

// retry puts a batch back before those with a greater number. Mu must be held.
func (p *Producer) retry(b *batch) {
	at := 0
	for at < len(p.sealed) && p.sealed[at].id != 0 && p.sealed[at].id < b.id {
		at++
	}
	p.sealed = slices.Insert(p.sealed, at, b)
}

// divide sends the operations of a batch one by one, so that only that at fault
// is refused. Mu must be held.
func (p *Producer) divide(b *batch) {
	b.statuses, b.details, b.left = make([]queuev1.AddStatus, len(b.ops)), make([]*queuev1.ProduceDetail, len(b.ops)), len(b.ops)
	parts := make([]*batch, len(b.ops))
	for i, op := range b.ops {
		parts[i] = &batch{ops: []*queuev1.ProduceOp{op}, parent: b, of: i, done: make(chan struct{})}
	}
	p.sealed = append(parts, p.sealed...)
	b.ops = nil
}

// finish lets go of a batch that has its answer. Mu must be held, and given up
// by unlockAndWake.
func (p *Producer) finish(b *batch) {
	p.pending -= b.slots
	if len(p.free) < maxFree {
		p.free = append(p.free, b.ops...)
	}
	b.ops = nil
	if len(b.calls) > 0 {
		p.finished = append(p.finished, b)
	}
	if whole := b.parent; whole != nil {
		if b.statuses != nil {
			whole.statuses[b.of] = b.statuses[0]
		}
		if b.details != nil {
			whole.details[b.of] = b.details[0]
		}
		if b.err != nil {
			if whole.errs == nil {
				whole.errs = map[int]error{}
			}
			whole.errs[b.of] = b.err
		}
		if whole.left--; whole.left == 0 {
			whole.generation = b.generation
			p.finish(whole)
		}
	}
	close(b.done)
}

// fail ends batches with an error. Mu must be held.
func (p *Producer) fail(batches []*batch, err error) {
	for _, b := range batches {
		b.err = err
		p.finish(b)
	}
}

// unlockAndWake gives up mu, wakes the sender if there is something for it, and calls
// the callbacks of the batches that were answered.
func (p *Producer) unlockAndWake() {
	wake := p.asleep && p.sendable()
	if wake {
		p.asleep = false
	}
	finished := p.finished
	p.finished = nil
	p.telling = append(p.telling, finished...)
	p.mu.Unlock()
	if wake {
		p.notify()
	}
	for _, b := range finished {
		for _, c := range b.calls {
			c.done(p.result(c.slot))
		}
		close(b.told)
	}
	if len(finished) > 0 {
		p.mu.Lock()
		p.telling = slices.DeleteFunc(p.telling, func(b *batch) bool { return slices.Contains(finished, b) })
		p.mu.Unlock()
	}
}

func (p *Producer) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// oldest is the batch that was filled first, or nil. Mu must be held.
func (p *Producer) oldest() *batch {
	switch {
	case len(p.flight) > 0:
		return p.flight[0]
	case len(p.sealed) > 0:
		return p.sealed[0]
	}
	return p.filling
}

// result is what became of an operation of an answered batch.
func (p *Producer) result(s slot) (OpResult, error) {
	b, i := s.b, int(s.i)
	if b.err != nil {
		return OpResult{}, b.err
	}
	if err := b.errs[i]; err != nil {
		return OpResult{}, err
	}
	r := OpResult{Status: AddStatus(b.statuses[i])}
	if b.details != nil && b.details[i] != nil {
		d := b.details[i]
		if e := d.GetError(); e != nil {
			return OpResult{}, p.refusal(e)
		}
		r.NumRequeues = d.GetNumRequeues()
		if d.GetReadyAt() != nil {
			r.ReadyAt = d.GetReadyAt().AsTime()
		}
	}
	if s.dupe && r.Status == AddQueued {
		r.Status = AddAlreadyQueued
	}
	return r, nil
}
