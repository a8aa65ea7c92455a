package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
)

// produceFor runs a producer until the test ends.
func produceFor(t *testing.T, conn grpc.ClientConnInterface, name string) *client.Producer {
	t.Helper()
	p, err := client.NewProducer(conn, client.ProducerConfig{Queue: name})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return p
}

func TestAProducerLosesAndDoublesNothingWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	addr := realQueue(t)
	q := client.NewQueue(dial(t, addr, client.DialConfig{}), "dev/produce", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{MaxLease: time.Hour, RateLimiter: client.Exponential(time.Hour, time.Hour)}); err != nil {
		t.Fatal(err)
	}
	cuts := &cutter{}
	p := produceFor(t, dial(t, addr, client.DialConfig{Dialer: cuts.dial}), "dev/produce")
	const callers, each = 50, 40
	var wg sync.WaitGroup
	var done atomic.Int64
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				key := fmt.Sprintf("ns/%d-%d", c, i)
				r, err := p.Do(t.Context(), client.Op{Key: key, Kind: client.OpAddRateLimited})
				if err != nil || r.Status != client.AddDelayed || r.ReadyAt.IsZero() {
					t.Errorf("%s: %v, %v", key, r, err)
					return
				}
				done.Add(1)
			}
		})
	}
	// After so much is done rather than after so much time, in which a slow machine may get nothing
	// done on a connection.
	broken := 0
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for next := int64(0); done.Load() < callers*each && !t.Failed(); <-tick.C {
		if n := done.Load(); n >= next {
			broken += cuts.cut()
			next = n + rand.Int64N(callers)
		}
	}
	wg.Wait()
	if broken < 3 {
		t.Errorf("only %d connections were there to cut", broken)
	}
	for c := range callers {
		for i := range each {
			key := fmt.Sprintf("ns/%d-%d", c, i)
			if n, err := p.NumRequeues(t.Context(), key); n != 1 || err != nil {
				t.Errorf("%s was counted %d times, want once: %v", key, n, err)
			}
		}
	}
	if n, err := q.Len(t.Context()); err != nil || n.Delayed != callers*each {
		t.Errorf("%v keys are delayed, want %d: %v", n, callers*each, err)
	}
}

// replica is one of several queue services on a Redis.
func replica(t *testing.T, url string) (addr string, stop func()) {
	t.Helper()
	tel, err := telemetry.Setup(t.Context(), telemetry.Config{Service: "queue", LogOutput: t.Output(), LogLevel: "warn"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := queue.New(queue.Config{RedisURL: url}, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("queue: %v", err)
			}
		})
	}
	t.Cleanup(stop)
	if addr, err = s.Addr(t.Context()); err != nil {
		t.Fatal(err)
	}
	return addr, stop
}

func TestStreamsMoveToAnotherReplicaWithoutALossWhenOneStops(t *testing.T) {
	t.Parallel()
	url := embeddedtest.Redis(t).URL()
	first, stop := replica(t, url)
	second, _ := replica(t, url)
	known := manual.NewBuilderWithScheme("replicas")
	known.InitialState(resolver.State{Addresses: []resolver.Address{{Addr: first}}})
	conn := dial(t, "replicas:///queue", client.DialConfig{Extra: []grpc.DialOption{grpc.WithResolvers(known)}})
	const name, keys = "dev/move", 500
	q := client.NewQueue(conn, name, "")
	for {
		_, err := q.Configure(t.Context(), client.QueueConfig{})
		if err == nil {
			break
		}
		select { // the service has not met its store yet
		case <-t.Context().Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	var lost atomic.Int64
	ran := make(chan string, 10*keys)
	w, err := client.NewWorker(conn, client.ReconcilerFunc(func(ctx context.Context, item client.Item) (client.Result, error) {
		select {
		case <-time.After(3 * time.Millisecond):
		case <-ctx.Done():
		}
		ran <- item.Key
		return client.Result{}, nil
	}), client.WorkerConfig{Queue: name, Concurrency: 4, OnLost: func(string) { lost.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	background(t, w)
	p := produceFor(t, conn, name)
	var wg sync.WaitGroup
	for c := range 5 {
		wg.Go(func() {
			for i := range keys / 5 {
				if _, err := p.Do(t.Context(), client.Op{Key: fmt.Sprintf("%d-%d", c, i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	seen := map[string]int{}
	for len(seen) < keys {
		if len(seen) == keys/4 {
			known.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: first}, {Addr: second}}})
			go stop()
		}
		select {
		case key := <-ran:
			seen[key]++
		case <-time.After(20 * time.Second):
			t.Fatalf("only %d of %d keys ran", len(seen), keys)
		}
	}
	wg.Wait()
	if lost.Load() > 0 {
		t.Errorf("%d leases were lost", lost.Load())
	}
	for key, n := range seen {
		if n > 1 {
			t.Errorf("%s ran %d times", key, n)
		}
	}
}

func TestAProducersBatchesDoWhatSingleCallsDo(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	const produced, called = "dev/produced", "dev/called"
	queues := queuev1.NewQueueServiceClient(conn)
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint("k", i))
	}
	for _, name := range []string{produced, called} {
		q := client.NewQueue(conn, name, "")
		if _, err := q.Configure(t.Context(), client.QueueConfig{RateLimiter: client.Exponential(time.Hour, 2*time.Hour)}); err != nil {
			t.Fatal(err)
		}
		// The first keys are held all the time.
		if _, err := q.Add(t.Context(), client.Keys(keys[:5]...)...); err != nil {
			t.Fatal(err)
		}
		if resp, err := queues.Get(t.Context(), &queuev1.GetRequest{Queue: name, SessionId: name, MaxItems: 5, LeaseDuration: durationpb.New(time.Hour)}); err != nil || len(resp.GetLeases()) != 5 {
			t.Fatalf("Get: %v, %v", resp, err)
		}
	}
	p, q := produceFor(t, conn, produced), client.NewQueue(conn, called, "")
	type answer struct {
		Status      client.AddStatus
		NumRequeues int64
		Delayed     bool
	}
	const steps = 3000
	got, want := make([]answer, steps), make([]answer, steps)
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a repeatable history
	for i := range steps {
		op := client.Op{Key: keys[rng.IntN(len(keys))], Kind: client.OpAdd, Priority: rng.IntN(8) - 4}
		switch rng.IntN(10) {
		case 0:
			op.Kind, op.Delay = client.OpAddAfter, time.Hour
		case 1:
			op.Kind = client.OpAddRateLimited
		case 2:
			op.Kind, op.Priority = client.OpForget, 0
		case 3:
			op.Kind, op.Priority = client.OpNumRequeues, 0
		}
		if err := p.Send(t.Context(), op, func(r client.OpResult, err error) {
			if err != nil {
				t.Error(err)
			}
			got[i] = answer{r.Status, r.NumRequeues, !r.ReadyAt.IsZero()}
		}); err != nil {
			t.Fatal(err)
		}
		item := client.AddItem{Key: op.Key, Priority: op.Priority}
		var added client.Added
		var err error
		switch op.Kind {
		case client.OpAdd:
			added, err = q.Add(t.Context(), item)
		case client.OpAddAfter:
			added, err = q.AddAfter(t.Context(), op.Delay, item)
		case client.OpAddRateLimited:
			added, err = q.AddRateLimited(t.Context(), item)
		case client.OpForget:
			err = q.Forget(t.Context(), op.Key)
		default:
			want[i].NumRequeues, err = q.NumRequeues(t.Context(), op.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(added.Results) > 0 {
			r := added.Results[0]
			want[i] = answer{r.Status, r.NumRequeues, !r.ReadyAt.IsZero()}
		}
		if rng.IntN(20) == 0 { // a batch is what was sent since
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("answers (-called +produced):\n%s", d)
	}
	counts := func(name string) client.Counts {
		n, err := client.NewQueue(conn, name, "").Len(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if d := cmp.Diff(counts(called), counts(produced)); d != "" {
		t.Errorf("counts (-called +produced):\n%s", d)
	}
	for _, key := range keys {
		a, b := inspected(t, conn, called, key), inspected(t, conn, produced, key)
		if a.GetState() != b.GetState() || a.GetPriority() != b.GetPriority() || a.GetNumRequeues() != b.GetNumRequeues() {
			t.Errorf("%s is %v when called and %v when produced", key, a, b)
		}
	}
}
