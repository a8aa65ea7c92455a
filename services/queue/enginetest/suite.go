// Package enginetest is what every queue engine must pass: the rules of client-go's
// work queue, of leases and of barriers, as docs/rules.md has them, and random
// histories compared with core/workqueue.
package enginetest

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deltaplane/deltaplane/core/backoff"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// Fixture is an engine under test and a way to move its clock.
type Fixture struct {
	Engine  engine.Engine
	Advance func(time.Duration)
	// Step moves the clock that the engine reads, without time having passed.
	// Nil: it cannot be moved. Random histories then have none of it.
	Step func(time.Duration)
	// Orphan takes the deadline of a held key away, as lost data or an operator's
	// hand may. Nil: it cannot be done.
	Orphan func(t *testing.T, queue, key string)
	// Remote says that the engine is reached through the services, whose
	// answers leave out the store's clock, due times and what a transaction moved.
	Remote bool
	// Operators says of a remote engine that it also carries the options, the
	// operators' operations and the back-off calls. Others always do.
	Operators bool
}

// Run holds an engine to the suite. Open is called once; every test has a
// queue of its own, so tests do not run beside one another: they share a clock.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	fx := open(t)
	groups := []map[string]func(*env){addRules, leaseRules, settleRules, dataRules, timeRules}
	if !fx.Remote {
		groups = append(groups, storeRules, dispatchRules, deadRules)
		t.Run("partitions", func(t *testing.T) { partitions(t, fx) })
		t.Run("limiters", func(t *testing.T) { limiters(t, fx) })
	}
	if fx.Operators || !fx.Remote {
		groups = append(groups, optionRules, operatorRules, backoffRules)
	}
	if fx.Orphan != nil {
		groups = append(groups, auditRules)
	}
	for _, group := range groups {
		for name, rule := range group {
			if fx.Remote && exact[name] {
				continue
			}
			t.Run(name, func(t *testing.T) { rule(newEnv(t, fx, workqueue.Config{})) })
		}
	}
	t.Run("engine", func(t *testing.T) { administration(t, fx) })
	t.Run("deletion", func(t *testing.T) { deletion(t, fx) })
	if !fx.Remote {
		t.Run("expiry", func(t *testing.T) { expiry(t, fx) })
	}
	t.Run("items", func(t *testing.T) { items(t, fx) })
}

// exact are rules that need what the calls of the services do not carry: an
// add's name, a last due time of a limited add, the random number of a jitter,
// deadlines to the microsecond.
var exact = map[string]bool{
	"a limited add of one name is charged once while its delay is pending": true,
	"changing the limiter keeps the failures, and its buckets start full":  true,
	"the jitter is a share of the delay before":                            true,
	"MaxProcessing: a lease is not extended past it":                       true,
}

var queues atomic.Int64

// env is one queue under test.
type env struct {
	*testing.T
	fx   Fixture
	name string
	of   engine.Queue
	q    engine.Partition
}

func newEnv(t *testing.T, fx Fixture, cfg workqueue.Config) *env {
	t.Helper()
	name := "test/q" + strconv.FormatInt(queues.Add(1), 10)
	q, created, err := fx.Engine.Configure(t.Context(), name, cfg)
	if err != nil || !created {
		t.Fatalf("Configure = created %v, %v", created, err)
	}
	return &env{T: t, fx: fx, name: name, of: q, q: q.Partitions()[0]}
}

func (e *env) configure(cfg workqueue.Config) {
	e.Helper()
	if _, created, err := e.fx.Engine.Configure(e.Context(), e.name, cfg); err != nil || created {
		e.Fatalf("Configure = created %v, %v", created, err)
	}
}

func (e *env) apply(t workqueue.Transaction) *workqueue.Result {
	e.Helper()
	r, err := e.q.Apply(e.Context(), &t)
	if err != nil {
		e.Fatalf("Apply: %v", err)
	}
	return r
}

func (e *env) do(op workqueue.Op) workqueue.Reply {
	e.Helper()
	return e.apply(workqueue.Transaction{Ops: []workqueue.Op{op}}).Replies[0]
}

func add(key string) workqueue.Op {
	return workqueue.Op{Kind: workqueue.OpAdd, Key: key, Level: workqueue.Level(0)}
}

func addP(key string, priority int) workqueue.Op {
	return workqueue.Op{Kind: workqueue.OpAdd, Key: key, Level: workqueue.Level(priority)}
}

func addAfter(key string, d time.Duration) workqueue.Op {
	op := add(key)
	op.Delay = d.Microseconds()
	return op
}

func settle(l workqueue.Lease, o workqueue.Outcome) workqueue.Op {
	return workqueue.Op{Kind: workqueue.OpSettle, Key: l.Key, Token: l.Token, Outcome: o}
}

// adds adds keys one after another and wants one status of all.
func (e *env) adds(want workqueue.Status, keys ...string) {
	e.Helper()
	for _, k := range keys {
		if got := e.do(add(k)); got.Status != want {
			e.Fatalf("add %q: status %d, want %d", k, got.Status, want)
		}
	}
}

func (e *env) get(n int) []workqueue.Lease {
	e.Helper()
	return e.apply(workqueue.Transaction{Takes: []workqueue.Take{{Holder: "w", Max: n}}}).Leases
}

// one leases exactly the key wanted.
func (e *env) one(key string) workqueue.Lease {
	e.Helper()
	ls := e.get(1)
	if len(ls) != 1 || ls[0].Key != key {
		e.Fatalf("leased %v, want %q", names(ls), key)
	}
	return ls[0]
}

func (e *env) none() {
	e.Helper()
	if ls := e.get(10); len(ls) != 0 {
		e.Fatalf("leased %v, want nothing", names(ls))
	}
}

func (e *env) keys(want ...string) []workqueue.Lease {
	e.Helper()
	ls := e.get(1000)
	if diff := cmp.Diff(names(ls), want); diff != "" {
		e.Fatalf("leased (-got +want):\n%s", diff)
	}
	return ls
}

func names(ls []workqueue.Lease) []string {
	var out []string
	for _, l := range ls {
		out = append(out, l.Key)
	}
	return out
}

func (e *env) end(l workqueue.Lease, o workqueue.Outcome, want workqueue.Status) workqueue.Reply {
	e.Helper()
	got := e.do(settle(l, o))
	if got.Status != want {
		e.Fatalf("settle %q with %d: status %d, want %d", l.Key, o, got.Status, want)
	}
	return got
}

func (e *env) counts(want workqueue.Counts) {
	e.Helper()
	if diff := cmp.Diff(e.apply(workqueue.Transaction{}).Counts, want); diff != "" {
		e.Fatalf("counts (-got +want):\n%s", diff)
	}
	st, err := e.q.Status(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	if diff := cmp.Diff(st.Counts, want); diff != "" {
		e.Fatalf("Status().Counts (-got +want):\n%s", diff)
	}
}

// after checks a time against the transaction that gave it.
func (e *env) after(r *workqueue.Result, at int64, want time.Duration) {
	e.Helper()
	tolerance := int64(0)
	if e.fx.Remote {
		tolerance = 900_000
	}
	if got := at - r.Now; got < want.Microseconds()-tolerance || got > want.Microseconds()+tolerance {
		e.Errorf("%v after the transaction, want %v", time.Duration(got)*time.Microsecond, want)
	}
}

func (e *env) advance(d time.Duration) { e.fx.Advance(d) }

func (e *env) inspect(key string) *workqueue.Item {
	e.Helper()
	return e.do(workqueue.Op{Kind: workqueue.OpInspect, Key: key}).Item
}

func exponential(base, limit time.Duration) *backoff.Limiter {
	return &backoff.Limiter{Kind: backoff.Exponential, Base: base, Max: limit}
}
