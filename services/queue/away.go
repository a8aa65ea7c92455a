package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

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
		ops = append(ops, workqueue.Op{Kind: workqueue.OpReserve, Count: n})
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
				t.Reserved = append(t.Reserved, workqueue.Reserved{From: from, Count: r.Count})
			}
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

// spend gives back what a turn did not use of its tokens, so that adds which
// turned out to be free cost the others nothing.
func (d *dispatcher) spend(b *batch, r *workqueue.Result, err error) {
	t := &b.turn
	if !t.Away || errors.Is(err, engine.ErrUnknown) { // it may have spent them
		return
	}
	if err != nil {
		r = &workqueue.Result{}
	}
	var ops []workqueue.Op
	if len(t.Reserved) > 0 && t.Reserved[0].Count > r.Spent {
		ops = append(ops, workqueue.Op{Kind: workqueue.OpReserve, Count: r.Spent - t.Reserved[0].Count})
	}
	if back := t.Admitted - len(r.Leases); back > 0 {
		b.next = 0 // there were fewer keys than tokens
		ops = append(ops, workqueue.Op{Kind: workqueue.OpAdmit, Count: -back})
	}
	if len(ops) > 0 {
		d.of.all[0].submit(&call{ops: ops, done: func(*call) {}})
	}
}
