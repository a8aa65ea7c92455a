package redis_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/enginetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestExpiryLosesNoAcknowledgedAdd(t *testing.T) {
	t.Parallel()
	urls := map[string]string{"one server": start(t).URL(), "cluster": embeddedtest.Cluster(t, 3).URL()}
	for name, url := range urls {
		for _, parts := range []int{1, 3} {
			t.Run(name, func(t *testing.T) {
				a, _ := open(t, url)
				b, _ := open(t, url)
				enginetest.ExpiryLosesNothing(t, []engine.Engine{a, b}, parts, uint64(time.Now().UnixNano()), 40)
			})
		}
	}
}

func TestAnExpiryThatBreaksOffIsUndoneByTheNextUse(t *testing.T) {
	t.Parallel()
	srv := start(t)
	steps := map[string]int{"the first is sealed": 1, "all are sealed": 3, "one has ended": 4, "two have ended": 5}
	uses := map[string]func(*testing.T, *redis.Engine, engine.Queue) error{
		"a transaction of the first": func(t *testing.T, _ *redis.Engine, q engine.Queue) error { return useOf(t, q, 0) },
		"a transaction of the last": func(t *testing.T, e *redis.Engine, q engine.Queue) error {
			err := useOf(t, q, 2)
			if errors.Is(err, engine.ErrNoQueue) { // the dispatcher opens it then
				if q, err = e.Open(t.Context(), q.(interface{ Name() string }).Name()); err == nil {
					err = useOf(t, q, 2)
				}
			}
			return err
		},
		"Open": func(t *testing.T, e *redis.Engine, q engine.Queue) error {
			_, err := e.Open(t.Context(), q.(interface{ Name() string }).Name())
			return err
		},
		"Configure": func(t *testing.T, e *redis.Engine, q engine.Queue) error {
			cfg := q.Config()
			cfg.MaxRetries++
			_, created, err := e.Configure(t.Context(), q.(interface{ Name() string }).Name(), cfg)
			if created {
				t.Error("Configure created the queue again")
			}
			return err
		},
	}
	for at, n := range steps {
		for what, use := range uses {
			t.Run(at+"/"+what, func(t *testing.T) {
				e, fx := open(t, srv.URL())
				name := "test/" + strings.ReplaceAll(at+"-"+what, " ", "-")
				q, _, err := e.Configure(t.Context(), name, workqueue.Config{Partitions: 3})
				if err != nil {
					t.Fatal(err)
				}
				fx.Advance(time.Hour)
				seen, err := e.Idle(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				if !redis.ExpireSteps(t, e, name, seen, 0, n) {
					t.Fatal("it was refused before there was a use")
				}
				was := e.Generation()
				if err := use(t, e, q); err != nil {
					t.Fatal(err)
				}
				if redis.ExpireSteps(t, e, name, seen, n, 6) {
					t.Fatal("the expiry went on")
				}
				again, err := e.Open(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				for part, p := range again.Partitions() {
					r, err := p.Apply(t.Context(), &workqueue.Transaction{
						Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "k"}}, Takes: []workqueue.Take{{Holder: "w", Max: 9}},
					})
					if err != nil || len(r.Leases) == 0 {
						t.Errorf("partition %d: %v, %v", part, r, err)
					}
				}
				if g := e.Generation(); g != was && what != "Configure" {
					t.Errorf("generation %q became %q: nothing was lost", was, g)
				}
			})
		}
	}
}

func TestAnExpiryThatBrokeOffIsFinishedByTheNext(t *testing.T) {
	t.Parallel()
	e, fx := open(t, start(t).URL())
	for n := range 6 {
		name := "test/broken" + string(rune('0'+n))
		if _, _, err := e.Configure(t.Context(), name, workqueue.Config{Partitions: 3}); err != nil {
			t.Fatal(err)
		}
		fx.Advance(time.Hour)
		seen, err := e.Idle(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if !redis.ExpireSteps(t, e, name, seen, 0, n) {
			t.Fatal("it was refused")
		}
		if seen, err = e.Idle(t.Context(), name); err != nil || !seen.Empty || seen.For < time.Hour {
			t.Fatalf("after %d steps Idle = %+v, %v", n, seen, err)
		}
		if err := e.Expire(t.Context(), name, seen); err != nil {
			t.Errorf("after %d steps Expire = %v", n, err)
		}
		if _, err := e.Open(t.Context(), name); !errors.Is(err, engine.ErrDeleted) {
			t.Errorf("after %d steps Open = %v, want ErrDeleted", n, err)
		}
	}
}

// A caller that finds a seal keeps the first partition, and then takes the seal off. Between the
// two the expiry may have ended, another begun, and the partition been made again: an add to it
// would be left behind when the first one ends.
func TestASealOfAnotherTimeIsNotTakenOff(t *testing.T) {
	t.Parallel()
	e, fx := open(t, start(t).URL())
	const name = "test/seals"
	if _, _, err := e.Configure(t.Context(), name, workqueue.Config{Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	fx.Advance(time.Hour)
	seen, err := e.Idle(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if !redis.ExpireSteps(t, e, name, seen, 0, 3) {
		t.Fatal("it was refused")
	}
	first := redis.SealOf(t, e, name, 1)
	if redis.KeepPartition(t, e, name, 1, "of another") || redis.SealOf(t, e, name, 1) != first {
		t.Error("the seal of an expiry was taken off by who saw another")
	}
	if !redis.ExpireSteps(t, e, name, seen, 3, 5) {
		t.Fatal("it was refused")
	}
	if _, err := e.Open(t.Context(), name); err != nil { // makes it again, and keeps the first
		t.Fatal(err)
	}
	if seal := redis.SealOf(t, e, name, 1); seal != "" {
		t.Errorf("the seal %q is left where it is used", seal)
	}
	fx.Advance(time.Hour)
	made := map[string]bool{}
	for range 3 {
		other := "test/seals-" + string(rune('a'+len(made)))
		if _, _, err := e.Configure(t.Context(), other, workqueue.Config{Partitions: 2}); err != nil {
			t.Fatal(err)
		}
		seen, err := e.Idle(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		if !redis.ExpireSteps(t, e, other, seen, 0, 3) { // the second has ended
			t.Fatal("it was refused")
		}
		seal := redis.MakeAgain(t, e, other, 1)
		if redis.KeepPartition(t, e, other, 1, "broken-off") || made[seal] {
			t.Errorf("a partition that was made again has the seal %q", seal)
		}
		made[seal] = true
	}
}

func useOf(t *testing.T, q engine.Queue, part int) error {
	_, err := q.Partitions()[part].Apply(t.Context(), &workqueue.Transaction{Ops: []workqueue.Op{{Kind: workqueue.OpAdd, Key: "used"}}})
	return err
}
