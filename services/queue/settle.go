package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// row is the outcome of one settlement.
type row struct {
	status   workqueue.Status
	requeues int
	readyAt  int64
	waits    bool // the answer is to come
	away     bool // there was none: the store's part was not reached
}

// settled is the outcome of a settlement request, or of some of it.
type settled struct {
	plan  *plan
	rows  []row   // one per settlement, in order
	more  bool    // other rows follow
	freed []freed // leases of the session that ended, with their credit
	via   *transaction.Dispatcher
	err   error
}

// results is the outcome as the contract has it, for whoever knows partial
// answers or does not.
func (s *settled) results(partial bool) []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, 0, len(s.rows))
	for i, r := range s.rows {
		if !r.waits {
			out = append(out, s.result(i, r, partial))
		}
	}
	return out
}

// each is the outcome of every settlement, where one answer is all there is: what
// is under way was not reached in time.
func (s *settled) each() []*queuev1.SettleResult {
	out := make([]*queuev1.SettleResult, len(s.rows))
	for i, r := range s.rows {
		r.away, r.waits = r.away || r.waits, false
		out[i] = s.result(i, r, true)
	}
	return out
}

func (s *settled) result(i int, r row, partial bool) *queuev1.SettleResult {
	op := &s.plan.ops[i]
	return &queuev1.SettleResult{
		Key: op.Key, Token: op.Token, Status: r.code(partial), NumRequeues: int64(r.requeues), ReadyAt: wire.Stamp(r.readyAt),
	}
}

// code is the row's status. Who does not know that a part of the store can be
// away is told what is safe: that the lease is lost.
func (r *row) code(partial bool) queuev1.SettleStatus {
	switch {
	case r.waits:
		return queuev1.SettleStatus_SETTLE_STATUS_UNSPECIFIED
	case r.away && partial:
		return queuev1.SettleStatus_SETTLE_STATUS_UNAVAILABLE
	case r.away:
		return queuev1.SettleStatus_SETTLE_STATUS_LOST
	}
	return wire.SettleStatus(r.status)
}

// settling is a settlement request under way: one transaction of each partition that
// it concerns.
type settling struct {
	ss    *session
	a     *answer
	whole bool // what is not reached is an error of the whole request
	done  func(*settled)

	mu       sync.Mutex
	out      settled // guarded by mu, as is all that follows
	left     int
	some     bool // were applied
	timer    *time.Timer
	answered []bool // by row: it was answered early
}

// portion is what a request says of one partition.
type portion struct {
	d  *transaction.Dispatcher
	at []int // places of its operations; nil for all of them
}

// settle does a settlement request and calls done, possibly from a dispatcher:
// it must not block. Done is called once, or, where partitions take longer than
// early and that is set, also with what there is by then. A repeated request gets the
// first answer. Unless it is to be done as a whole, what is not reached is told
// by its rows, and so are leases of which nobody can tell whose they are.
func (s *leases) settle(ctx context.Context, ss *session, id uint64, p *plan, whose unresolved, whole bool, early time.Duration, done func(*settled)) {
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
	w := &settling{ss: ss, a: a, whole: whole, done: done, out: settled{plan: p, rows: make([]row, len(p.ops))}}
	if err := whose.any(); err != nil {
		if whole {
			ss.end(a, nil, err)
			done(&settled{err: err})
			return
		}
		w.out.err = err
		for i := range whose {
			w.out.rows[i] = row{away: true}
		}
	}
	var shares []portion
	for i := range p.parts {
		pt := &p.parts[i]
		l, err := s.queues.Use(ctx, pt.queue)
		switch {
		case err != nil && (whole || ctx.Err() != nil || errors.Is(err, wire.ErrStopping)):
			ss.end(a, nil, err)
			done(&settled{err: err})
			return
		case err != nil:
			w.refused(pt, err)
		default:
			for _, sh := range p.split(pt, l) {
				if sh = w.resolved(sh, whose); sh.at == nil || len(sh.at) > 0 {
					shares = append(shares, sh)
				}
			}
		}
	}
	w.left = len(shares)
	if w.left == 0 {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.finish()
		return
	}
	for i := range shares {
		sh := &shares[i]
		for n := range w.count(sh) {
			w.out.rows[sh.place(n)].waits = true
		}
	}
	if early > 0 {
		w.timer = time.AfterFunc(early, w.answerEarly)
	}
	for _, sh := range shares {
		ops := p.ops
		if sh.at != nil {
			ops = make([]workqueue.Op, len(sh.at))
			for n, i := range sh.at {
				ops[n] = p.ops[i]
			}
		}
		sh.d.Submit(&transaction.Call{Ops: ops, Session: ss.id, Done: func(c *transaction.Call) { w.part(&sh, c) }})
	}
}

// split is a request's part of a queue by partition.
func (p *plan) split(pt *part, l *transaction.Queue) []portion {
	if len(l.Partitions) == 1 {
		return []portion{{l.Partitions[0], pt.at}}
	}
	var out []portion
	mine := make([]int, len(l.Partitions)) // by partition: its place in out, plus one
	n := len(p.ops)
	if pt.at != nil {
		n = len(pt.at)
	}
	for k := range n {
		i := pt.place(k)
		d := l.At(p.ops[i].Key)
		if mine[d.Part] == 0 {
			out = append(out, portion{d: d})
			mine[d.Part] = len(out)
		}
		sh := &out[mine[d.Part]-1]
		sh.at = append(sh.at, i)
	}
	return out
}

func (sh *portion) place(n int) int {
	if sh.at == nil {
		return n
	}
	return sh.at[n]
}

func (w *settling) count(sh *portion) int {
	if sh.at == nil {
		return len(w.out.rows)
	}
	return len(sh.at)
}

// resolved is a share without what is not to be done.
func (w *settling) resolved(sh portion, whose unresolved) portion {
	if len(whose) == 0 {
		return sh
	}
	at := make([]int, 0, w.count(&sh))
	for n := range w.count(&sh) {
		if i := sh.place(n); whose[i] == nil {
			at = append(at, i)
		}
	}
	return portion{sh.d, at}
}

// refused answers for a queue that cannot be used: nobody holds a key of one
// that does not exist.
func (w *settling) refused(pt *part, err error) {
	r := row{away: true}
	if errors.Is(err, engine.ErrNoQueue) {
		r, w.some = row{status: workqueue.NotLeased}, true
	} else {
		w.out.err = errors.Join(w.out.err, err)
	}
	for n := range w.count(&portion{at: pt.at}) {
		w.out.rows[pt.place(n)] = r
	}
}

// part takes in what became of one share.
func (w *settling) part(sh *portion, c *transaction.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Err != nil {
		w.out.err = errors.Join(w.out.err, c.Err)
		for n := range w.count(sh) {
			w.out.rows[sh.place(n)] = row{away: true}
		}
	} else {
		w.some = true
		w.ss.mu.Lock()
		for i := range c.Replies {
			r, op := &c.Replies[i], &c.Ops[i]
			w.out.rows[sh.place(i)] = row{status: r.Status, requeues: r.Requeues, readyAt: r.ReadyAt}
			w.out.freed = w.ss.drop(leaseKey{sh.d, op.Token}, op.Key, w.out.freed)
			sh.d.Metrics.Settled(r.Status, c.Now, op.Token)
		}
		w.ss.mu.Unlock()
		w.ss.touch()
	}
	w.out.via = c.Via
	if w.left--; w.left == 0 {
		w.finish()
	}
}

// answerEarly answers what is known when other partitions are late, once.
func (w *settling) answerEarly() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == 0 {
		return
	}
	w.answered = make([]bool, len(w.out.rows))
	for i := range w.out.rows {
		w.answered[i] = !w.out.rows[i].waits
	}
	w.done(&settled{plan: w.out.plan, rows: w.out.rows, more: true, freed: w.out.freed})
	w.out.freed = nil
}

// finish answers when nothing is under way any more. Mu must be held.
func (w *settling) finish() {
	if w.timer != nil {
		w.timer.Stop()
	}
	err := w.out.err
	switch {
	case err == nil:
	case w.whole && w.some: // no single cause tells what became of all of them
		w.out.err = fmt.Errorf("%w: some settlements were applied, others not: %v", engine.ErrUnknown, err) //nolint:errorlint // the cause must not decide the code
	case !w.whole && !errors.Is(err, wire.ErrStopping):
		w.out.err = nil
	}
	if w.some && w.out.err == nil {
		err = nil // what was answered is kept for a repeat
	}
	w.ss.end(w.a, w.out.rows, err)
	if w.answered != nil {
		w.out.rows = slices.Clone(w.out.rows)
		for i, told := range w.answered {
			w.out.rows[i].waits = told
		}
	}
	w.done(&w.out)
}
