package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// barrierKept is how long the queues of keyMemory keep a barrier after its key is done.
const barrierKept = time.Second

// keyMemory measures what a key costs Redis while it waits and while it is
// held, and what is left of it afterwards.
func keyMemory(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "memory", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	n := harness.Pick(b, 50_000, 200_000)
	for _, k := range []struct {
		what          string
		m             mix
		ready, leased float64
	}{{"bare", mix{}, 130, 240}, {"with priority, 2-collection barrier, trace", mix{rich: true}, 250, 380}} {
		queue := "bench/memory-bare"
		if k.m.rich {
			queue = "bench/memory-rich"
		}
		l, err := r.load(ctx, queue, &queuev1.QueueConfig{BarrierRetention: durationpb.New(barrierKept)})
		if err != nil {
			return err
		}
		ready, leased, after, err := l.memory(ctx, r.store, n, k.m)
		if err != nil {
			return fmt.Errorf("%s: %w", k.what, err)
		}
		b.Say("  memory, %s: %.0f, %.0f, %.2f B per key", k.what, ready, leased, after)
		b.Add(harness.Alone("memory per ready key, "+k.what, "B", []float64{ready}, harness.AtMost("ours", k.ready)))
		b.Add(harness.Alone("memory per leased key, "+k.what, "B", []float64{leased}, harness.AtMost("ours", k.leased)))
		b.Add(harness.Alone("memory left after done, forget, barrier expiry, "+k.what, "B", []float64{after}, harness.AtMost("ours", 1)))
		if err := l.balance(ctx, 0); err != nil {
			return err
		}
	}
	b.Note("memory: used_memory of Redis without its connections, over %d keys of 23 bytes; what is left is measured while a few other keys go through the queue, for turns sweep; at most 1 B a key is the allocator's noise", n)
	return nil
}

// memory returns bytes per key: ready, leased, and afterwards.
func (l *driver) memory(ctx context.Context, store *redisStore, n int, m mix) (ready, leased, after float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	if _, err := l.run(ctx, 100*time.Millisecond, mix{inFlight: 256, rich: m.rich}); err != nil { // scripts and tables are there
		return 0, 0, 0, err
	}
	base, err := l.settledMemory(ctx, store)
	if err != nil {
		return 0, 0, 0, err
	}
	per := func() (float64, error) {
		used, err := store.usedMemory(ctx)
		return (used - base) / float64(n), err
	}
	if err := l.fill(ctx, n, m, nil); err != nil {
		return 0, 0, 0, err
	}
	if ready, err = per(); err != nil {
		return 0, 0, 0, err
	}
	s, err := l.openWork(ctx, 0, 10*time.Minute)
	if err != nil {
		return 0, 0, 0, err
	}
	defer s.close()
	for given := 0; given < n; given += 10_000 {
		if err := s.credit(10_000); err != nil {
			return 0, 0, 0, err
		}
	}
	var held []*queuev1.Lease
	for len(held) < n {
		got, err := s.recv()
		if err != nil {
			return 0, 0, 0, err
		}
		held = append(held, got.GetAssign().GetLeases()...)
	}
	if leased, err = per(); err != nil {
		return 0, 0, 0, err
	}
	for len(held) > 0 {
		batch := held[:min(maxOps, len(held))]
		held = held[len(batch):]
		if err := s.settle(l.queue, batch, false); err != nil {
			return 0, 0, 0, err
		}
		for ended := 0; ended < len(batch); {
			got, err := s.recv()
			if err != nil {
				return 0, 0, 0, err
			}
			k, err := acknowledged(got.GetSettled())
			if err != nil {
				return 0, 0, 0, err
			}
			l.settled.Add(int64(k))
			ended += k
		}
	}
	s.close() // it has credit, and would take the keys that go through
	end, err := l.settledMemory(ctx, store)
	return ready, leased, (end - base) / float64(n), err
}

// settledMemory waits until barriers have expired and tables have shrunk, and
// returns what is used: the least of what was seen until it fell no more. A
// few keys go through the queue meanwhile, for it is turns that sweep.
func (l *driver) settledMemory(ctx context.Context, store *redisStore) (float64, error) {
	least, since := 0., time.Now()
	for time.Since(since) < 3*barrierKept {
		used, err := store.usedMemory(ctx)
		if err != nil {
			return 0, err
		}
		if least == 0 || used < least-1024 {
			least, since = used, time.Now()
		}
		if _, err := l.run(ctx, 100*time.Millisecond, mix{inFlight: 8}); err != nil {
			return 0, err
		}
	}
	return least, nil
}

// fill adds n keys that nobody takes, batches of them under way at a time.
func (l *driver) fill(ctx context.Context, n int, m mix, after func() time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p, err := l.openProduce(ctx, 0)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		ops := newOps(m, maxOps)
		for left := n; left > 0; {
			size := min(left, maxOps)
			left -= size
			for k := range size {
				seq := l.next.Add(1)
				ops[k].Key, ops[k].Priority = benchKey(seq), 0
				if m.rich {
					ops[k].Priority = int32(seq%8) - 4
				}
				if after != nil {
					ops[k].Kind, ops[k].Delay = queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER, durationpb.New(after())
				}
			}
			if err := p.send(l.queue, ops[:size]); err != nil {
				sent <- err
				return
			}
		}
		sent <- p.s.CloseSend()
	}()
	for done := 0; ; {
		got, err := p.recv()
		switch {
		case isEOF(err) && done == n:
			return <-sent
		case err != nil:
			return fmt.Errorf("after %d of %d keys: %w", done, n, err)
		}
		done += len(got.GetStatuses())
		if after == nil {
			l.adds.Add(int64(len(got.GetStatuses())))
		}
	}
}
