package queue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

const (
	stormCallers = 1000
	stormKeys    = 100
	stormStreams = 4
)

// addStorm lets 1,000 callers add 100 hot keys, each waiting for its answer
// before it adds again; a client sends what its callers have in hand together.
func addStorm(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "storm", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	l, err := r.load(ctx, load.BenchQueue, &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	storm := func(name string, loop func(context.Context, time.Duration) (load.Turns, error)) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			return measureKeys(ctx, b, name, r.servers[0], r.store, d, loop)
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("storm", 2, 5, 700*time.Millisecond, 1500*time.Millisecond), storm("storm", l.storm), storm("callers", l.stormOfCallers))
	if err != nil {
		return err
	}
	b.Note("storm: %d callers over %d Produce streams, at random among %d keys that all wait already, each answered after the turn that holds its add", stormCallers, stormStreams, stormKeys)
	for _, k := range []struct{ side, name string }{{"storm", "duplicate-add storm"}, {"callers", "duplicate-add storm, a goroutine per caller on the SDK's Producer"}} {
		f := harness.Alone(k.name, "accepted/s", t.Of(k.side, "rate"), harness.AtLeast("ours", 300_000))
		f.Foreign, f.Capacity = harness.SpreadOf(t.Of(harness.MachineSide, "foreign")).Median, new(harness.SpreadOf(t.Of(k.side, "capacity")))
		b.Add(f.With("server CPU/add", "us", t.Of(k.side, "server")).With("client CPU/add", "us", t.Of(k.side, "client")).With("redis CPU/add", "us", t.Of(k.side, "redis")))
	}
	return errors.Join(l.drain(ctx), l.balance(ctx, 0))
}

// storm adds hot keys for d.
func (l *driver) storm(ctx context.Context, d time.Duration) (load.Turns, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var answered atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for i := range stormStreams {
		group.Go(func() {
			n, err := l.stormOf(ctx, i, began.Add(d))
			answered.Add(n)
			if err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return load.Turns{Done: answered.Load(), Elapsed: time.Since(began), Latency: &harness.Histogram{}}, context.Cause(ctx)
}

func (l *driver) stormOf(ctx context.Context, i int, until time.Time) (answered int64, err error) {
	p, err := l.openProduce(ctx, i)
	if err != nil {
		return 0, err
	}
	w := load.NewWindow(stormCallers / stormStreams)
	context.AfterFunc(ctx, func() { w.Give(0) })
	finished := make(chan error, 1)
	go func() {
		for {
			got, err := p.recv()
			if err != nil {
				finished <- err
				w.Drain(func() bool { return true })
				return
			}
			for _, status := range got.GetStatuses() {
				switch status {
				case queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED, queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY:
					l.deduped.Add(1)
				case queuev1.AddStatus_ADD_STATUS_QUEUED:
				default:
					err = fmt.Errorf("an add answered %v", status)
				}
			}
			if err != nil {
				finished <- err
				w.Drain(func() bool { return true })
				return
			}
			n := len(got.GetStatuses())
			l.adds.Add(int64(n))
			answered += int64(n)
			w.Give(n)
		}
	}()
	var keys [stormKeys]string
	for k := range keys {
		keys[k] = benchKey(uint64(k))
	}
	ops := newOps(mix{}, maxOps)
	for n := w.Take(); n > 0 && time.Now().Before(until); n = w.Take() {
		for ; n > 0; n -= min(n, maxOps) {
			size := min(n, maxOps)
			for k := range size {
				ops[k].Key = keys[rand.IntN(stormKeys)]
			}
			if err := p.send(l.queue, ops[:size]); err != nil {
				return 0, errors.Join(err, <-finished)
			}
		}
	}
	_ = p.s.CloseSend()
	if err := <-finished; !isEOF(err) {
		return answered, err
	}
	return answered, nil
}

// stormOfCallers is the storm by 1,000 goroutines that call the SDK and wait.
func (l *driver) stormOfCallers(ctx context.Context, d time.Duration) (load.Turns, error) {
	linked, unlink := context.WithCancel(ctx)
	defer unlink()
	var running sync.WaitGroup
	producers := make([]*client.Producer, stormStreams)
	for i := range producers {
		p, err := client.NewProducer(l.pool[i%len(l.pool)], client.ProducerConfig{Queue: l.queue, Session: l.session()})
		if err != nil {
			return load.Turns{}, err
		}
		producers[i] = p
		running.Go(func() { _ = p.Run(linked) }) // what fails fails the calls
	}
	t, err := load.ClosedLoop(ctx, d, stormCallers, func(ctx context.Context, caller int) error {
		got, err := producers[caller%stormStreams].Do(ctx, client.Op{Key: benchKey(uint64(rand.IntN(stormKeys))), Kind: client.OpAdd})
		if err != nil {
			return err
		}
		l.adds.Add(1)
		switch got.Status {
		case client.AddQueued:
		case client.AddAlreadyQueued, client.AddMarkedDirty:
			l.deduped.Add(1)
		default:
			return fmt.Errorf("an add answered %v", got.Status)
		}
		return nil
	})
	unlink()
	running.Wait()
	return t, err
}

// drain works off what is ready, and what workers hold that have just left.
func (l *driver) drain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	n, err := l.left(ctx)
	// The server gives back the keys of an ended stream when it sees the end, which may be later.
	keys := n.GetReady() + n.GetProcessing()
	if err != nil || keys == 0 {
		return err
	}
	s, err := l.openWork(ctx, 0, 0)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.credit(10_000); err != nil {
		return err
	}
	for left := keys; left > 0; {
		got, err := s.recv()
		if err != nil {
			return err
		}
		if leases := got.GetAssign().GetLeases(); len(leases) > 0 {
			if err := s.settle(l.queue, leases, false); err != nil {
				return err
			}
		}
		n, err := acknowledged(got.GetSettled())
		if err != nil {
			return err
		}
		l.settled.Add(int64(n))
		left -= int64(n)
	}
	return nil
}
