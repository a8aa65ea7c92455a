package queue_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestADelayedKeyIsHandedOutWhenDueAndNotBefore(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		ctx := t.Context()
		began := time.Now()
		const delay = 150 * time.Millisecond
		if _, err := r.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k"}}, Delay: durationpb.New(delay)}); err != nil {
			t.Fatal(err)
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(30 * time.Second)})
		if err != nil || len(res.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", res, err)
		}
		if took := time.Since(began); took < delay || took > 20*time.Second {
			t.Errorf("handed out after %v, want %v", took, delay)
		}
	})
}

func TestALeaseThatExpiresGoesToAWaitingWorker(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		r.AddKeys(t, "k")
		ctx := t.Context()
		first, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "a", LeaseDuration: durationpb.New(time.Second)})
		if err != nil || len(first.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", first, err)
		}
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "b", Wait: durationpb.New(30 * time.Second)})
		if err != nil || len(res.GetLeases()) != 1 || res.GetLeases()[0].GetAttempt() != 2 {
			t.Fatalf("Get = %v, %v", res, err)
		}
	})
}

func TestAGetThatIsCancelledLosesNoKey(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		var wg sync.WaitGroup
		var got sync.Map
		for i := range 60 { // callers that leave while keys arrive
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*time.Millisecond/2)
				defer cancel()
				res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(time.Minute)})
				if err == nil {
					for _, l := range res.GetLeases() {
						got.Store(l.GetKey(), true)
					}
				}
			})
			r.AddKeys(t, "k"+strconv.Itoa(i))
		}
		wg.Wait()
		for { // what was leased to nobody is given back or was never leased
			res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "rest", MaxItems: 100, Wait: durationpb.New(2 * time.Second), LeaseDuration: durationpb.New(time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range res.GetLeases() {
				got.Store(l.GetKey(), true)
			}
			n := 0
			got.Range(func(any, any) bool { n++; return true })
			if n == 60 {
				return
			}
			if len(res.GetLeases()) == 0 {
				// An answer the transport dropped keeps its lease until it expires.
				c := r.Counts(t)
				if c.GetReady() != 0 || int(c.GetProcessing()) < 60 {
					t.Fatalf("%d of 60 keys came; counts %v", n, c)
				}
				return
			}
		}
	})
}

func TestAWaitingGetDoesNotHoldUpTheStop(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	got := make(chan error, 1)
	go func() {
		_, err := r.Get(context.Background(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(time.Minute)})
		got <- err
	}()
	for waits := false; !waits; {
		if ss := r.Svc.Sessions().Find("w"); ss != nil {
			waits = ss.Waits()
		}
	}
	began := time.Now()
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if err := queuetest.Wait(t, got); rpc.Code(err) != codes.Unavailable {
		t.Errorf("Get = %v, want UNAVAILABLE", err)
	}
}

// TestNoKeyIsEverHeldTwice has many workers fight for few keys.
func TestNoKeyIsEverHeldTwice(t *testing.T) {
	t.Parallel()
	queuetest.Partitioned(t, func(t *testing.T, r *queuetest.Rig) {
		neverHeldTwice(t, r)
	})
	t.Run("two servers on one redis", func(t *testing.T) {
		t.Parallel()
		srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Stop)
		one := func() *queuetest.Rig {
			e, err := redis.New(redis.Config{URL: srv.URL()})
			if err != nil {
				t.Fatal(err)
			}
			return queuetest.Serve(t, queue.Config{FallbackEvery: time.Hour}, e)
		}
		a, b := one(), one()
		a.Configure(t)
		neverHeldTwice(t, a, b)
	})
}

func neverHeldTwice(t *testing.T, servers ...*queuetest.Rig) {
	t.Helper()
	const keys, rounds = 7, 150
	var holders [keys]atomic.Int64
	var runs, tokens [keys]atomic.Int64
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hold := func(l *queuev1.Lease) {
		k, _ := strconv.Atoi(l.GetKey())
		if n := holders[k].Add(1); n != 1 {
			t.Errorf("key %d has %d holders", k, n)
		}
		if was := tokens[k].Swap(int64(l.GetToken())); was >= int64(l.GetToken()) {
			t.Errorf("key %d: token %d after %d", k, l.GetToken(), was)
		}
		runs[k].Add(1)
		runtime.Gosched()
		holders[k].Add(-1)
	}
	var workers, producers sync.WaitGroup
	for w := range 8 {
		r := servers[w%len(servers)]
		workers.Go(func() {
			for ctx.Err() == nil {
				res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: fmt.Sprint("u", w), Wait: durationpb.New(time.Minute), MaxItems: 3})
				if err != nil {
					continue
				}
				for _, l := range res.GetLeases() {
					hold(l)
					_, _ = r.Settle(context.Background(), &queuev1.SettleRequest{SessionId: fmt.Sprint("u", w), Settlements: []*queuev1.Settlement{{
						Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
					}}})
				}
			}
		})
	}
	for p := range 4 {
		r := servers[p%len(servers)]
		producers.Go(func() {
			for i := range rounds {
				r.AddKeys(t, strconv.Itoa(i%keys), strconv.Itoa((i+3)%keys))
			}
		})
	}
	producers.Wait()
	r := servers[0]
	for c := r.Counts(t); c.GetReady()+c.GetProcessing()+c.GetDirty() > 0; c = r.Counts(t) {
	}
	cancel()
	workers.Wait()
	for k := range runs {
		if n := runs[k].Load(); n < 1 || n > 4*2*rounds {
			t.Errorf("key %d ran %d times", k, n)
		}
	}
}

func TestTwoServersShareOneRedis(t *testing.T) {
	t.Parallel()
	srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	one := func() *queuetest.Rig {
		e, err := redis.New(redis.Config{URL: srv.URL()})
		if err != nil {
			t.Fatal(err)
		}
		return queuetest.Serve(t, queue.Config{FallbackEvery: time.Hour, Queues: []queue.QueueConfig{{Name: queuetest.Q}}}, e)
	}
	a, b := one(), one()
	ctx := t.Context()
	w := b.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(10)
	got, err := b.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "x"}) // its transaction says that nothing is ready
	if err != nil || len(got.GetLeases()) != 0 {
		t.Fatalf("Get = %v, %v", got, err)
	}
	a.AddKeys(t, "now")
	if l := queuetest.Wait(t, w.Leases); l.GetKey() != "now" {
		t.Errorf("leased %v", l)
	}
	// A key whose delay ends on one server wakes the other's worker.
	if _, err := a.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "later"}}, Delay: durationpb.New(50 * time.Millisecond)}); err != nil {
		t.Fatal(err)
	}
	l := queuetest.Wait(t, w.Leases)
	if l.GetKey() != "later" {
		t.Errorf("leased %v", l)
	}
	// The lease is the store's: another server settles and extends it, and a
	// session moves there.
	ext, err := a.Extend(ctx, &queuev1.ExtendRequest{SessionId: "w", Leases: []*queuev1.LeaseRef{queuetest.Ref(l)}})
	if err != nil || ext.GetExtended() != 1 {
		t.Errorf("Extend elsewhere = %v, %v", ext, err)
	}
	w2 := a.OpenWork(t, &queuev1.Hello{SessionId: "w", Resume: []*queuev1.LeaseRef{queuetest.Ref(l)}})
	if len(w2.Welcome.GetKept()) != 1 {
		t.Errorf("welcome elsewhere: %v", w2.Welcome)
	}
	// What is left of the session on the server it came from ends late, and
	// does not end the lease.
	w.Cancel()
	<-w.End
	for began := time.Now(); time.Since(began) < 300*time.Millisecond; {
		it, err := b.Inspect(ctx, &queuev1.InspectRequest{Queue: queuetest.Q, Key: l.GetKey()})
		if err != nil {
			t.Fatal(err)
		}
		if left := time.Until(it.GetItem().GetDeadline().AsTime()); left < 10*time.Second {
			t.Fatalf("the lease ends in %v: the old stream has shortened it", left)
		}
	}
	if s := w2.Settle(queuetest.Done, l)[0].GetStatus(); s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
		t.Errorf("settle elsewhere: %v", s)
	}
}

func TestAQueueWhoseDataWasLostIsMadeAgain(t *testing.T) {
	t.Parallel()
	srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(srv.Stop)
	e, err := redis.New(redis.Config{URL: srv.URL()})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{}, e)
	if _, err := r.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q, LeaseDuration: durationpb.New(time.Second)}}); err != nil {
		t.Fatal(err)
	}
	add := func() string {
		res, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k"}}})
		if err != nil || res.GetResults()[0].GetStatus() != queuev1.AddStatus_ADD_STATUS_QUEUED {
			t.Fatalf("Add = %v, %v", res, err)
		}
		return res.GetGeneration()
	}
	was := add()
	c := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
	defer c.Close()
	if err := c.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if now := add(); now == was {
		t.Error("the generation did not change although every key was lost")
	}
	// After one lease time keys are handed out again.
	res, err := r.Get(t.Context(), &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(20 * time.Second)})
	if err != nil || len(res.GetLeases()) != 1 {
		t.Errorf("Get = %v, %v", res, err)
	}
}

func TestAStreamsLeaseMayBeSettledByACall(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	r.AddKeys(t, "a", "b")
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	l := queuetest.Wait(t, w.Leases)
	if _, err := r.Settle(t.Context(), &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuetest.Done}}}); err != nil {
		t.Fatal(err)
	}
	if l := queuetest.Wait(t, w.Leases); l.GetKey() != "b" {
		t.Errorf("leased %v, want b: the credit came back", l)
	}
}

func TestAServiceStartedBeforeItsStoreBecomesReady(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "redis")
	first, err := embedded.StartRedis(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	addr := first.Addr()
	first.Stop()
	e, err := redis.New(redis.Config{URL: "redis://" + addr, GiveUp: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	r := queuetest.Serve(t, queue.Config{Queues: []queue.QueueConfig{{Name: queuetest.Q}}}, e)
	_, err = r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k"}}})
	if rpc.Code(err) != codes.Unavailable || rpc.Reason(err) != "STORE_UNAVAILABLE" || rpc.RetryDelay(err) == 0 {
		t.Errorf("Add without a store = %v, want STORE_UNAVAILABLE with RetryInfo", err)
	}
	conn, err := rpc.Dial(r.Addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	health := func() healthpb.HealthCheckResponse_ServingStatus {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: queuev1.QueueService_ServiceDesc.ServiceName})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetStatus()
	}
	if got := health(); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health %v without a store", got)
	}
	port, _ := strconv.Atoi(addr[strings.LastIndex(addr, ":")+1:])
	srv, err := embedded.StartRedisWith(t.Context(), embedded.RedisConfig{Dir: dir, Port: port})
	if err != nil {
		t.Skip("the port was taken meanwhile: ", err)
	}
	t.Cleanup(srv.Stop)
	for began := time.Now(); health() != healthpb.HealthCheckResponse_SERVING; {
		if time.Since(began) > 20*time.Second {
			t.Fatal("not serving 20 s after the store came up")
		}
	}
	r.AddKeys(t, "k")
}

func TestAMemoryQueueOutlivesItsService(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func() *queuetest.Rig {
		e, err := memory.New(memory.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return queuetest.Serve(t, queue.Config{Queues: []queue.QueueConfig{{Name: queuetest.Q, Config: workqueue.Config{LeaseFor: 10 * time.Second}}}}, e)
	}
	r := open()
	r.Engine.Check(t.Context())
	r.WaitQueue(t)
	r.AddKeys(t, queuetest.KeysN(1000)...)
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	r = open()
	if n := r.Counts(t).GetReady(); n != 1000 {
		t.Errorf("%d keys after the restart, want 1000", n)
	}
}

func TestMetricsHaveClientGosNamesAndMeaning(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	ctx := t.Context()
	r.AddKeys(t, "a", "a", "b")
	r.Advance(time.Second)
	res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w"})
	if err != nil || len(res.GetLeases()) != 1 {
		t.Fatalf("Get = %v, %v", res, err)
	}
	r.AddKeys(t, "a") // dirty: counted as an add and in the depth
	want(t, r.Tel.Registry, map[string]float64{
		"workqueue_adds_total": 3, "workqueue_depth": 2, "workqueue_retries_total": 0, "workqueue_queue_duration_seconds": 1,
	})
	families, err := r.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, f := range families {
		found[f.GetName()] = true
	}
	for _, name := range []string{"workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"} {
		if !found[name] {
			t.Errorf("%s is missing while a key is held", name)
		}
	}
	l := res.GetLeases()[0]
	if _, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
		Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_RETRY_RATE_LIMITED,
	}}}); err != nil {
		t.Fatal(err)
	}
	want(t, r.Tel.Registry, map[string]float64{
		"workqueue_adds_total": 3, "workqueue_retries_total": 1, "workqueue_work_duration_seconds": 1, "deltaplane_queue_settlements_total": 1,
	})
}

// want compares sums over labels: values of counters and gauges, counts of histograms.
func want(t *testing.T, g prometheus.Gatherer, want map[string]float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, v := range want {
		if got[name] != v {
			t.Errorf("%s = %v, want %v", name, got[name], v)
		}
	}
}

func TestTheTraceOfAnAddReachesTheWorker(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k", Traceparent: parent}}}); err != nil {
		t.Fatal(err)
	}
	if got := queuetest.Wait(t, w.Leases).GetTraceparents(); len(got) != 1 || got[0] != parent {
		t.Errorf("traceparents %v, want %q", got, parent)
	}
}

func TestConfigFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	err := queue.Config{
		Queues:   []queue.QueueConfig{{Name: "a b"}, {Name: "x"}, {Name: "x", Config: workqueue.Config{LeaseFor: 1}}},
		RedisURL: "redis://x", DataDir: "y", MaxTransaction: -1, MaxSessions: -1, CloseGrace: -1,
	}.Validate()
	for _, part := range []string{"a b", "named twice", "lease_duration", "exclude one another", "max transaction", "max sessions", "close grace"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not mention %q", err, part)
		}
	}
	if err := (queue.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if _, err := queue.New(queue.Config{RedisURL: "http://x"}, queuetest.Quiet()); err == nil {
		t.Error("New took an URL of another scheme")
	}
}
