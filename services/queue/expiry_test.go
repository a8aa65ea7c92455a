package queue_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/maintain"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

const unused = time.Hour

// sweeper is the expiry of a server by a clock of its own, beside which the store's
// is moved.
type sweeper struct {
	x   *maintain.Expiry
	now time.Time
}

func newSweeper(r *queuetest.Rig) *sweeper {
	return &sweeper{maintain.NewExpiry(r.Svc.Upkeep(), unused), time.Now()}
}

func (s *sweeper) sweep(t *testing.T, later time.Duration) {
	t.Helper()
	s.now = s.now.Add(later)
	if err := s.x.Sweep(t.Context(), s.now); err != nil {
		t.Fatal(err)
	}
}

func TestAQueueThatNobodyUsesExpiresOnceItWasWatched(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{Queues: []queue.QueueConfig{{Name: "dev/declared"}}})
		x := newSweeper(r)
		r.Configure(t)
		r.AddKeys(t, "a")
		l := r.Lease(t)
		r.Advance(2 * unused)
		x.sweep(t, 0)
		x.sweep(t, 2*unused)
		if n := r.Names(t); len(n) != 2 {
			t.Fatalf("with a key there are %v", n)
		}
		r.Finish(t, l)
		x.sweep(t, unused)
		r.Advance(unused - time.Minute)
		x.sweep(t, unused)
		if n := r.Names(t); len(n) != 2 {
			t.Fatalf("before its time there are %v", n)
		}
		r.Advance(2 * time.Minute)
		y := newSweeper(r) // another server, which has just been started
		y.sweep(t, 0)
		y.sweep(t, maintain.MaxWatch-time.Second)
		if n := r.Names(t); len(n) != 2 {
			t.Fatalf("a server that has not watched for long enough left %v", n)
		}
		y.sweep(t, time.Second)
		if n := r.Names(t); len(n) != 1 || n[0] != "dev/declared" {
			t.Fatalf("there are %v, want the declared one", n)
		}
		_, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "a"}}})
		queuetest.NotFound(t, "an add after that", err)
		if !strings.Contains(err.Error(), "there are: dev/declared") {
			t.Errorf("%v: it does not say which queues there are", err)
		}
		r.Configure(t)
		r.AddKeys(t, "a")
		r.Finish(t, r.Lease(t))
	})
}

func TestStreamsOfOtherServersKeepAQueue(t *testing.T) {
	t.Parallel()
	node := embeddedtest.DurableRedis(t)
	var servers [2]*queuetest.Rig
	for i := range servers {
		e, err := redis.New(redis.Config{URL: node.URL()})
		if err != nil {
			t.Fatal(err)
		}
		servers[i] = queuetest.Serve(t, queue.Config{}, e)
	}
	a, b := servers[0], servers[1]
	for _, name := range []string{"dev/worker", "dev/producer", "dev/nobody"} {
		a.Config(t, &queuev1.QueueConfig{Name: name, Partitions: 2})
	}
	marks := func(name string) string {
		idle, err := a.Engine.Idle(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return idle.Mark
	}
	b.OpenWork(t, &queuev1.Hello{SessionId: "w", Queues: []string{"dev/worker"}}) // without credit it has no transactions
	p := b.OpenProduce(t, "p")
	p.Send(1, "dev/producer", queuetest.PlainAdds("k")...)
	if got := queuetest.Wait(t, p.Produced); got.GetError() != nil {
		t.Fatal(got)
	}
	if _, err := b.DeleteItems(t.Context(), &queuev1.DeleteItemsRequest{Queue: "dev/producer", Keys: []string{"k"}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dev/worker", "dev/producer"} {
		l, ok := b.Svc.Queues().Known(name)
		if !ok || l.Streams.Load() != 1 {
			t.Fatalf("%s is not kept by its stream", name)
		}
		was := marks(name)
		l.Used.Store(0) // its last use was long ago
		b.Svc.Queues().Kept <- struct{}{}
		for until := time.Now().Add(30 * time.Second); marks(name) == was; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%s: its stream is no use of it", name)
			}
		}
	}
}

// keepers are stores, with how many keys or files they hold that do not go by
// themselves.
var keepers = map[string]func(t *testing.T, skew *atomic.Int64) (engine.Engine, func() int){
	"memory": func(t *testing.T, skew *atomic.Int64) (engine.Engine, func() int) {
		dir := t.TempDir()
		e, err := memory.New(memory.Config{Dir: dir, Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }})
		if err != nil {
			t.Fatal(err)
		}
		return e, func() int {
			files, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			return len(files)
		}
	},
	"redis": func(t *testing.T, skew *atomic.Int64) (engine.Engine, func() int) {
		srv := embeddedtest.Redis(t)
		e, err := redis.New(redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
		if err != nil {
			t.Fatal(err)
		}
		c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
		t.Cleanup(func() { _ = c.Close() })
		return e, func() (n int) {
			keys, err := c.Keys(t.Context(), "*").Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range keys { // notes and answers have a time to live
				if ttl, err := c.TTL(t.Context(), key).Result(); err != nil {
					t.Fatal(err)
				} else if ttl < 0 {
					n++
				}
			}
			return n
		}
	},
}

func TestTwoHundredQueuesThatExpireLeaveNothing(t *testing.T) { //nolint:paralleltest // it counts goroutines
	for kind, open := range keepers {
		t.Run(kind, func(t *testing.T) {
			var skew atomic.Int64
			e, stored := open(t, &skew)
			r := queuetest.Serve(t, queue.Config{}, e)
			r.Advance = func(d time.Duration) { skew.Add(int64(d)) }
			x := newSweeper(r)
			ctx := t.Context()
			r.Configure(t)
			r.AddKeys(t, "a") // all that the first use of a server starts
			r.Finish(t, r.Lease(t))
			r.Advance(2 * unused)
			x.sweep(t, 0)
			x.sweep(t, unused)
			settle := func(want int) int {
				for until := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > want && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
				}
				return runtime.NumGoroutine()
			}
			time.Sleep(200 * time.Millisecond) // more goroutines at the start only make the test weaker
			goroutines, keys := runtime.NumGoroutine(), stored()
			all := func(i int) string { return fmt.Sprintf("dev/random-%d", i) }
			for i := range 200 {
				r.Config(t, &queuev1.QueueConfig{Name: all(i), Partitions: int32(1 + i%3)})
				if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: all(i), Items: []*queuev1.AddItem{{Key: "k"}}}); err != nil {
					t.Fatal(err)
				}
				if _, err := r.DeleteItems(ctx, &queuev1.DeleteItemsRequest{Queue: all(i), Keys: []string{"k"}}); err != nil {
					t.Fatal(err)
				}
			}
			if n := runtime.NumGoroutine(); n < goroutines+200 {
				t.Fatalf("%d goroutines, %d before", n, goroutines)
			}
			x.sweep(t, 0)
			r.Advance(2 * unused)
			x.sweep(t, unused)
			if n := r.Names(t); len(n) != 0 {
				t.Fatalf("%d queues are left", len(n))
			}
			if n := settle(goroutines); n > goroutines {
				t.Errorf("%d goroutines, %d before", n, goroutines)
			}
			for i := range 200 {
				if n := queuetest.Series(t, r, all(i)); n != 0 {
					t.Fatalf("%s: %d metric series are left", all(i), n)
				}
			}
			if n := stored(); n != keys {
				t.Errorf("%d keys in the store, %d before", n, keys)
			}
		})
	}
}

func TestNoMoreQueuesAreMadeThanThereMayBe(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{MaxQueues: 3, Queues: []queue.QueueConfig{{Name: "dev/declared"}}})
		r.WaitFor(t, "dev/declared")
		for i := range 2 {
			r.Config(t, &queuev1.QueueConfig{Name: fmt.Sprint("dev/", i)})
		}
		_, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}})
		if rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != "TOO_MANY_QUEUES" || !strings.Contains(err.Error(), "--queue-max-queues is 3") {
			t.Fatalf("ConfigureQueue = %v", err)
		}
		r.Config(t, &queuev1.QueueConfig{Name: "dev/0", MaxRetries: 7}) // those there are can be changed
		if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: "dev/1", Items: []*queuev1.AddItem{{Key: "a"}}}); err != nil {
			t.Error(err)
		}
		if _, err := r.DeleteQueue(t.Context(), &queuev1.DeleteQueueRequest{Queue: "dev/0"}); err != nil {
			t.Fatal(err)
		}
		r.Configure(t)
	})
}

func TestAnAddReachesAQueueThatAnotherServerCreatedAgain(t *testing.T) {
	t.Parallel()
	queuetest.OnEngines(t, func(t *testing.T, kind string) {
		r := queuetest.Start(t, kind, queue.Config{})
		r.Configure(t)
		r.AddKeys(t, "a")
		r.Finish(t, r.Lease(t))
		idle, err := r.Engine.Idle(t.Context(), queuetest.Q)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Engine.Expire(t.Context(), queuetest.Q, idle); err != nil { // as another server does
			t.Fatal(err)
		}
		if _, _, err := r.Engine.Configure(t.Context(), queuetest.Q, workqueue.Config{Partitions: 2}); err != nil {
			t.Fatal(err)
		}
		r.AddKeys(t, "b")
		if l := r.Lease(t); l.GetKey() != "b" {
			t.Errorf("leased %v", l)
		}
	})
}

func TestTheShortestExpiryIsAMinute(t *testing.T) {
	t.Parallel()
	for d, ok := range map[time.Duration]bool{0: true, -1: false, time.Second: false, time.Minute: true, 48 * time.Hour: true} {
		if err := (queue.Config{ExpireAfter: d}).Validate(); (err == nil) != ok {
			t.Errorf("%v: %v", d, err)
		}
	}
	if err := (queue.Config{MaxQueues: -1}).Validate(); err == nil {
		t.Error("a limit below 1 is taken")
	}
}
