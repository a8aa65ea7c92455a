package enginetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
)

// Ops is how many operations a random history has: DELTAPLANE_SOAK_OPS of the
// environment, else a million, 100,000 under the race detector, which makes each
// several times as dear, or 20,000 with -short.
func Ops(t *testing.T) int {
	t.Helper()
	v, ok := os.LookupEnv("DELTAPLANE_SOAK_OPS")
	switch {
	case ok:
	case testing.Short():
		return 20_000
	case raced:
		return 100_000
	default:
		return 1_000_000
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		t.Fatalf("DELTAPLANE_SOAK_OPS=%q is not a number of operations", v)
	}
	return n
}

// Model drives an engine with random transactions and compares every answer with
// core/workqueue at the engine's own times, once per configuration. It does at
// least ops operations altogether.
func Model(t *testing.T, fx Fixture, seed uint64, ops int) {
	t.Helper()
	all := configurations()
	for i, c := range all {
		t.Run(c.name, func(t *testing.T) { model(t, fx, c, seed+uint64(i), (ops+len(all)-1)/len(all)) })
	}
}

type configuration struct {
	name string
	cfg  workqueue.Config
	many bool
}

// configurations are what random histories run under: each option alone where
// it changes what others do, and all of them together.
func configurations() []configuration {
	limiter := &backoff.Limiter{Kind: backoff.MaxOf, Of: []backoff.Limiter{
		{Kind: backoff.Exponential, Base: 3 * time.Millisecond, Max: 20 * time.Second},
		{Kind: backoff.Bucket, Rate: 300, Burst: 10},
		{Kind: backoff.FastSlow, Fast: time.Millisecond, Slow: 50 * time.Millisecond, MaxFast: 2},
		{Kind: backoff.MaxWait, Max: 30 * time.Millisecond, Of: []backoff.Limiter{{Kind: backoff.Bucket, Rate: 7, Burst: 3}}},
	}}
	base := workqueue.Config{
		Limiter: limiter, MaxRetries: 6, LeaseFor: 2 * time.Second, BarrierRetention: 3 * time.Second, Aging: time.Minute,
		Backoff: workqueue.BackoffConfig{Initial: 70 * time.Millisecond, Max: 2 * time.Second, Jitter: 0.3},
	}
	with := func(f func(*workqueue.Config)) workqueue.Config {
		c := base
		f(&c)
		return c
	}
	absorb := func(c *workqueue.Config) { c.AbsorbDelays = true }
	once := func(c *workqueue.Config) { c.ReserveOnce = true }
	aging := func(c *workqueue.Config) { c.Aging = 700 * time.Millisecond }
	dispatch := func(c *workqueue.Config) { c.Dispatch = &workqueue.Rate{QPS: 17, Burst: 4} }
	parted := func(c *workqueue.Config) { c.Partitions = 3 }
	return []configuration{
		{name: "plain", cfg: base},
		{name: "absorbing delays", cfg: with(absorb)},
		{name: "reserving once", cfg: with(once)},
		{name: "few deliveries and retries", cfg: with(func(c *workqueue.Config) { c.MaxDeliveries, c.MaxRetries = 2, 2 })},
		{name: "aging", cfg: with(aging)},
		{name: "dispatch limited", cfg: with(dispatch)},
		{name: "in partitions", cfg: with(parted)},
		{name: "many keys", cfg: with(aging), many: true},
		{name: "all options", cfg: with(func(c *workqueue.Config) {
			for _, f := range []func(*workqueue.Config){absorb, once, aging, dispatch, parted} {
				f(c)
			}
			c.MaxDeliveries = 2
			c.MaxProcessing, c.MaxLease = 3*time.Second, 4*time.Second
		})},
	}
}

func model(t *testing.T, fx Fixture, c configuration, seed uint64, ops int) {
	cfg := c.cfg
	e := newEnv(t, fx, cfg)
	parts := e.of.Partitions()
	if len(parts) != max(1, cfg.Partitions) {
		t.Fatalf("%d partitions, want %d", len(parts), cfg.Partitions)
	}
	gens := make([]*Gen, len(parts))
	oracles := make([]*workqueue.Machine, len(parts))
	for p := range parts {
		gens[p] = NewGen(rand.New(rand.NewPCG(seed, uint64(p))), p > 0, cfg.Limiter.Buckets())
		gens[p].many = c.many
		oracles[p] = workqueue.New(cfg)
	}
	g := gens[0]
	for done := 0; done < ops; {
		p := g.IntN(len(parts))
		tx := gens[p].Next()
		done += len(tx.Ops) + 1
		got, err := parts[p].Apply(t.Context(), &tx)
		if err != nil {
			t.Fatalf("seed %d, after %d operations: Apply: %v", seed, done, err)
		}
		want := oracles[p].Apply(got.Now, &tx)
		if !same(got, want) {
			t.Fatalf("seed %d, after %d operations, partition %d: transaction %+v\n(-engine +oracle):\n%s",
				seed, done, p, tx, cmp.Diff(got, want, cmpopts.EquateEmpty()))
		}
		gens[p].Learn(got)
		if g.IntN(4) == 0 {
			d := time.Duration(g.IntN(800)) * time.Millisecond
			if c.many && g.IntN(4) == 0 {
				d *= 10
			}
			fx.Advance(d)
		}
		if fx.Step != nil && g.IntN(300) == 0 { // every partition puts it right at its next transaction
			fx.Step(time.Duration((g.Float64() - 0.5) * float64(2*time.Hour)))
			for p := range parts {
				before := oracles[p].Counts()
				r, err := parts[p].Apply(t.Context(), &workqueue.Transaction{})
				if err != nil {
					t.Fatal(err)
				}
				if c := r.Corrected; c != nil {
					oracles[p].Correct(c.Now, c.By)
					oracles[p].Apply(c.Now, &workqueue.Transaction{})
				}
				if want := oracles[p].Apply(r.Now, &workqueue.Transaction{}); !same(uncorrected(r), want) {
					t.Fatalf("seed %d, after %d operations, partition %d, counts %+v, a step put right by %+v\n(-engine +oracle):\n%s",
						seed, done, p, before, r.Corrected, cmp.Diff(r, want, cmpopts.EquateEmpty()))
				}
			}
		}
		if g.IntN(3000) == 0 { // changed while it runs, and back the next time
			cfg.LeaseFor ^= time.Second
			if d := cfg.Dispatch; d != nil && g.IntN(2) == 0 {
				cfg.Dispatch = &workqueue.Rate{QPS: float64(g.IntN(300)+1) / 7, Burst: g.IntN(6) + 1}
			}
			for _, o := range oracles[1:] {
				o.Configure(0, cfg)
			}
			reconfigure(e, oracles[0], cfg)
		}
	}
}

// reconfigure changes the engine's queue, and the oracle of its first
// partition at the same time. An engine does not tell that time: it is
// the one, between two transactions, after which the dispatch limiter has the tokens
// that the engine's has.
func reconfigure(e *env, oracle *workqueue.Machine, cfg workqueue.Config) {
	e.Helper()
	tokens := workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdmit, Count: workqueue.MaxTokens}}}
	before := e.apply(workqueue.Transaction{})
	oracle.Apply(before.Now, &workqueue.Transaction{})
	e.configure(cfg)
	got := e.apply(tokens)
	at := []int64{before.Now, got.Now}
	if d := cfg.Dispatch; d != nil { // an empty bucket's next token but those taken came an interval after
		empty := float64(got.Replies[0].Next) - float64(got.Replies[0].Count+1)*(1e6/d.QPS)
		at = append(at, int64(math.Floor(empty))-1, int64(math.Floor(empty)), int64(math.Floor(empty))+1)
	}
	was := oracle.Snapshot()
	var want *workqueue.Result
	for _, at := range at {
		if at < before.Now || at > got.Now {
			continue
		}
		m := workqueue.Restore(was)
		m.Configure(at, cfg)
		if want = m.Apply(got.Now, &tokens); same(got, want) {
			oracle.Configure(at, cfg)
			oracle.Apply(got.Now, &tokens)
			return
		}
	}
	e.Fatalf("configured %+v: no time explains the tokens\n(-engine +oracle):\n%s", cfg.Dispatch, cmp.Diff(got, want, cmpopts.EquateEmpty()))
}

// uncorrected is a result without what was done before its transaction.
func uncorrected(r *workqueue.Result) *workqueue.Result {
	out := *r
	out.Corrected = nil
	return &out
}

// same is cmp.Equal with EquateEmpty, fast for what is usual.
func same(got, want *workqueue.Result) bool {
	if reflect.DeepEqual(got, want) {
		return true
	}
	return cmp.Equal(got, want, cmpopts.EquateEmpty())
}

// Gen makes random transactions over few keys, so that they meet.
type Gen struct {
	*rand.Rand
	away    bool // of a partition that is not the first
	buckets int
	now     int64
	leases  []workqueue.Lease // some live, some stale
	many    bool              // more keys, ids and operations than a transaction sweeps
}

// NewGen makes transactions of one partition, away from a number of buckets or not.
func NewGen(r *rand.Rand, away bool, buckets int) *Gen {
	return &Gen{Rand: r, away: away, buckets: buckets}
}

// Learn remembers the leases of a transaction, for operations on them.
func (g *Gen) Learn(r *workqueue.Result) {
	g.now = r.Now
	g.leases = append(g.leases, r.Leases...)
	if n := len(g.leases); n > 80 {
		g.leases = slices.Clone(g.leases[n-40:])
	}
}

// Next is the next transaction.
func (g *Gen) Next() workqueue.Transaction {
	t := workqueue.Transaction{Away: g.away}
	if g.away {
		t.Admitted = g.IntN(5)
		for range g.buckets {
			t.Reserved = append(t.Reserved, workqueue.Reserved{From: float64(g.now) + (g.Float64()-0.5)*1e6, Count: 3000})
		}
	}
	most := 12
	if g.IntN(4) == 0 { // as under load
		most = 80
		if g.many {
			most = 3000
		}
	}
	for range g.IntN(most) {
		t.Ops = append(t.Ops, g.op())
	}
	if g.many && g.IntN(8) == 0 { // ids that expire together
		for range g.IntN(900) {
			t.Ops = append(t.Ops, g.backoff())
		}
	}
	for i := range g.IntN(4) {
		take := workqueue.Take{Holder: "w" + strconv.Itoa(i), Max: g.IntN(6), For: int64(g.IntN(2)) * int64(g.IntN(5e6)+1)}
		if g.many {
			take.Max *= 400
		}
		t.Takes = append(t.Takes, take)
	}
	return t
}

func (g *Gen) key() string { return "key-" + strconv.Itoa(g.of(25)) }

// of is a number below n, or below as many as a transaction cannot sweep.
func (g *Gen) of(n int) int {
	if g.many {
		n *= 100
	}
	return g.IntN(n)
}

func (g *Gen) lease() workqueue.Lease {
	if len(g.leases) == 0 || g.IntN(20) == 0 {
		return workqueue.Lease{Key: g.key(), Token: uint64(g.IntN(10))}
	}
	return g.leases[g.IntN(len(g.leases))]
}

func (g *Gen) barrier() workqueue.Barrier {
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

func (g *Gen) namesOf(n int) []string {
	var out []string
	for range g.IntN(n) {
		out = append(out, "p-"+strconv.Itoa(g.IntN(6)))
	}
	return out
}

func (g *Gen) op() workqueue.Op {
	switch p := g.IntN(100); {
	case p < 45:
		op := workqueue.Op{Kind: workqueue.OpAdd, Key: g.key(), Level: workqueue.Level(0)}
		if g.IntN(3) == 0 {
			op.Level = uint8(g.IntN(workqueue.Levels))
		}
		switch g.IntN(8) {
		case 0:
			op.Delay, op.Last = int64(g.IntN(3e6)), g.IntN(2) == 0
			if g.IntN(2) == 0 { // many at the same time
				op.Delay = op.Delay / 1e6 * 1e6
			}
		case 1:
			op.Limited, op.Once = true, uint64(g.IntN(3))*math.MaxUint64/2
			op.Last = g.IntN(8) == 0
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
	switch g.IntN(14) {
	case 0, 1:
		op.Kind, op.For, op.Shorten = workqueue.OpExtend, int64(g.IntN(3e6)), g.IntN(2) == 0
		if op.Shorten && g.IntN(2) == 0 {
			op.Known = l.Deadline
		}
	case 2:
		op.Kind = workqueue.OpForget
	case 3:
		op.Kind = workqueue.OpRequeues
	case 4:
		op.Kind, op.More = workqueue.OpSave, &workqueue.More{Data: []byte(g.key()[:g.IntN(5)])}
	case 5:
		op.Kind, op.More = workqueue.OpExpect, &workqueue.More{Owner: "u" + strconv.Itoa(g.IntN(2)), Creates: g.namesOf(4), Deletes: g.namesOf(3)}
	case 6:
		op.Kind, op.More = workqueue.OpObserve, &workqueue.More{Owner: []string{"", "u0", "u1"}[g.IntN(3)], Creates: g.namesOf(4), Deletes: g.namesOf(4)}
	case 7:
		op.Kind = workqueue.OpUnexpect
	case 8:
		op.Kind = workqueue.OpInspect
	case 9:
		op.Kind = []workqueue.OpKind{workqueue.OpRetryNow, workqueue.OpRevoke, workqueue.OpDelete}[g.IntN(3)]
	case 10:
		return g.backoff()
	case 11:
		return g.tokens()
	case 12:
		return g.putBack()
	default: // mostly open and running
		op.Kind = []workqueue.OpKind{workqueue.OpOpen, workqueue.OpResume}[g.IntN(2)]
		if g.IntN(4) == 0 {
			op.Kind = []workqueue.OpKind{workqueue.OpClose, workqueue.OpPause}[g.IntN(2)]
		}
	}
	return op
}

func (g *Gen) putBack() workqueue.Op {
	op := workqueue.Op{
		Kind: workqueue.OpPutBack, Key: g.key(), Outcome: []workqueue.Outcome{workqueue.Done, workqueue.Release, workqueue.Dead}[g.IntN(3)],
		Level: uint8(g.IntN(workqueue.Levels)), Count: g.IntN(4), More: &workqueue.More{Barrier: g.barrier(), Data: []byte(g.key()[:g.IntN(5)])},
	}
	if g.IntN(2) == 0 {
		op.Delay = int64(g.IntN(3e6))
	}
	if g.IntN(2) == 0 {
		op.More.Reason = "because " + strconv.Itoa(g.IntN(9))
	}
	if g.IntN(2) == 0 {
		op.More.Owner, op.More.Creates, op.More.Deletes = "u"+strconv.Itoa(g.IntN(2)), g.namesOf(3), g.namesOf(3)
	}
	return op
}

func (g *Gen) backoff() workqueue.Op {
	op := workqueue.Op{Key: "id-" + strconv.Itoa(g.of(12)), Kind: workqueue.OpBackoffNext}
	switch g.IntN(5) {
	case 0:
		op.Kind = workqueue.OpBackoffGet
	case 1:
		op.Kind = workqueue.OpBackoffReset
	default:
		op.Random = g.Float64()
		if g.IntN(2) == 0 {
			op.Event = g.now + int64(g.IntN(8e6)) - 4e6
		}
	}
	return op
}

// tokens takes tokens for other partitions, which only the first one has.
func (g *Gen) tokens() workqueue.Op {
	switch {
	case g.away:
		return workqueue.Op{Kind: workqueue.OpInspect, Key: g.key()}
	case g.IntN(2) == 0:
		return workqueue.Op{Kind: workqueue.OpReserve, Count: g.IntN(7) - 2}
	default:
		return workqueue.Op{Kind: workqueue.OpAdmit, Count: g.IntN(6) - 2}
	}
}
