package clientgo_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// request is built as controller-runtime's reconcile.Request is.
type request struct{ types.NamespacedName }

var (
	_ workqueue.TypedRateLimitingInterface[request] = (*clientgo.Queue[request])(nil)
	_ workqueue.TypedRateLimitingInterface[any]     = (*clientgo.Queue[any])(nil)
)

// config is that of a queue of the test's own, whose errors fail the test unless it takes them.
func config[T comparable](t *testing.T, errs chan<- error) clientgo.QueueConfig[T] {
	t.Helper()
	return clientgo.QueueConfig[T]{Config: keys.Config{
		Queue: "test", Grace: time.Second,
		OnError: func(op, key string, err error) {
			if errs == nil {
				t.Errorf("%s %q: %v", op, key, err)
				return
			}
			errs <- fmt.Errorf("%s %q: %w", op, key, err)
		},
	}}
}

func open[T comparable](t *testing.T, conn *grpc.ClientConn, limiter workqueue.TypedRateLimiter[T], cfg clientgo.QueueConfig[T]) *clientgo.Queue[T] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	q, err := clientgo.NewQueue(ctx, conn, limiter, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); q.Wait() })
	return q
}

// roundTrip adds an item and takes it again.
func roundTrip[T comparable](t *testing.T, conn *grpc.ClientConn, item T, key string) {
	t.Helper()
	q := open(t, conn, nil, config[T](t, nil))
	q.Add(item)
	q.Add(item)
	got, shutdown := q.Get()
	if got != item || shutdown {
		t.Errorf("got %v, shutdown %t; want %v", got, shutdown, item)
	}
	if held, ok := q.Item(item); !ok || held.Key != key || q.Context(item).Err() != nil {
		t.Errorf("%v is held as %q (%t), want %q", item, held.Key, ok, key)
	}
	q.Done(item)
	if n := q.Len(); n != 0 {
		t.Errorf("%d items are left", n)
	}
}

func TestAnItemComesBackAsItWasAdded(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, conn *grpc.ClientConn) {
		roundTrip(t, conn, "anything", "anything")
		roundTrip(t, conn, types.NamespacedName{Namespace: "ns", Name: "a"}, "ns/a")
		roundTrip(t, conn, types.NamespacedName{Name: "node"}, "node")
		roundTrip(t, conn, types.NamespacedName{}, "/")
		roundTrip(t, conn, types.NamespacedName{Namespace: "ns"}, "ns/")
		roundTrip(t, conn, request{types.NamespacedName{Namespace: "ns", Name: "a"}}, "ns/a")
		roundTrip(t, conn, cache.ObjectName{Namespace: "ns", Name: "a"}, "ns/a")
	})
}

func TestATypeWithoutCodecIsRefusedByName(t *testing.T) {
	t.Parallel()
	check := func(err error, name string) {
		t.Helper()
		if !errors.Is(err, clientgo.ErrNoCodec) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one of %s without codec", err, name)
		}
	}
	_, err := clientgo.NewQueue(t.Context(), nil, nil, clientgo.QueueConfig[int]{})
	check(err, "int")
	_, err = clientgo.NewQueue(t.Context(), nil, nil, clientgo.QueueConfig[any]{})
	check(err, "interface {}")
	_, err = clientgo.NewQueue(t.Context(), nil, nil, clientgo.QueueConfig[*request]{})
	check(err, "*clientgo_test.request")
	type hidden struct{ n types.NamespacedName } //nolint:unused // only its type counts
	_, err = clientgo.NewQueue(t.Context(), nil, nil, clientgo.QueueConfig[hidden]{})
	check(err, "hidden")
	type more struct {
		request
		Cluster string
	}
	_, err = clientgo.NewQueue(t.Context(), nil, nil, clientgo.QueueConfig[more]{})
	check(err, "more")
}

// numbers is a codec that refuses some.
type numbers struct{}

func (numbers) Encode(n int) (string, error) {
	if n < 0 {
		return "", errors.New("negative")
	}
	return fmt.Sprint(n), nil
}

func (numbers) Decode(key string) (n int, err error) {
	_, err = fmt.Sscan(key, &n)
	return n, err
}

func TestAnItemThatCannotBeEncodedIsReportedAndHoldsNothingUp(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, conn *grpc.ClientConn) {
		errs := make(chan error, 10)
		cfg := config[int](t, errs)
		cfg.Codec = numbers{}
		q := open(t, conn, nil, cfg)
		q.Add(-1)
		q.Add(7)
		if n, _ := q.Get(); n != 7 {
			t.Errorf("got %d, want 7", n)
		}
		q.Done(7)
		if err := <-errs; !errors.Is(err, clientgo.ErrKey) || !strings.Contains(err.Error(), "-1: negative") {
			t.Errorf("reported %v", err)
		}
		slashes := open(t, conn, nil, config[types.NamespacedName](t, errs))
		slashes.Add(types.NamespacedName{Namespace: "a/b", Name: "c"})
		if err := <-errs; !errors.Is(err, clientgo.ErrKey) || !strings.Contains(err.Error(), `"a/b"`) {
			t.Errorf("reported %v", err)
		}
	})
}

func TestAKeyThatCannotBeDecodedIsReportedAndKept(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, conn *grpc.ClientConn) {
		errs := make(chan error, 10)
		cfg := config[int](t, errs)
		cfg.Codec = numbers{}
		q := open(t, conn, workqueue.NewTypedItemExponentialFailureRateLimiter[int](time.Hour, time.Hour), cfg)
		q.Len() // the queue is there
		queue := client.NewQueue(conn, "test", "")
		for i, key := range []string{"seven", "007"} {
			if _, err := queue.Add(t.Context(), client.AddItem{Key: key}); err != nil {
				t.Fatal(err)
			}
			q.Add(i)
			if n, _ := q.Get(); n != i {
				t.Errorf("got %d, want %d", n, i)
			}
			q.Done(i)
			if err := <-errs; !errors.Is(err, clientgo.ErrKey) || !strings.Contains(err.Error(), key) {
				t.Errorf("reported %v, want %q", err, key)
			}
		}
		eventually(t, "both keys wait for the next attempt", func() bool {
			counts, err := queue.Len(t.Context())
			return err == nil && counts.Delayed == 2 && counts.Ready+counts.Processing == 0
		})
	})
}
