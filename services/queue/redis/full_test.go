package redis_test

import (
	"errors"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

const jobs = "dev/job" // the queue that configure makes

func TestAServerThatStartsWhenRedisIsFullDrainsIt(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	before := newEngine(t, redis.Config{URL: srv.URL()})
	q := configure(t, before, workqueue.Config{})
	apply(t, q, add("a", "b", "c"))
	if err := before.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	srv.Kill()
	srv.Start() // it has no script now, and every transaction begins a new run
	srv.Do("CONFIG", "SET", "maxmemory", "1mb")
	fresh := newEngine(t, redis.Config{URL: srv.URL()})
	for name, e := range map[string]*redis.Engine{"before": before, "fresh": fresh} {
		if err := e.Check(t.Context()); !errors.Is(err, engine.ErrFull) {
			t.Errorf("%s: Check = %v, want ErrFull", name, err)
		}
		if e.Generation() == "" {
			t.Errorf("%s: no generation", name)
		}
		for _, retries := range []int{0, 3} { // as at the start of a server: as it was, and changed
			if _, created, err := e.Configure(t.Context(), jobs, workqueue.Config{MaxRetries: retries}); err != nil || created {
				t.Fatalf("%s: Configure = created %v, %v", name, created, err)
			}
		}
	}
	if _, _, err := fresh.Configure(t.Context(), "dev/another", workqueue.Config{}); !errors.Is(err, engine.ErrFull) {
		t.Errorf("a new queue = %v, want ErrFull", err)
	}
	q, err := fresh.Open(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, q, workqueue.Transaction{}) // begins the pause after the restart
	p := q.Partitions()[0]
	if st, err := p.Status(t.Context()); err != nil || st.Counts.Ready != 3 || st.HeldUntil == 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	if items, _, err := p.Items(t.Context(), workqueue.Idle, "", 10); err != nil || len(items) != 3 {
		t.Errorf("items %v, %v", items, err)
	}
	if r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpDelete, Key: "a"}}}); r.Replies[0].Status != workqueue.OK {
		t.Errorf("delete: status %v", r.Replies[0].Status)
	}
}

func TestNoAddGetsIntoAFullRedisBehindWhatFreesSpace(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e, fx := open(t, srv.URL())
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a"))
	apply(t, q, take(1))
	if err := raw(t, srv).ConfigSet(t.Context(), "maxmemory", "1mb").Err(); err != nil {
		t.Fatal(err)
	}
	fx.Advance(time.Minute) // the lease of a runs out in the transaction of the add
	in := add("b")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrFull) {
		t.Errorf("Apply = %v, want ErrFull", err)
	}
}

func TestAnEvictionPolicySetAtRunTimeRefusesAddsAtOnce(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL()})
	allowed := newEngine(t, redis.Config{URL: srv.URL(), AllowEviction: true})
	q := configure(t, e, workqueue.Config{})
	p := q.Partitions()[0]
	apply(t, q, add("a", "b"))
	held := apply(t, q, take(1)).Leases[0]
	c := raw(t, srv)
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "allkeys-random"} {
		if err := c.ConfigSet(t.Context(), "maxmemory-policy", policy).Err(); err != nil {
			t.Fatal(err)
		}
		in := add("c") // the very next transaction
		if _, err := p.Apply(t.Context(), &in); !errors.Is(err, engine.ErrEviction) {
			t.Errorf("%s: Apply = %v, want ErrEviction", policy, err)
		}
		if err := e.Check(t.Context()); !errors.Is(err, engine.ErrEviction) {
			t.Errorf("%s: Check = %v, want ErrEviction", policy, err)
		}
	}
	r := apply(t, q, workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpSettle, Key: held.Key, Token: held.Token, Outcome: workqueue.Done}}, Takes: take(1).Takes})
	if r.Replies[0].Status != workqueue.Settled || len(r.Leases) != 1 {
		t.Errorf("what is there is worked off: replies %v, leases %v", r.Replies, r.Leases)
	}
	other, err := allowed.Open(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, other, add("where eviction is allowed"))
	if err := c.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	apply(t, q, add("c"))
	if err := e.Check(t.Context()); err != nil {
		t.Errorf("Check = %v when it was mended", err)
	}
}
