package queue

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// plan is a settlement request, checked: its operations in order, and the
// queues they are for.
type plan struct {
	ops   []workqueue.Op
	parts []part
}

// part is what a request says of one queue.
type part struct {
	queue string
	at    []int // places of its operations; nil for all of them
}

var outcomes = map[queuev1.Outcome]workqueue.Outcome{
	queuev1.Outcome_OUTCOME_DONE:               workqueue.Done,
	queuev1.Outcome_OUTCOME_FORGET:             workqueue.Forget,
	queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED: workqueue.Retry,
	queuev1.Outcome_OUTCOME_RETRY_AFTER:        workqueue.After,
	queuev1.Outcome_OUTCOME_RELEASE:            workqueue.Release,
	queuev1.Outcome_OUTCOME_DEAD:               workqueue.Dead,
}

// plan checks settlements.
func (s *server) plan(c *checks, in []*queuev1.Settlement) *plan {
	p := &plan{}
	if !c.count("settlements", len(in), 1, maxItems) {
		return p
	}
	p.ops = make([]workqueue.Op, 0, len(in))
	for i, st := range in {
		p.add(st.GetQueue(), c.settlement("settlements["+strconv.Itoa(i)+"]", st))
	}
	return p
}

// add puts an operation on a queue behind the others.
func (p *plan) add(queue string, op workqueue.Op) {
	i := len(p.ops)
	p.ops = append(p.ops, op)
	switch {
	case i == 0:
		p.parts = append(p.parts, part{queue: queue})
		return
	case len(p.parts) == 1 && p.parts[0].queue == queue && p.parts[0].at == nil:
		return
	case p.parts[0].at == nil: // the second queue
		for n := range i {
			p.parts[0].at = append(p.parts[0].at, n)
		}
	}
	n := slices.IndexFunc(p.parts, func(pt part) bool { return pt.queue == queue })
	if n < 0 {
		n = len(p.parts)
		p.parts = append(p.parts, part{queue: queue})
	}
	p.parts[n].at = append(p.parts[n].at, i)
}

// take is the operations of one part.
func (p *plan) take(pt *part) []workqueue.Op {
	if pt.at == nil {
		return p.ops
	}
	ops := make([]workqueue.Op, len(pt.at))
	for n, i := range pt.at {
		ops[n] = p.ops[i]
	}
	return ops
}

// place is where operation n of a part stands in the request.
func (pt *part) place(n int) int {
	if pt.at == nil {
		return n
	}
	return pt.at[n]
}

var seed = maphash.MakeSeed()

// sum tells plans apart that settle different leases or settle them otherwise.
func (p *plan) sum() uint64 {
	const prime = 0x9E3779B97F4A7C15
	h := uint64(len(p.ops))
	for i := range p.parts {
		h = (h ^ maphash.String(seed, p.parts[i].queue)) * prime
	}
	for i := range p.ops {
		op := &p.ops[i]
		h = (bits.RotateLeft64(h, 23) ^ maphash.String(seed, op.Key) ^ op.Token<<3 ^ uint64(op.Outcome)) * prime
	}
	return h
}

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

// row is the outcome of one settlement.
type row struct {
	status   workqueue.Status
	requeues int
	readyAt  int64
}

// settled is the outcome of a settlement request.
type settled struct {
	plan  *plan
	rows  []row   // one per settlement, in order
	freed []freed // leases of the session that ended, with their credit
	via   *dispatcher
	err   error
}

// results is the outcome as the contract has it.
func (s *settled) results() []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, len(s.rows))
	for i, r := range s.rows {
		out[i] = s.result(i, r)
	}
	return out
}

func (s *settled) result(i int, r row) *queuev1.SettleResult {
	op := &s.plan.ops[i]
	return &queuev1.SettleResult{
		Key: op.Key, Token: op.Token, Status: settleStatus(r.status), NumRequeues: int64(r.requeues), ReadyAt: stamp(r.readyAt),
	}
}

// settle does a settlement request, one turn per partition, and calls done
// once, possibly from a dispatcher: it must not block. A repeated request gets
// the first answer.
func (s *Service) settle(ctx context.Context, ss *session, id uint64, p *plan, done func(*settled)) {
	sum := uint64(0)
	if id != 0 {
		sum = p.sum()
	}
	a, repeat, err := ss.begin(id, sum)
	if err != nil {
		done(&settled{err: err})
		return
	}
	if repeat {
		// The first one may still be under way; nothing else waits here.
		go func() {
			select {
			case <-a.ready:
				done(&settled{plan: p, rows: a.rows, err: a.err})
			case <-ctx.Done():
				done(&settled{err: ctx.Err()})
			}
		}()
		return
	}
	queues := make([]*lines, len(p.parts))
	for i := range p.parts {
		if queues[i], err = s.queue(ctx, p.parts[i].queue); err != nil {
			ss.end(a, nil, err)
			done(&settled{err: err})
			return
		}
	}
	w := &settling{ss: ss, a: a, left: len(p.parts), done: done, out: settled{plan: p, rows: make([]row, len(p.ops))}}
	for i, l := range queues {
		l.submit(&call{ops: p.take(&p.parts[i]), by: ss.id, done: func(c *call) { w.part(l, &p.parts[i], c) }})
	}
}

// settling is a settlement request under way.
type settling struct {
	ss   *session
	a    *answer
	done func(*settled)

	mu   sync.Mutex
	out  settled // guarded by mu, as is all that follows
	left int
	some bool // were applied
}

func (w *settling) part(l *lines, pt *part, c *call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.err != nil {
		w.out.err = errors.Join(w.out.err, c.err)
	}
	if c.err == nil || c.failed != nil {
		w.some = true
		w.ss.mu.Lock()
		for i := range c.replies {
			if c.failed != nil && c.failed[i] != nil {
				continue
			}
			r, op := &c.replies[i], &c.ops[i]
			w.out.rows[pt.place(i)] = row{r.Status, r.Requeues, r.ReadyAt}
			w.out.freed = w.ss.drop(leaseKey{l.at(op.Key), op.Token}, op.Key, w.out.freed)
			l.line.settled(r.Status, c.now, op.Token)
		}
		w.ss.mu.Unlock()
		w.ss.touch()
	}
	if w.left--; w.left > 0 {
		return
	}
	if w.out.err != nil && w.some { // no single cause tells what became of all of them
		w.out.err = fmt.Errorf("%w: the settlements of some queues were applied, of others not: %v", engine.ErrUnknown, w.out.err) //nolint:errorlint // the cause must not decide the code
	}
	w.ss.end(w.a, w.out.rows, w.out.err)
	w.out.via = c.via
	w.done(&w.out)
}
