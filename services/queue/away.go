package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// away is what a partition other than the first holds of the queue's tokens:
// the buckets of the limiter and the dispatch limiter are the first one's.
type away struct {
	left    []workqueue.Reserved // reserved and not used
	since   time.Time            // when
	limiter *backoff.Limiter     // they are of
}

// keepTokens is how long tokens that were reserved and not used are kept for
// later turns. A token used late lets a full bucket burst by one more.
const keepTokens = 100 * time.Millisecond

// fund gets what the limiters have to give for a turn of a partition other than
// the first, from the first one's next turn.
func (d *dispatcher) fund(ctx context.Context, b *batch) error {
	b.next = 0
	t := &b.turn
	t.Away, t.Reserved, t.Admitted = d.part > 0, nil, 0
	if d.part == 0 {
		return nil
	}
	cfg := d.of.of.Config()
	var ops []workqueue.Op
	if n := charges(t.Ops); n > 0 && cfg.Limiter.Buckets() > 0 {
		if d.away.limiter != cfg.Limiter || time.Since(d.away.since) > keepTokens {
			d.away.left = nil
		}
		t.Reserved = d.away.left
		if len(t.Reserved) == 0 || t.Reserved[0].Count < n {
			t.Reserved = nil
			ops = append(ops, workqueue.Op{Kind: workqueue.OpReserve, Count: n})
		}
	}
	wanted := 0
	if cfg.Dispatch != nil {
		for _, take := range t.Takes {
			wanted += take.Max
		}
		if wanted > 0 {
			ops = append(ops, workqueue.Op{Kind: workqueue.OpAdmit, Count: wanted})
		}
	}
	if len(ops) == 0 {
		return nil
	}
	c, err := d.of.first(ctx, ops...)
	if err != nil { // whatever became of it, this turn was not done
		return fmt.Errorf("%w: the queue's limiters cannot be asked: %v", engine.ErrUnavailable, err) //nolint:errorlint // the cause must not decide the code
	}
	for i, op := range ops {
		r := &c.replies[i]
		switch op.Kind {
		case workqueue.OpReserve:
			for _, from := range r.From {
				t.Reserved = append(t.Reserved, workqueue.Reserved{From: from, Count: op.Count})
			}
			d.away.since, d.away.limiter = time.Now(), cfg.Limiter
		case workqueue.OpAdmit:
			t.Admitted = r.Count
			if r.Count < wanted && r.Next > c.now {
				b.next = time.Duration(r.Next-c.now) * time.Microsecond
			}
		}
	}
	return nil
}

// first runs operations in the next turn of the first partition.
func (l *lines) first(ctx context.Context, ops ...workqueue.Op) (*call, error) {
	done := make(chan struct{})
	c := &call{ops: ops, done: func(*call) { close(done) }}
	l.all[0].submit(c)
	select {
	case <-done:
		return c, c.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// charges is how many operations may take a token of every bucket.
func charges(ops []workqueue.Op) int {
	n := 0
	for i := range ops {
		if op := &ops[i]; op.Kind == workqueue.OpAdd && op.Limited || op.Kind == workqueue.OpSettle && op.Outcome == workqueue.Retry {
			n++
		}
	}
	return n
}

// spend keeps or gives back what a turn did not use of its tokens.
func (d *dispatcher) spend(b *batch, r *workqueue.Result, err error) {
	t := &b.turn
	if !t.Away {
		return
	}
	if r == nil {
		r = &workqueue.Result{}
	}
	if len(t.Reserved) > 0 {
		d.away.left = nil
		if used, had := r.Spent, t.Reserved[0].Count; err == nil && used < had {
			intervals := bucketIntervals(d.away.limiter, nil)
			for i, res := range t.Reserved {
				if i < len(intervals) {
					d.away.left = append(d.away.left, workqueue.Reserved{From: res.From + float64(used)*intervals[i], Count: res.Count - used})
				}
			}
		}
	}
	if back := t.Admitted - len(r.Leases); back > 0 && err == nil {
		b.next = 0 // there were fewer keys than tokens
		d.of.all[0].submit(&call{ops: []workqueue.Op{{Kind: workqueue.OpAdmit, Count: -back}}, done: func(*call) {}})
	}
}

// bucketIntervals is the time between tokens of every bucket of a limiter, in
// microseconds and in the order of its state.
func bucketIntervals(l *backoff.Limiter, to []float64) []float64 {
	if l.Kind == backoff.Bucket {
		to = append(to, 1e6/l.Rate)
	}
	for i := range l.Of {
		to = bucketIntervals(&l.Of[i], to)
	}
	return to
}
