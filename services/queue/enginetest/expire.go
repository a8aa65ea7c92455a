package enginetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
)

// long is how long queues of these tests are not used.
const long = time.Hour

func expiry(t *testing.T, fx Fixture) {
	ctx := t.Context()
	idle := func(t *testing.T, name string) engine.Idle {
		t.Helper()
		i, err := fx.Engine.Idle(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	configs := map[string]workqueue.Config{"one partition": {}, "three partitions": {Partitions: 3}}
	everywhere := func(what string, f func(*testing.T, *env)) {
		t.Run(what, func(t *testing.T) {
			for name, cfg := range configs {
				t.Run(name, func(t *testing.T) { f(t, newEnv(t, fx, cfg)) })
			}
		})
	}
	t.Run("an unknown queue is refused", func(t *testing.T) {
		if _, err := fx.Engine.Idle(ctx, "test/none"); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Idle = %v, want ErrNoQueue", err)
		}
		if err := fx.Engine.Keep(ctx, "test/none"); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Keep = %v, want ErrNoQueue", err)
		}
		if err := fx.Engine.Expire(ctx, "test/none", engine.Idle{Empty: true, Mark: "1"}); err == nil {
			t.Error("Expire = nil")
		}
	})
	everywhere("a queue that nobody uses expires, and starts over when it is used", func(t *testing.T, e *env) {
		was := fx.Engine.Generation()
		e.advance(long)
		seen := idle(t, e.name)
		if !seen.Empty || seen.For < long || seen.For > 2*long {
			t.Fatalf("Idle = %+v, want empty for %v", seen, long)
		}
		if err := fx.Engine.Expire(ctx, e.name, seen); err != nil {
			t.Fatal(err)
		}
		if _, err := fx.Engine.Open(ctx, e.name); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Open = %v, want ErrNoQueue", err)
		}
		if names, err := fx.Engine.Names(ctx); err != nil || slices.Contains(names, e.name) {
			t.Errorf("it is among the names %v, %v", names, err)
		}
		for i, p := range e.of.Partitions() {
			if _, err := p.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{add("a")}}); !errors.Is(err, engine.ErrNoQueue) {
				t.Errorf("a transaction of partition %d = %v, want ErrNoQueue", i, err)
			}
		}
		if err := fx.Engine.Keep(ctx, e.name); !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Keep = %v, want ErrNoQueue", err)
		}
		if err := fx.Engine.Expire(ctx, e.name, seen); err != nil && !errors.Is(err, engine.ErrNoQueue) {
			t.Errorf("Expire again = %v", err)
		}
		cfg := e.of.Config()
		cfg.Partitions = 2
		q, created, err := fx.Engine.Configure(ctx, e.name, cfg)
		if err != nil || !created {
			t.Fatalf("Configure = created %v, %v", created, err)
		}
		if now := fx.Engine.Generation(); now != was {
			t.Errorf("generation %q became %q", was, now)
		}
		for _, p := range q.Partitions() {
			e.q = p
			e.adds(workqueue.Queued, "a")
			e.keys("a") // at once: nobody can hold a lease of before
		}
		if names, err := fx.Engine.Names(ctx); err != nil || !slices.Contains(names, e.name) {
			t.Errorf("it is not among the names %v, %v", names, err)
		}
	})
	uses := map[string]func(*env){
		"an add":            func(e *env) { e.adds(workqueue.Queued, "a"); e.do(of(workqueue.OpDelete, "a")) },
		"a take":            func(e *env) { e.none() },
		"a settlement":      func(e *env) { e.do(settle(workqueue.Lease{Key: "a", Token: 1}, workqueue.Done)) },
		"a configuration":   func(e *env) { c := e.of.Config(); c.MaxRetries++; e.configure(c) },
		"Keep":              func(e *env) { e.keep() },
		"a lease that went": func(e *env) { e.adds(workqueue.Queued, "a"); e.end(e.one("a"), workqueue.Done, workqueue.Settled) },
	}
	for what, use := range uses {
		everywhere("a use keeps the queue: "+what, func(t *testing.T, e *env) {
			e.T = t
			e.advance(long)
			seen := idle(t, e.name)
			use(e)
			now := idle(t, e.name)
			if now.For > engine.UseEvery || now.Mark == seen.Mark || !now.Empty {
				t.Errorf("Idle = %+v after a use, was %+v", now, seen)
			}
			if err := fx.Engine.Expire(ctx, e.name, seen); !errors.Is(err, engine.ErrInUse) {
				t.Fatalf("Expire = %v, want ErrInUse", err)
			}
			for _, p := range e.of.Partitions() {
				if _, err := p.Apply(ctx, &workqueue.Transaction{Ops: []workqueue.Op{add("b")}}); err != nil {
					t.Errorf("a transaction after the refusal: %v", err)
				}
			}
		})
	}
	holds := map[string]func(*env){
		"ready":   func(e *env) { e.adds(workqueue.Queued, "a") },
		"delayed": func(e *env) { e.do(addAfter("a", 10*long)) },
		"leased": func(e *env) {
			c := e.of.Config()
			c.LeaseFor, c.MaxLease = time.Hour, time.Hour
			e.configure(c)
			e.adds(workqueue.Queued, "a")
			e.one("a")
		},
		"dead": func(e *env) { e.adds(workqueue.Queued, "a"); e.end(e.one("a"), workqueue.Dead, workqueue.Settled) },
	}
	for what, hold := range holds {
		everywhere("a key keeps the queue: "+what, func(t *testing.T, e *env) {
			e.T = t
			for _, p := range e.of.Partitions() {
				e.q = p
			}
			hold(e) // in the last partition
			e.advance(long - time.Minute)
			seen := idle(t, e.name)
			if seen.Empty {
				t.Errorf("Idle = %+v", seen)
			}
			if err := fx.Engine.Expire(ctx, e.name, seen); !errors.Is(err, engine.ErrInUse) {
				t.Fatalf("Expire = %v, want ErrInUse", err)
			}
			if c := e.apply(workqueue.Transaction{}).Counts; c == (workqueue.Counts{}) {
				t.Error("its key is gone")
			}
		})
	}
	everywhere("looks and transactions without a reason from outside are no use", func(t *testing.T, e *env) {
		e.T = t
		e.advance(long)
		seen := idle(t, e.name)
		for _, p := range e.of.Partitions() {
			if _, err := p.Apply(ctx, &workqueue.Transaction{}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Status(ctx); err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Items(ctx, workqueue.Idle, "", 10); err != nil {
				t.Fatal(err)
			}
		}
		if now := idle(t, e.name); now.Mark != seen.Mark {
			t.Errorf("Idle = %+v, was %+v", now, seen)
		}
	})
}

func (e *env) keep() {
	e.Helper()
	if err := e.fx.Engine.Keep(e.Context(), e.name); err != nil {
		e.Fatal(err)
	}
}
