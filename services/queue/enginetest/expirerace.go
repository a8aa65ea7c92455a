package enginetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// ExpiryLosesNothing has a queue expire again and again, whenever it is empty for a
// moment, while keys are added and worked off through several engines of one store,
// which create it again: no add that was acknowledged may be lost.
func ExpiryLosesNothing(t *testing.T, engines []engine.Engine, parts int, seed uint64, adds int) {
	t.Helper()
	cfg := workqueue.Config{Partitions: parts, LeaseFor: time.Second}
	x := &race{t: t, name: "test/race" + strconv.Itoa(parts), cfg: cfg, adds: adds, handed: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context()) // however slow the store is
	defer cancel()
	expiring, stop := context.WithCancel(ctx)
	working, done := context.WithCancel(ctx)
	var adders, others sync.WaitGroup
	for i, e := range engines {
		s := &server{Engine: e, transactions: make([]sync.Mutex, parts)}
		for n := range 2 {
			g := rand.New(rand.NewPCG(seed, uint64(3*i+n)))
			adders.Go(func() { x.add(ctx, s, g, strconv.Itoa(i)+"/"+strconv.Itoa(n)) })
		}
		g := rand.New(rand.NewPCG(seed, uint64(3*i+2)))
		w := rand.New(rand.NewPCG(seed, uint64(1000+i)))
		others.Go(func() { x.work(working, s, w) })
		others.Go(func() { x.expire(expiring, s, g) })
	}
	adders.Wait()
	stop()
	x.mu.Lock()
	acked := x.acked
	x.mu.Unlock()
	limit := time.Now().Add(2 * time.Minute)
	for _, key := range acked {
		for !x.wasHanded(key) && time.Now().Before(limit) {
			time.Sleep(time.Millisecond)
		}
		if !x.wasHanded(key) {
			t.Errorf("seed %d: %q was acknowledged and is never handed out", seed, key)
			break
		}
	}
	done()
	others.Wait()
	t.Logf("%d adds, the queue expired %d times", len(acked), x.expired.Load())
	x.end(engines[0])
}

// end has the queue expire once nobody uses it any more, if it has not.
func (x *race) end(e engine.Engine) {
	x.t.Helper()
	var err error
	for range 3 { // an expiry that was broken off in the middle is undone by the next
		var seen engine.Idle
		if seen, err = e.Idle(x.t.Context(), x.name); err == nil && !seen.Empty {
			return // a lease ended before its settlement came
		}
		if err == nil {
			err = e.Expire(x.t.Context(), x.name, seen)
		}
		if err == nil || errors.Is(err, engine.ErrNoQueue) {
			return
		}
	}
	x.t.Errorf("when nobody uses it any more, it does not expire: %v", err)
}

// server is an engine whose transactions of one partition do not overlap.
type server struct {
	engine.Engine
	transactions []sync.Mutex
}

func (s *server) apply(ctx context.Context, q engine.Queue, part int, t *workqueue.Transaction) (*workqueue.Result, error) {
	s.transactions[part].Lock()
	defer s.transactions[part].Unlock()
	return q.Partitions()[part].Apply(ctx, t)
}

type race struct {
	t       *testing.T
	name    string
	cfg     workqueue.Config
	adds    int
	expired atomic.Int64

	mu     sync.Mutex
	acked  []string
	handed map[string]bool
}

func (x *race) wasHanded(key string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.handed[key]
}

// add adds keys one after the other, making the queue where it is not there, and
// mostly waits for each to be handed out.
func (x *race) add(ctx context.Context, e *server, g *rand.Rand, who string) {
	var q engine.Queue
	for n := 0; n < x.adds && ctx.Err() == nil; {
		if q == nil {
			var err error
			if q, _, err = e.Configure(ctx, x.name, x.cfg); err != nil {
				if ctx.Err() == nil && !errors.Is(err, engine.ErrNoQueue) { // it expired at once
					x.t.Error("Configure:", err)
				}
				q = nil
				continue
			}
		}
		key := who + "/" + strconv.Itoa(n)
		r, err := e.apply(ctx, q, engine.PartitionOf(key, x.cfg.Partitions), &workqueue.Transaction{Ops: []workqueue.Op{add(key)}})
		if errors.Is(err, engine.ErrNoQueue) {
			q = nil
			continue
		}
		n++
		if err != nil || r.Replies[0].Status != workqueue.Queued {
			if ctx.Err() == nil {
				x.t.Errorf("add %q: %v, %v", key, r, err)
			}
			continue
		}
		x.mu.Lock()
		x.acked = append(x.acked, key)
		x.mu.Unlock()
		for wait := g.IntN(8) > 0; wait && !x.wasHanded(key) && ctx.Err() == nil; {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(time.Duration(g.IntN(30)) * time.Millisecond)
	}
}

// work hands out keys and settles them.
func (x *race) work(ctx context.Context, e *server, g *rand.Rand) {
	var q engine.Queue
	for ctx.Err() == nil {
		time.Sleep(time.Duration(g.IntN(30)) * time.Millisecond) // what uses it keeps it
		if q == nil {
			var err error
			if q, err = e.Open(ctx, x.name); err != nil {
				q = nil
				continue
			}
		}
		for part := range q.Partitions() {
			r, err := e.apply(ctx, q, part, &workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: 10}}})
			if err != nil {
				q = nil
				break
			}
			back := &workqueue.Transaction{}
			x.mu.Lock()
			for _, l := range r.Leases {
				x.handed[l.Key] = true
				back.Ops = append(back.Ops, settle(l, workqueue.Done))
			}
			x.mu.Unlock()
			if len(back.Ops) == 0 {
				continue
			}
			if _, err := e.apply(ctx, q, part, back); err != nil && ctx.Err() == nil {
				x.t.Errorf("settlements: %v", err)
			}
		}
	}
}

// expire has the queue expire as soon as it is seen empty.
func (x *race) expire(ctx context.Context, e *server, g *rand.Rand) {
	for ctx.Err() == nil {
		time.Sleep(time.Duration(g.IntN(20)) * time.Millisecond) // two at a time hinder one another
		seen, err := e.Idle(ctx, x.name)
		if err != nil || !seen.Empty {
			continue
		}
		switch err := e.Expire(ctx, x.name, seen); {
		case err == nil:
			x.expired.Add(1)
		case ctx.Err() == nil && !errors.Is(err, engine.ErrInUse) && !errors.Is(err, engine.ErrNoQueue):
			x.t.Error("Expire:", err)
		}
	}
}
