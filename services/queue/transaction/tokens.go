package transaction

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// fundTokens gets what the limiters have to give for a transaction of a partition other than
// the first, from the first one's next transaction, or, while that is away, by itself.
func (d *Dispatcher) fundTokens(ctx context.Context, b *batch) error {
	b.next, b.fundedByFirst = 0, false
	t := &b.tx
	t.Away, t.Reserved, t.Admitted = d.Part > 0, nil, 0
	if d.Part == 0 {
		return nil
	}
	cfg := d.Queue.Stored.Config()
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
	c, err := d.Queue.doFirst(ctx, ops...)
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnavailable, ctx.Err())
	}
	if err != nil { // the others go on
		d.fundAlone(b, &cfg, wanted)
		return nil
	}
	b.fundedByFirst = true
	for i, op := range ops {
		r := &c.Replies[i]
		switch op.Kind {
		case workqueue.OpReserve:
			for _, from := range r.From {
				t.Reserved = append(t.Reserved, workqueue.Reserved{From: from, Count: r.Count})
			}
		case workqueue.OpAdmit:
			t.Admitted = r.Count
			if r.Count < wanted && r.Next > c.Now {
				b.next = time.Duration(r.Next-c.Now) * time.Microsecond
			}
		}
	}
	return nil
}

// fundAlone funds a transaction while the first partition is away. Each partition then counts
// by itself, on this server, at its share of the queue's rates and bursts: together
// they stay within them on one server, and on each of several. Keys are handed out
// without a burst.
func (d *Dispatcher) fundAlone(b *batch, cfg *workqueue.Config, wanted int) {
	t := &b.tx
	if d.lastHeard.IsZero() { // nothing is known of the store's clock
		t.Admitted = min(wanted, 1)
		return
	}
	now, share := float64(d.clock)+float64(time.Since(d.lastHeard).Microseconds()), float64(len(d.Queue.Partitions))
	if n := charges(t.Ops); n > 0 {
		all := buckets(cfg.Limiter, nil)
		if len(d.tats) != len(all) {
			d.tats = make([]float64, len(all))
		}
		for i, bucket := range all {
			// Token k of a transaction comes k intervals of the whole rate after the first,
			// less the whole burst: the last comes when it should, none before it.
			interval, burst := 1e6/bucket.Rate, float64(bucket.Burst)
			own, least := share*interval, max(1, math.Floor(burst/share))
			from := max(d.tats[i], now)
			d.tats[i] = from + float64(n)*own
			last := from + (float64(n-1)-(least-1))*own
			t.Reserved = append(t.Reserved, workqueue.Reserved{From: last - float64(n-1)*interval + (burst-1)*interval, Count: n})
		}
	}
	if wanted > 0 {
		if d.throttle <= now {
			d.throttle = now + share*1e6/cfg.Dispatch.QPS
			t.Admitted = 1
		}
		b.next = time.Duration(d.throttle-now) * time.Microsecond
	}
}

// buckets are the buckets of a limiter in the order of their tokens.
func buckets(l *backoff.Limiter, all []*backoff.Limiter) []*backoff.Limiter {
	if l.Kind == backoff.Bucket {
		return append(all, l)
	}
	for i := range l.Of {
		all = buckets(&l.Of[i], all)
	}
	return all
}

// doFirst runs operations in the next transaction of the first partition, unless that is
// known not to answer or takes too long.
func (l *Queue) doFirst(ctx context.Context, ops ...workqueue.Op) (*Call, error) {
	if l.Partitions[0].Unresponsive() {
		return nil, fmt.Errorf("%w: the queue's first partition", engine.ErrUnavailable)
	}
	done := make(chan struct{})
	var mu sync.Mutex
	left := false
	c := &Call{Ops: ops}
	c.Done = func(c *Call) {
		mu.Lock()
		defer mu.Unlock()
		if left && c.Err == nil {
			l.returnTokens(c)
		}
		close(done)
	}
	l.Partitions[0].Submit(c)
	timer := time.NewTimer(PartitionTimeout)
	defer timer.Stop()
	select {
	case <-done:
		return c, c.Err
	case <-timer.C:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	select {
	case <-done: // it came at the same moment
		return c, c.Err
	default:
	}
	left = true
	return nil, fmt.Errorf("%w: the queue's first partition did not answer in time", engine.ErrUnavailable)
}

// returnTokens undoes what a call for tokens got that nobody waits for.
func (l *Queue) returnTokens(c *Call) {
	var back []workqueue.Op
	for i, op := range c.Ops {
		if n := c.Replies[i].Count; n > 0 {
			back = append(back, workqueue.Op{Kind: op.Kind, Count: -n})
		}
	}
	if len(back) > 0 {
		l.Partitions[0].Submit(&Call{Ops: back, Done: func(*Call) {}})
	}
}

// Unresponsive says that the partition's last transaction failed, or its present one takes long.
func (d *Dispatcher) Unresponsive() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failing || !d.began.IsZero() && time.Since(d.began) > PartitionTimeout
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

// returnTokens gives back what a transaction did not use of its tokens, so that adds which
// turned out to be free cost the others nothing.
func (d *Dispatcher) returnTokens(b *batch, r *workqueue.Result, err error) {
	t := &b.tx
	if !t.Away || !b.fundedByFirst || errors.Is(err, engine.ErrUnknown) { // it may have spent them
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
		d.Queue.Partitions[0].Submit(&Call{Ops: ops, Done: func(*Call) {}})
	}
}
