package workqueue_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/workqueue"
	"github.com/deltaplane/deltaplane/services/queue"
)

// road is a connection to a service that may be away.
type road struct{ to atomic.Pointer[string] }

func (r *road) conn(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///queue", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			to := r.to.Load()
			if to == nil {
				return nil, errors.New("the service is away")
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", *to)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func (r *road) open(t *testing.T, onError func(op, key string, err error)) (*workqueue.Queue, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	q, err := workqueue.New(ctx, r.conn(t), workqueue.Config{Queue: "away", Grace: time.Second, OnError: onError})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); q.Wait() })
	return q, cancel
}

func TestNothingIsWaitedForWhileTheServiceIsAwayAndAllIsDoneOnceItIsBack(t *testing.T) {
	t.Parallel()
	var r road
	q, _ := r.open(t, nil)
	const calls = 110_000 // a producer takes 100,000 and then waits
	_, added := background(func() {
		for range calls {
			q.Add("one")
			q.AddAfter("later", time.Hour)
			q.Forget("one")
		}
		for range 300 {
			q.AddRateLimited("counted")
		}
	})
	select {
	case <-added:
	case <-time.After(time.Minute):
		t.Fatal("calls wait for a service that is away")
	}
	s := serve(t, queue.Config{})
	r.to.Store(&s.addr)
	if key := get(t, q); key != "one" && key != "counted" {
		t.Errorf("got %q, want a key that was added while the service was away", key)
	}
	if n := q.NumRequeues("counted"); n != 300 {
		t.Errorf("300 rate-limited adds count as %d", n)
	}
	q.Len()
	if n := s.left(t, "away"); n.Delayed == 0 || n.Ready+n.Processing+n.Delayed > 5 {
		t.Errorf("the queue has %v, want three keys, one of them in an hour", n)
	}
}

func TestKeysThatWereNotSentBeforeTheEndAreNamed(t *testing.T) {
	t.Parallel()
	var r road
	var mu sync.Mutex
	var named []string
	q, cancel := r.open(t, func(op, key string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if op == "add" && err != nil {
			named = append(named, key)
		}
	})
	q.Add("a")
	q.Add("b")
	cancel()
	q.Wait()
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(named)
	if named = slices.Compact(named); !slices.Equal(named, []string{"a", "b"}) {
		t.Errorf("named are %q, want a and b", named)
	}
}

func TestAFailedRunIsKeptThoughItsProcessIsShuttingDown(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s service) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		q, err := workqueue.New(ctx, s.conn, workqueue.Config{Queue: "failed", Settings: &client.QueueConfig{RateLimiter: client.Exponential(time.Hour, time.Hour)}})
		if err != nil {
			t.Fatal(err)
		}
		q.Add("late")
		q.Add("limited")
		first, second := get(t, q), get(t, q)
		q.ShutDown()
		q.AddAfter(first, time.Hour)
		q.AddAfter("nobody has it", time.Hour)
		q.AddRateLimited(second)
		q.Done(first)
		q.Done(second)
		if key, shutdown := q.Get(); !shutdown {
			t.Errorf("%q came, want none", key)
		}
		q.Wait()
		if n := s.left(t, "failed"); n.Delayed != 2 {
			t.Errorf("the queue has %v, want the two keys that were in hand delayed", n)
		}
	})
}
