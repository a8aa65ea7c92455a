package enginetest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Model drives an engine with random turns and compares every answer with
// core/workqueue at the engine's own times. It does at least ops operations.
func Model(t *testing.T, fx Fixture, seed uint64, ops int) {
	t.Helper()
	limiter := backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
		{Kind: backoff.Exponential, Base: 3 * time.Millisecond, Max: 20 * time.Second},
		{Kind: backoff.Bucket, Rate: 300, Burst: 10},
		{Kind: backoff.FastSlow, Fast: time.Millisecond, Slow: 50 * time.Millisecond, MaxFast: 2},
	}}
	cfg := workqueue.Config{Limiter: &limiter, MaxRetries: 6, LeaseFor: 2 * time.Second, BarrierRetention: 3 * time.Second}
	e := newEnv(t, fx, cfg)
	model := workqueue.New(cfg)
	g := &gen{Rand: rand.New(rand.NewPCG(seed, 1))}
	for done := 0; done < ops; {
		turn := g.turn()
		done += len(turn.Ops) + 1
		got := e.turn(turn)
		want := model.Turn(got.Now, &turn)
		if diff := cmp.Diff(got, want, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d, after %d operations: turn %+v\n(-engine +oracle):\n%s", seed, done, turn, diff)
		}
		g.learn(got)
		if g.IntN(4) == 0 {
			fx.Advance(time.Duration(g.IntN(800)) * time.Millisecond)
		}
	}
}

// gen makes random turns over few keys, so that they meet.
type gen struct {
	*rand.Rand
	leases []workqueue.Lease // some live, some stale
}

func (g *gen) learn(r *workqueue.Result) {
	g.leases = append(g.leases, r.Leases...)
	if n := len(g.leases); n > 40 {
		g.leases = g.leases[n-40:]
	}
}

func (g *gen) turn() workqueue.Turn {
	t := workqueue.Turn{}
	for range g.IntN(12) {
		t.Ops = append(t.Ops, g.op())
	}
	for i := range g.IntN(4) {
		t.Takes = append(t.Takes, workqueue.Take{
			Holder: "w" + strconv.Itoa(i), Max: g.IntN(6), For: int64(g.IntN(2)) * int64(g.IntN(5e6)+1),
		})
	}
	return t
}

func (g *gen) key() string { return "key-" + strconv.Itoa(g.IntN(25)) }

func (g *gen) lease() workqueue.Lease {
	if len(g.leases) == 0 || g.IntN(20) == 0 {
		return workqueue.Lease{Key: g.key(), Token: uint64(g.IntN(10))}
	}
	return g.leases[g.IntN(len(g.leases))]
}

func (g *gen) barrier() workqueue.Barrier {
	var ms []workqueue.Mark
	for range g.IntN(3) {
		rv := strconv.Itoa(g.IntN(2000) + 1)
		if g.IntN(5) == 0 {
			rv += "00000000000000000000000000"
		}
		ms = append(ms, workqueue.Mark{Collection: "dev/c" + strconv.Itoa(g.IntN(3)), Epoch: uint64(g.IntN(3)), RV: rv})
	}
	return workqueue.NewBarrier(ms...)
}

func (g *gen) namesOf(n int) []string {
	var out []string
	for range g.IntN(n) {
		out = append(out, "p-"+strconv.Itoa(g.IntN(6)))
	}
	return out
}

func (g *gen) op() workqueue.Op {
	switch p := g.IntN(100); {
	case p < 45:
		op := workqueue.Op{Kind: workqueue.OpAdd, Key: g.key(), Level: workqueue.Level(0)}
		if g.IntN(3) == 0 {
			op.Level = uint8(g.IntN(workqueue.Levels))
		}
		switch g.IntN(8) {
		case 0:
			op.Delay, op.Last = int64(g.IntN(3e6)), g.IntN(2) == 0
		case 1:
			op.Limited = true
		case 2:
			op.More = &workqueue.More{Barrier: g.barrier()}
		case 3:
			op.Trace = fmt.Sprintf("00-%032d-%016d-01", g.IntN(1000), g.IntN(1000))
		}
		return op
	case p < 80:
		l := g.lease()
		op := workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: workqueue.Outcome(g.IntN(6) + 1)}
		if op.Outcome == workqueue.After || op.Outcome == workqueue.Release {
			op.Delay = int64(g.IntN(2)) * int64(g.IntN(2e6))
		}
		if g.IntN(3) == 0 {
			op.More = &workqueue.More{Barrier: g.barrier(), Wrote: g.barrier()}
			if g.IntN(2) == 0 {
				op.More.Reason = "because " + strconv.Itoa(g.IntN(9))
			}
		}
		if g.IntN(6) == 0 {
			op.Relevel, op.Level = true, uint8(g.IntN(workqueue.Levels))
		}
		return op
	}
	l := g.lease()
	op := workqueue.Op{Key: l.Key, Token: l.Token}
	switch g.IntN(9) {
	case 0:
		op.Kind, op.For, op.Shorten = workqueue.OpExtend, int64(g.IntN(3e6)), g.IntN(2) == 0
		if op.Shorten && g.IntN(2) == 0 {
			op.Known = l.Deadline
		}
	case 1:
		op.Kind = workqueue.OpForget
	case 2:
		op.Kind = workqueue.OpRequeues
	case 3:
		op.Kind, op.More = workqueue.OpSave, &workqueue.More{Data: []byte(g.key()[:g.IntN(5)])}
	case 4:
		op.Kind, op.More = workqueue.OpExpect, &workqueue.More{Owner: "u" + strconv.Itoa(g.IntN(2)), Creates: g.namesOf(4), Deletes: g.namesOf(3)}
	case 5:
		op.Kind, op.More = workqueue.OpObserve, &workqueue.More{Owner: []string{"", "u0", "u1"}[g.IntN(3)], Creates: g.namesOf(4), Deletes: g.namesOf(4)}
	case 6:
		op.Kind = workqueue.OpUnexpect
	case 7:
		op.Kind = workqueue.OpInspect
	default:
		op.Kind = []workqueue.OpKind{workqueue.OpOpen, workqueue.OpOpen, workqueue.OpOpen, workqueue.OpClose}[g.IntN(4)]
	}
	return op
}
