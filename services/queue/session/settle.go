package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/transaction"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

// settling is a settlement request under way: one transaction of each partition that
// it concerns.
type settling struct {
	ss    *Session
	a     *answer
	whole bool // what is not reached is an error of the whole request
	done  func(*SettleResults)

	mu       sync.Mutex
	out      SettleResults // guarded by mu, as is all that follows
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

// Settle does a settlement request and calls done, possibly from a dispatcher:
// done must not block. It is called once, or, where partitions take longer than
// early and that is set, also with what there is by then. A repeated request gets
// the first answer. Unless the request is to be done as a whole, its rows say which
// leases were not reached, and which have a holder that nobody knows.
func (s *Leases) Settle(ctx context.Context, ss *Session, id uint64, p *Plan, unresolved Unresolved, whole bool, early time.Duration, done func(*SettleResults)) {
	sum := uint64(0)
	if id != 0 {
		sum = p.sum()
	}
	a, repeat, err := ss.begin(id, sum)
	if err != nil {
		done(&SettleResults{Err: err})
		return
	}
	if repeat {
		// The first one may still be under way; nothing else waits here.
		go func() {
			select {
			case <-a.ready:
				done(&SettleResults{Plan: p, Rows: a.rows, Err: a.err})
			case <-ctx.Done():
				done(&SettleResults{Err: ctx.Err()})
			}
		}()
		return
	}
	w := &settling{ss: ss, a: a, whole: whole, done: done, out: SettleResults{Plan: p, Rows: make([]Row, len(p.Ops))}}
	if err := unresolved.any(); err != nil {
		if whole {
			ss.end(a, nil, err)
			done(&SettleResults{Err: err})
			return
		}
		w.out.Err = err
		for i := range unresolved {
			w.out.Rows[i] = Row{away: true}
		}
	}
	var shares []portion
	for i := range p.Parts {
		pt := &p.Parts[i]
		l, err := s.queues.Use(ctx, pt.Queue)
		switch {
		case err != nil && (whole || ctx.Err() != nil || errors.Is(err, wire.ErrStopping)):
			ss.end(a, nil, err)
			done(&SettleResults{Err: err})
			return
		case err != nil:
			w.refused(pt, err)
		default:
			for _, sh := range p.split(pt, l) {
				if sh = w.resolved(sh, unresolved); sh.at == nil || len(sh.at) > 0 {
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
			w.out.Rows[sh.place(n)].waits = true
		}
	}
	if early > 0 {
		w.timer = time.AfterFunc(early, w.answerEarly)
	}
	for _, sh := range shares {
		ops := p.Ops
		if sh.at != nil {
			ops = make([]workqueue.Op, len(sh.at))
			for n, i := range sh.at {
				ops[n] = p.Ops[i]
			}
		}
		sh.d.Submit(&transaction.Call{Ops: ops, Session: ss.ID, Done: func(c *transaction.Call) { w.part(&sh, c) }})
	}
}

// split is a request's part of a queue by partition.
func (p *Plan) split(pt *Part, l *transaction.Queue) []portion {
	if len(l.Partitions) == 1 {
		return []portion{{l.Partitions[0], pt.At}}
	}
	var out []portion
	mine := make([]int, len(l.Partitions)) // by partition: its place in out, plus one
	n := len(p.Ops)
	if pt.At != nil {
		n = len(pt.At)
	}
	for k := range n {
		i := pt.Place(k)
		d := l.At(p.Ops[i].Key)
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
		return len(w.out.Rows)
	}
	return len(sh.at)
}

// resolved is a share without what is not to be done.
func (w *settling) resolved(sh portion, unresolved Unresolved) portion {
	if len(unresolved) == 0 {
		return sh
	}
	at := make([]int, 0, w.count(&sh))
	for n := range w.count(&sh) {
		if i := sh.place(n); unresolved[i] == nil {
			at = append(at, i)
		}
	}
	return portion{sh.d, at}
}

// refused answers for a queue that cannot be used: nobody holds a key of one
// that does not exist.
func (w *settling) refused(pt *Part, err error) {
	r := Row{away: true}
	if errors.Is(err, engine.ErrNoQueue) {
		r, w.some = Row{Status: workqueue.NotLeased}, true
	} else {
		w.out.Err = errors.Join(w.out.Err, err)
	}
	for n := range w.count(&portion{at: pt.At}) {
		w.out.Rows[pt.Place(n)] = r
	}
}

// part takes in what became of one share.
func (w *settling) part(sh *portion, c *transaction.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.Err != nil {
		w.out.Err = errors.Join(w.out.Err, c.Err)
		for n := range w.count(sh) {
			w.out.Rows[sh.place(n)] = Row{away: true}
		}
	} else {
		w.some = true
		w.ss.mu.Lock()
		for i := range c.Replies {
			r, op := &c.Replies[i], &c.Ops[i]
			w.out.Rows[sh.place(i)] = Row{Status: r.Status, Requeues: r.Requeues, ReadyAt: r.ReadyAt}
			w.out.Freed = w.ss.drop(LeaseKey{sh.d, op.Token}, op.Key, w.out.Freed)
			sh.d.Metrics.Settled(r.Status, c.Now, op.Token)
		}
		w.ss.mu.Unlock()
		w.ss.touch()
	}
	w.out.Via = c.Via
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
	w.answered = make([]bool, len(w.out.Rows))
	for i := range w.out.Rows {
		w.answered[i] = !w.out.Rows[i].waits
	}
	w.done(&SettleResults{Plan: w.out.Plan, Rows: w.out.Rows, More: true, Freed: w.out.Freed})
	w.out.Freed = nil
}

// finish answers when nothing is under way any more. Mu must be held.
func (w *settling) finish() {
	if w.timer != nil {
		w.timer.Stop()
	}
	err := w.out.Err
	switch {
	case err == nil:
	case w.whole && w.some: // no single cause tells what became of all of them
		w.out.Err = fmt.Errorf("%w: some settlements were applied, others not: %v", engine.ErrUnknown, err) //nolint:errorlint // the cause must not decide the code
	case !w.whole && !errors.Is(err, wire.ErrStopping):
		w.out.Err = nil
	}
	if w.some && w.out.Err == nil {
		err = nil // what was answered is kept for a repeat
	}
	w.ss.end(w.a, w.out.Rows, err)
	if w.answered != nil {
		w.out.Rows = slices.Clone(w.out.Rows)
		for i, answered := range w.answered {
			w.out.Rows[i].waits = answered
		}
	}
	w.done(&w.out)
}
