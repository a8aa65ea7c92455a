// Package queues is where client-go's tests of util/workqueue are compiled, on the queues of
// clientgo; see package upstream. What is here takes the place of the constructors that those tests
// call.
package queues

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// anyCodec makes keys of what the tests put in queues.
type anyCodec struct{}

func (anyCodec) Encode(item any) (string, error) {
	switch item := item.(type) {
	case nil:
		return "nil", nil
	case string:
		return "string " + item, nil
	case int:
		return "int " + strconv.Itoa(item), nil
	default:
		return "", fmt.Errorf("a %T", item)
	}
}

func (anyCodec) Decode(key string) (any, error) {
	kind, text, _ := strings.Cut(key, " ")
	switch kind {
	case "string":
		return text, nil
	case "int":
		return strconv.Atoi(text)
	default:
		return nil, fmt.Errorf("a key %q", key)
	}
}

// serve starts a queue service on the engine that the environment names.
func serve(t *testing.T) *grpc.ClientConn {
	t.Helper()
	var cfg queue.Config
	if os.Getenv("DELTAPLANE_ENGINE") == "redis" {
		cfg.RedisURL = embeddedtest.Redis(t).URL()
	}
	conn, err := client.Dial(queuetest.Address(t, cfg, "warn"), client.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func open(t *testing.T, conn *grpc.ClientConn, limiter workqueue.TypedRateLimiter[any]) *clientgo.Queue[any] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	q, err := clientgo.NewQueue(ctx, conn, limiter, clientgo.QueueConfig[any]{Codec: anyCodec{}, Config: keys.Config{
		Queue: "test", Grace: time.Second, OnError: func(op, key string, err error) { t.Errorf("%s %q: %v", op, key, err) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); q.Wait() })
	q.Len() // it is there
	return q
}

// remote is workqueue.New.
func remote(t *testing.T) workqueue.TypedRateLimitingInterface[any] {
	t.Helper()
	return open(t, serve(t), nil)
}

// remoteWithConfig is workqueue.NewWithConfig.
func remoteWithConfig(t *testing.T, _ workqueue.TypedQueueConfig[any]) workqueue.TypedRateLimitingInterface[any] {
	t.Helper()
	return remote(t)
}

// scale is how much longer delays are than the tests say: the store's clock is not moved by hand,
// and a busy machine must not outlast them.
const scale = 20

// delaying is a queue whose delays are as many times longer.
type delaying struct {
	workqueue.TypedRateLimitingInterface[any]
}

func (d delaying) AddAfter(item any, after time.Duration) {
	d.TypedRateLimitingInterface.AddAfter(item, scale*after)
}

func remoteDelaying(t *testing.T) workqueue.TypedDelayingInterface[any] {
	t.Helper()
	return delaying{remote(t)}
}

// sent reports that what a queue was called for is on its way.
func sent(workqueue.TypedDelayingInterface[any]) bool { return true }

// clock takes the place of client-go's fake clock: it waits.
type clock struct{}

func newClock(*testing.T) clock { return clock{} }

// Step waits. More than two seconds are the heartbeat of client-go's queue, which there is none of.
func (clock) Step(d time.Duration) { <-time.After(scale * min(d, 2*time.Second)) }

// longer is how much longer the delays of limiters are, so that whole units can be seen.
const longer = 80

// measured is a limiter of client-go as a queue keeps it.
type measured struct {
	t     *testing.T
	inner workqueue.TypedRateLimiter[any]
	queue *clientgo.Queue[any]
	adds  *client.Producer
}

func limitExponential(t *testing.T, base, longest time.Duration) *measured {
	t.Helper()
	return &measured{t: t, inner: workqueue.NewTypedItemExponentialFailureRateLimiter[any](longer*base, longer*longest)}
}

func limitFastSlow(t *testing.T, fast, slow time.Duration, attempts int) *measured {
	t.Helper()
	return &measured{t: t, inner: workqueue.NewTypedItemFastSlowRateLimiter[any](longer*fast, longer*slow, attempts)}
}

func limitMaxOf(t *testing.T, of ...*measured) *measured {
	t.Helper()
	inner := make([]workqueue.TypedRateLimiter[any], len(of))
	for i := range of {
		inner[i] = of[i].inner
	}
	return &measured{t: t, inner: clientgo.MaxOf(inner...)}
}

func limitMaxWait(l workqueue.TypedRateLimiter[any], longest time.Duration) workqueue.TypedRateLimiter[any] {
	return clientgo.MaxWait(l, longest)
}

// open gives the limiter to a queue of its own.
func (m *measured) open() {
	if m.queue != nil {
		return
	}
	conn := serve(m.t)
	m.queue = open(m.t, conn, m.inner)
	var err error
	if m.adds, err = client.NewProducer(conn, client.ProducerConfig{Queue: "test"}); err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = m.adds.Run(ctx) }()
	m.t.Cleanup(func() { cancel(); <-done })
}

// When is how long the queue has an item wait. The item is delayed to a day far away before, by the
// same clock and in all likelihood in the same transaction; the earlier of two due times wins.
func (m *measured) When(item any) time.Duration {
	m.open()
	const far = 87_000 * time.Hour
	key, err := anyCodec{}.Encode(item)
	if err != nil {
		m.t.Fatal(err)
	}
	results := make(chan client.OpResult, 2)
	for _, op := range []client.Op{{Key: key, Kind: client.OpAddAfter, Delay: far, Last: true}, {Key: key, Kind: client.OpAddRateLimited}} {
		err := m.adds.Send(m.t.Context(), op, func(r client.OpResult, err error) {
			if err != nil {
				m.t.Error(err)
			}
			results <- r
		})
		if err != nil {
			m.t.Fatal(err)
		}
	}
	now := (<-results).ReadyAt.Add(-far)
	delay := (<-results).ReadyAt.Sub(now)
	return time.Millisecond * time.Duration(math.Round(float64(delay)/float64(longer*time.Millisecond)))
}

func (m *measured) NumRequeues(item any) int { m.open(); return m.queue.NumRequeues(item) }
func (m *measured) Forget(item any)          { m.open(); m.queue.Forget(item); m.queue.Len() }

// limited is client-go's rate limiting queue with its view of what waits.
type limited struct {
	*measured
	waitingForAddCh chan waiting
}

type waiting struct{ readyAt time.Time }

func remoteLimited(limiter *measured) *limited { return &limited{limiter, make(chan waiting, 1)} }

func (l *limited) AddRateLimited(item any) {
	l.waitingForAddCh <- waiting{l.Now().Add(l.When(item))}
}

// Now is a time that stands still.
func (l *limited) Now() time.Time { return time.Unix(0, 0) }

// parallelizeUntil and withChunkSize are workqueue.ParallelizeUntil.
var (
	parallelizeUntil = keys.ParallelizeUntil
	withChunkSize    = keys.WithChunkSize
)
