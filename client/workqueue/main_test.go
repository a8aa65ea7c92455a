package workqueue_test

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	upstream "k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A controller written on client-go's queue takes this one.
var _ upstream.TypedRateLimitingInterface[string] = (*workqueue.Queue)(nil)

// service is a running queue service.
type service struct {
	conn *grpc.ClientConn
	addr string
}

func serve(t *testing.T, cfg queue.Config) service {
	t.Helper()
	addr := queuetest.Address(t, cfg, "warn")
	conn, err := client.Dial(addr, client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return service{conn, addr}
}

// onEach runs a test on every kind of queue service.
func onEach(t *testing.T, f func(t *testing.T, s service)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		f(t, serve(t, queue.Config{}))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		f(t, serve(t, queue.Config{RedisURL: embeddedtest.Redis(t).URL()}))
	})
}

// open makes a queue of the test's own. Its limiter is an exponential one from
// 1 ms, as upstream's tests have it.
func (s service) open(t *testing.T) *workqueue.Queue {
	t.Helper()
	return s.openNamed(t, "test", nil)
}

func (s service) openNamed(t *testing.T, name string, onError func(string, string, error)) *workqueue.Queue {
	t.Helper()
	if onError == nil {
		onError = func(op, key string, err error) { t.Errorf("%s %q: %v", op, key, err) }
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	q, err := workqueue.New(ctx, s.conn, workqueue.Config{
		Queue: name, Grace: time.Second, OnError: onError,
		Settings: &client.QueueConfig{RateLimiter: client.Exponential(time.Millisecond, time.Second)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); q.Wait() })
	return q
}

// left is how many keys the service still has.
func (s service) left(t *testing.T, name string) client.Counts {
	t.Helper()
	counts, err := client.NewQueue(s.conn, name, "").Len(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// get has a key, and lets go of it when the test ends.
func get(t *testing.T, q *workqueue.Queue) string {
	t.Helper()
	key, shutdown := q.Get()
	if shutdown {
		t.Fatal("Get tells of a shutdown")
	}
	t.Cleanup(func() {
		if _, held := q.Item(key); held {
			q.Done(key)
		}
	})
	return key
}

// eventually waits for what another goroutine or the store brings about.
func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			t.Fatalf("not within %v: %s", within, what)
		case <-tick.C:
		}
	}
}

// never watches that something stays as it is.
func never(t *testing.T, during time.Duration, what string, happened func() bool) {
	t.Helper()
	end := time.NewTimer(during)
	defer end.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if happened() {
			t.Fatal(what)
		}
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}
