package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/client"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// realQueue runs a queue service on the memory engine and returns its address.
func realQueue(t *testing.T) string {
	t.Helper()
	return queuetest.Address(t, queue.Config{}, "warn")
}

func dial(t *testing.T, addr string, cfg client.DialConfig) *grpc.ClientConn {
	t.Helper()
	conn, err := client.Dial(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// background runs a worker until the test ends, or stop is called.
func background(t *testing.T, w *client.Worker) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

func TestTheSDKOnARealQueue(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	q, ctx := client.NewQueue(conn, "dev/sdk", "s"), t.Context()

	if _, err := q.Add(ctx, client.Keys("a")...); !errors.Is(err, client.ErrQueueNotFound) {
		t.Errorf("Add before Configure: %v, want ErrQueueNotFound", err)
	}
	generation, err := q.Configure(ctx, client.QueueConfig{})
	if err != nil || generation == "" {
		t.Fatalf("Configure: %q, %v", generation, err)
	}
	added, err := q.Add(ctx, client.Keys("a", "b", "a")...)
	if err != nil || len(added.Results) != 3 || added.Generation != generation {
		t.Fatalf("Add: %v, %v", added, err)
	}
	if s := added.Results[2].Status; s != client.AddAlreadyQueued {
		t.Errorf("the second add of a key: %v", s)
	}
	if g, err := q.Generation(ctx); err != nil || g != generation {
		t.Errorf("Generation: %q, %v; want %q", g, err, generation)
	}
	if n, err := q.Len(ctx); err != nil || n.Ready != 2 {
		t.Errorf("Len: %v, %v; want 2 ready", n, err)
	}
	if _, err := q.AddRateLimited(ctx, client.AddItem{Key: "c"}); err != nil {
		t.Error(err)
	}
	if n, err := q.NumRequeues(ctx, "c"); err != nil || n != 1 {
		t.Errorf("NumRequeues: %d, %v; want 1", n, err)
	}
	if err := q.Forget(ctx, "c"); err != nil {
		t.Error(err)
	}
	if n, err := q.NumRequeues(ctx, "c"); err != nil || n != 0 {
		t.Errorf("NumRequeues after Forget: %d, %v; want 0", n, err)
	}
	if _, err := q.AddAfter(ctx, -time.Second, client.Keys("d")...); err == nil {
		t.Error("a negative delay is accepted")
	} else if e, ok := errors.AsType[*client.Error](err); !ok || len(e.Fields) == 0 {
		t.Errorf("a negative delay: %v names no field", err)
	}
	if item := inspected(t, conn, "dev/sdk", "a"); item.GetState() != queuev1.State_STATE_READY {
		t.Errorf("Inspect: %v", item)
	}
	if err := q.SaveState(ctx, "a", 1, nil); !errors.Is(err, client.ErrLeaseLost) {
		t.Errorf("SaveState without a lease: %v, want ErrLeaseLost", err)
	}
}

// inspected is a key as an operator sees it.
func inspected(t *testing.T, conn grpc.ClientConnInterface, queue, key string) *queuev1.Item {
	t.Helper()
	resp, err := queuev1.NewQueueAdminServiceClient(conn).Inspect(t.Context(), &queuev1.InspectRequest{Queue: queue, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetItem()
}

func TestAnItemCarriesWhatTheLastOneLeft(t *testing.T) {
	t.Parallel()
	conn := dial(t, realQueue(t), client.DialConfig{})
	q := client.NewQueue(conn, "dev/carry", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	const pods = "dev/pods.v1"
	items := make(chan client.Item, 10)
	w, err := client.NewWorker(conn, client.ReconcilerFunc(func(ctx context.Context, item client.Item) (client.Result, error) {
		items <- item
		if len(item.State) > 0 {
			return client.Result{}, nil
		}
		if err := q.SaveState(ctx, item.Key, item.Token, []byte("remember")); err != nil {
			return client.Result{}, err
		}
		if err := q.Expect(ctx, item.Key, item.Token, client.Expectations{OwnerUID: "u", Creations: []string{"p1", "p2"}}); err != nil {
			return client.Result{}, err
		}
		return client.Result{
			ReadAt: client.Reading{pods: {Revision: client.Revision{Epoch: 1, RV: "10"}}}, Wrote: client.Barrier{pods: {Epoch: 1, RV: "12"}},
		}, errors.New("once more")
	}), client.WorkerConfig{Queue: "dev/carry"})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, w)
	if _, err := q.Add(t.Context(), client.AddItem{Key: "k", Priority: 2, Barrier: client.Barrier{pods: {Epoch: 1, RV: "9"}}}); err != nil {
		t.Fatal(err)
	}
	first, second := <-items, <-items
	stop()
	if first.AtLeast(pods).RV != "9" || first.Priority != 2 || first.Attempt != 1 || first.Expectations != nil {
		t.Errorf("first: %+v", first)
	}
	want := client.Item{
		Queue: "dev/carry", Key: "k", Attempt: 1, NumRequeues: 1, Priority: 2, State: []byte("remember"),
		Barrier:      client.Barrier{pods: {Epoch: 1, RV: "12"}},
		Expectations: &client.Expectations{OwnerUID: "u", Creations: []string{"p1", "p2"}, Token: first.Token},
	}
	ignore := cmp.Options{
		cmpopts.IgnoreUnexported(client.Item{}), cmpopts.IgnoreFields(client.Item{}, "Token", "AddedAt", "ReadyAt"),
		cmpopts.IgnoreFields(client.Expectations{}, "StoredAt"), cmpopts.EquateEmpty(),
	}
	if diff := cmp.Diff(want, second, ignore); diff != "" || second.Token <= first.Token {
		t.Errorf("second, with token %d after %d (-want +got)\n%s", second.Token, first.Token, diff)
	}
}

func TestAReconcileGoesOnWithItsNewestCauseAndIsLinkedToTheOthers(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	conn := dial(t, realQueue(t), client.DialConfig{Tracer: tracer})
	q := client.NewQueue(conn, "dev/trace", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	var causes []string
	for _, name := range []string{"delta 1", "delta 2"} {
		ctx, span := tracer.Tracer("t").Start(t.Context(), name)
		if _, err := q.Add(ctx, client.AddItem{Key: "k", Trace: client.TraceOf(ctx)}); err != nil {
			t.Fatal(err)
		}
		causes = append(causes, span.SpanContext().SpanID().String())
		span.End()
	}
	ran := make(chan string, 1)
	w, err := client.NewWorker(conn, client.ReconcilerFunc(func(ctx context.Context, _ client.Item) (client.Result, error) {
		ran <- client.TraceOf(ctx)
		return client.Result{}, nil
	}), client.WorkerConfig{Queue: "dev/trace", Tracer: tracer})
	if err != nil {
		t.Fatal(err)
	}
	stop := background(t, w)
	if <-ran == "" {
		t.Error("the reconcile's context has no span")
	}
	stop()
	by := map[string]tracetest.SpanStub{}
	for _, span := range spans.GetSpans() {
		by[span.Name] = span
	}
	run, wait := by["reconcile"], by["queue"]
	if run.Parent.SpanID() != wait.SpanContext.SpanID() || wait.Parent.SpanID().String() != causes[1] {
		t.Errorf("the reconcile is below %v, which is below %v, want %s", run.Parent.SpanID(), wait.Parent.SpanID(), causes[1])
	}
	if len(run.Links) != 1 || run.Links[0].SpanContext.SpanID().String() != causes[0] {
		t.Errorf("links %v, want one to %s", run.Links, causes[0])
	}
}

// cutter is a TCP dialler whose connections can all be cut.
type cutter struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) dial(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutter) cut() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.conns)
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
	return n
}

func TestNoKeyIsLostOrRunTwiceAtATimeWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	addr := realQueue(t)
	q := client.NewQueue(dial(t, addr, client.DialConfig{}), "dev/chaos", "")
	if _, err := q.Configure(t.Context(), client.QueueConfig{}); err != nil {
		t.Fatal(err)
	}
	const keys, rounds = 200, 30
	type state struct {
		running atomic.Int32
		wanted  atomic.Int64 // the last change that was acknowledged
		seen    atomic.Int64 // the last change a finished run saw
		value   atomic.Int64
	}
	var all [keys]state
	rec := client.ReconcilerFunc(func(ctx context.Context, item client.Item) (client.Result, error) {
		var n int
		if _, err := fmt.Sscanf(item.Key, "ns/%d", &n); err != nil {
			return client.Result{}, client.Terminal(err)
		}
		s := &all[n]
		if s.running.Add(1) > 1 && item.Alive() == nil {
			t.Errorf("%s is run twice at a time", item.Key)
		}
		defer s.running.Add(-1)
		v := s.value.Load()
		select {
		case <-time.After(rand.N(3 * time.Millisecond)):
		case <-ctx.Done():
			return client.Result{}, ctx.Err()
		}
		for {
			old := s.seen.Load()
			if old >= v || s.seen.CompareAndSwap(old, v) {
				return client.Result{}, nil
			}
		}
	})
	var cuts []*cutter
	for range 2 {
		c := &cutter{}
		cuts = append(cuts, c)
		w, err := client.NewWorker(dial(t, addr, client.DialConfig{Dialer: c.dial}), rec, client.WorkerConfig{Queue: "dev/chaos", Concurrency: 16, Prefetch: 4, Lease: 2 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		background(t, w)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	produced := &cutter{}
	p := produceFor(t, dial(t, addr, client.DialConfig{Dialer: produced.dial}), "dev/chaos")
	broken := 0
	for round := range rounds {
		var items []client.AddItem
		for i := range keys {
			all[i].value.Store(int64(round + 1))
			items = append(items, client.AddItem{Key: fmt.Sprintf("ns/%d", i)})
		}
		if round%3 == 0 {
			time.AfterFunc(time.Millisecond, func() { produced.cut() })
		}
		if _, err := p.Add(t.Context(), items...); err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			all[i].wanted.Store(int64(round + 1))
		}
		<-tick.C // some are in hand by now
		broken += cuts[round%2].cut()
	}
	if broken < rounds/2 {
		t.Errorf("only %d connections were there to cut", broken)
	}
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; i < keys; {
		if all[i].seen.Load() >= all[i].wanted.Load() {
			i++
			continue
		}
		if time.Now().After(deadline) {
			t.Fatalf("ns/%d: an acknowledged add was lost: saw change %d of %d", i, all[i].seen.Load(), all[i].wanted.Load())
		}
		<-tick.C
	}
}
