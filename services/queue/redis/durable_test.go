package redis_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestADurabilityThatIsNotToBeHadIsRefusedByItsSetting(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		cfg  workqueue.Config
		want string // empty: accepted
	}{
		"no append-only file":          {nil, workqueue.Config{Durability: workqueue.Fsync}, "appendonly"},
		"fsync always":                 {[]string{"--appendonly", "yes", "--appendfsync", "always"}, workqueue.Config{Durability: workqueue.Fsync}, ""},
		"no replica":                   {nil, workqueue.Config{Durability: workqueue.Replicated}, "has 0 replicas, DURABILITY_REPLICATED needs 1"},
		"fsync every second":           {[]string{"--appendonly", "yes", "--appendfsync", "everysec"}, workqueue.Config{Durability: workqueue.Fsync}, "appendfsync"},
		"memory":                       {nil, workqueue.Config{}, ""},
		"fsync always, CONFIG renamed": {[]string{"--appendonly", "yes", "--appendfsync", "always", "--rename-command", "CONFIG", ""}, workqueue.Config{Durability: workqueue.Fsync}, "cannot be checked, CONFIG GET is forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := start(t, tc.args...)
			e := newEngine(t, redis.Config{URL: srv.URL()})
			_, _, err := e.Configure(t.Context(), "dev/job", tc.cfg)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("Configure = %v", err)
			case tc.want != "" && strings.HasPrefix(tc.want, "app") && hasWaitAOF(t, srv) && strings.Contains(tc.want, "fsync"):
				if err != nil { // WAITAOF does instead
					t.Errorf("Configure = %v on a Redis with WAITAOF", err)
				}
			case strings.Contains(tc.want, "cannot be checked") && hasWaitAOF(t, srv):
				if err != nil {
					t.Errorf("Configure = %v on a Redis with WAITAOF", err)
				}
			case tc.want != "" && (!errors.Is(err, engine.ErrDurability) || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("Configure = %v, want ErrDurability with %q", err, tc.want)
			}
			if tc.want != "" && err != nil {
				if _, err := e.Open(t.Context(), "dev/job"); !errors.Is(err, engine.ErrNoQueue) {
					t.Errorf("Open = %v: the refused queue must not exist", err)
				}
			}
		})
	}
}

func hasWaitAOF(t *testing.T, srv *embedded.Redis) bool {
	t.Helper()
	got, err := raw(t, srv).Do(t.Context(), "COMMAND", "INFO", "waitaof").Slice()
	return err == nil && len(got) == 1 && got[0] != nil
}

func TestAnAnswerIsHeldUntilEnoughReplicasHaveIt(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 2)
	e := newEngine(t, redis.Config{URL: s.URL(), GiveUp: time.Second})
	q := configure(t, e, workqueue.Config{Durability: workqueue.Replicated, Replicas: 2})
	apply(t, q, add("a"))

	s.Nodes[1].Pause()
	in := workqueue.Transaction{Ops: add("b").Ops, Takes: take(5).Takes}
	_, err := q.Partitions()[0].Apply(t.Context(), &in)
	if !errors.Is(err, engine.ErrUnknown) || !strings.Contains(err.Error(), "1 of 2 replicas have answered") {
		t.Errorf("Apply = %v, want ErrUnknown that names how many answered", err)
	}

	// A replica that comes back in time lets the same transaction be answered, once applied.
	later := newEngine(t, redis.Config{URL: s.URL(), GiveUp: 20 * time.Second})
	lq, err := later.Open(t.Context(), "dev/job")
	if err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2500*time.Millisecond, s.Nodes[1].Continue)
	defer timer.Stop()
	begin := time.Now()
	r := apply(t, lq, workqueue.Transaction{Ops: add("c", "d").Ops, Takes: take(1).Takes})
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("answered after %v, while a replica stood still", took)
	}
	if len(r.Leases) != 1 || r.Leases[0].Key != "c" || r.Counts.Processing != 3 {
		t.Errorf("leases %v, counts %+v: a transaction that was waited for twice was done twice", r.Leases, r.Counts)
	}
	// Nobody else is held up by it.
	if _, err := q.Partitions()[0].Status(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestARepeatedTransactionIsWaitedForOnItsNewConnection(t *testing.T) {
	t.Parallel()
	s := embeddedtest.Sentinel(t, 1)
	p := newProxy(t, s.Nodes[0].Addr())
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr(), GiveUp: 2 * time.Second})
	q := configure(t, e, workqueue.Config{Durability: workqueue.Replicated})
	apply(t, q, add("a"))
	s.Nodes[1].Pause()
	p.dropReply.Store(true) // the transaction is answered on another connection, which has written nothing
	in := add("b")
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnknown) {
		t.Errorf("Apply = %v, want ErrUnknown: no replica has it", err)
	}
	if p.dropped.Load() == 0 {
		t.Fatal("no reply was dropped")
	}
	s.Nodes[1].Continue()
	if r := apply(t, q, add("c")); r.Counts.Ready != 3 {
		t.Errorf("counts %+v, want a, b and c", r.Counts)
	}
}

func TestAQueueThatMustBeOnDiskIsRefusedWhenItsRedisNoLongerHasOne(t *testing.T) {
	t.Parallel()
	srv := embeddedtest.DurableRedis(t)
	p := newProxy(t, srv.Addr())
	e := newEngine(t, redis.Config{URL: "redis://" + p.addr(), GiveUp: 2 * time.Second})
	q := configure(t, e, workqueue.Config{Durability: workqueue.Fsync})
	apply(t, q, add("a"))
	srv.Do("CONFIG", "SET", "appendonly", "no")
	p.cut() // as after a failover to a server that is set up otherwise
	in := add("b")
	for range 2 { // the connection that learns it may come with the first one
		_, err := q.Partitions()[0].Apply(t.Context(), &in)
		if errors.Is(err, engine.ErrDurability) && strings.Contains(err.Error(), "appendonly") {
			return
		}
		if err != nil {
			t.Fatalf("Apply = %v, want ErrDurability that names appendonly", err)
		}
	}
	t.Error("a queue that must be on disk was served from memory")
}

func TestAMasterCutOffFromItsReplicasTakesNothing(t *testing.T) {
	t.Parallel()
	srv := start(t)
	e := newEngine(t, redis.Config{URL: srv.URL(), GiveUp: 2 * time.Second})
	q := configure(t, e, workqueue.Config{})
	apply(t, q, add("a"))
	if err := raw(t, srv).ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	in := workqueue.Transaction{Ops: add("b").Ops, Takes: take(5).Takes}
	if _, err := q.Partitions()[0].Apply(t.Context(), &in); !errors.Is(err, engine.ErrUnavailable) {
		t.Errorf("Apply = %v, want ErrUnavailable: nothing was applied", err)
	}
	if err := raw(t, srv).ConfigSet(t.Context(), "min-replicas-to-write", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if r := apply(t, q, take(5)); len(r.Leases) != 1 || r.Leases[0].Key != "a" {
		t.Errorf("leases %v, want a only", r.Leases)
	}
}
