package queue_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// deaf listens to nobody.
type deaf struct{ net.Listener }

func (deaf) Accept() (net.Conn, error) { return nil, net.ErrClosed }

func (deaf) Close() error { return nil }

func (deaf) Addr() net.Addr { return &net.TCPAddr{} }

// shell is a service without its listeners, for fake time.
func shell(t *testing.T, e engine.Engine, log ...*slog.Logger) (queue.Calls, func() map[string]*dto.Metric) {
	t.Helper()
	tel := queuetest.Quiet()
	if len(log) > 0 {
		tel.Log = log[0]
	}
	svc, err := queue.NewOn(queue.Config{}, e, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	svc.Queues().Start(ctx)
	t.Cleanup(func() {
		svc.Queues().Stop(cancel)
		_ = svc.RPC().Serve(context.Background(), deaf{}) // ends the server's own goroutines
		_ = e.Close()
	})
	return svc.Server(), func() map[string]*dto.Metric {
		families, err := tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]*dto.Metric{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := []string{f.GetName()}
				for _, l := range m.GetLabel() {
					if l.GetName() != "name" {
						key = append(key, l.GetValue())
					}
				}
				all[strings.Join(key, " ")] = m
			}
		}
		return all
	}
}

func TestMetricsAreThoseOfUpstreamsTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // TestMetrics of client-go's metrics_test.go
		e, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s, gather := shell(t, e)
		ctx := t.Context()
		must := func(_ any, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(s.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}}))
		says := func(step string, want map[string]float64) {
			t.Helper()
			all := gather()
			for name, v := range want {
				var got float64
				switch m := all["workqueue_"+name]; {
				case m == nil:
					t.Errorf("%s: %s is missing", step, name)
					continue
				case m.GetHistogram() != nil:
					got = m.GetHistogram().GetSampleSum()
				case m.GetCounter() != nil:
					got = m.GetCounter().GetValue()
				default:
					got = m.GetGauge().GetValue()
				}
				if diff := got - v; diff > 1e-9 || diff < -1e-9 {
					t.Errorf("%s: %s = %v, want %v", step, name, got, v)
				}
			}
		}
		samples := func(name string) uint64 { return gather()["workqueue_"+name].GetHistogram().GetSampleCount() }
		add := func() {
			t.Helper()
			must(s.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "foo"}}}))
		}
		get := func() *queuev1.Lease {
			t.Helper()
			res, err := s.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w"})
			if err != nil || len(res.GetLeases()) != 1 {
				t.Fatalf("Get = %v, %v", res, err)
			}
			return res.GetLeases()[0]
		}
		finish := func(l *queuev1.Lease) {
			t.Helper()
			must(s.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{Queue: queuetest.Q, Key: "foo", Token: l.GetToken(), Outcome: queuetest.Done}}}))
		}

		says("before", map[string]float64{"adds_total": 0, "depth": 0, "unfinished_work_seconds": 0, "longest_running_processor_seconds": 0})
		add()
		says("added", map[string]float64{"adds_total": 1, "depth": 1})
		time.Sleep(50 * time.Microsecond)
		l := get()
		says("got", map[string]float64{"depth": 0, "queue_duration_seconds": 5e-05})
		for range 5 { // re-added while processing
			add()
		}
		says("added again", map[string]float64{"adds_total": 2, "depth": 1})
		time.Sleep(25 * time.Microsecond)
		finish(l)
		says("done", map[string]float64{"work_duration_seconds": 2.5e-05, "depth": 1})
		l = get()
		says("got again", map[string]float64{"depth": 0, "queue_duration_seconds": 5e-05 + 2.5e-05})
		if n := samples("queue_duration_seconds"); n != 2 {
			t.Errorf("%d latencies, want 2", n)
		}
		time.Sleep(time.Millisecond)
		says("held for 1 ms", map[string]float64{"unfinished_work_seconds": .001, "longest_running_processor_seconds": .001})
		finish(l)
		says("done again", map[string]float64{
			"work_duration_seconds": 2.5e-05 + .001, "unfinished_work_seconds": 0, "longest_running_processor_seconds": 0, "retries_total": 0,
		})

		after := func(d time.Duration) {
			t.Helper()
			must(s.AddAfter(ctx, &queuev1.AddAfterRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "foo"}}, Delay: queuetest.Seconds(d.Seconds())}))
		}
		after(0) // client-go counts every AddAfter, also one that adds now
		says("AddAfter(0)", map[string]float64{"retries_total": 1, "adds_total": 3})
		after(time.Hour)
		must(s.AddRateLimited(ctx, &queuev1.AddRateLimitedRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "bar"}}}))
		says("AddAfter(1h), AddRateLimited", map[string]float64{"retries_total": 3})
	})
}

func TestADelayBelowAMicrosecondIsADelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, err := memory.New(memory.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s, gather := shell(t, e)
		if _, err := s.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: queuetest.Q}}); err != nil {
			t.Fatal(err)
		}
		for i, d := range []time.Duration{0, 1, 999, 1500} {
			res, err := s.AddAfter(t.Context(), &queuev1.AddAfterRequest{Queue: queuetest.Q, Delay: durationpb.New(d), Items: []*queuev1.AddItem{{Key: d.String()}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := res.GetResults()[0]; d > 0 && got.GetReadyAt().AsTime().Before(time.Now().Add(d)) {
				t.Errorf("after %v: ready %v early", d, time.Until(got.GetReadyAt().AsTime())+d)
			}
			if got := gather()["workqueue_retries_total"].GetCounter().GetValue(); got != float64(i+1) {
				t.Errorf("after %v: %v retries, want %d: every AddAfter is one", d, got, i+1)
			}
		}
	})
}

func TestAnIdleReplicaTellsTheDepthOfTheStore(t *testing.T) {
	t.Parallel()
	a, b := queuetest.Two(t)
	a.Configure(t)
	b.AddKeys(t, "first") // b knows the queue
	a.AddKeys(t, "second", "third")
	depth := func(r *queuetest.Rig) float64 {
		families, err := r.Tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "workqueue_depth" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return -1
	}
	used, _ := b.Svc.Queues().Known(queuetest.Q)
	l := used.Metrics
	l.Invalidate() // it had its last transaction a while ago
	transactions := b.Transactions(t)
	if got := depth(b); got != 3 {
		t.Errorf("the idle replica's depth is %v, want 3", got)
	}
	seen := l.LastSeen()
	depth(b)
	if again := l.LastSeen(); again != seen || b.Transactions(t) != transactions {
		t.Error("a scrape right after looked at the store again, or took a transaction")
	}
}

func TestLostRedeliveredAndDeadAreCounted(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Config(t, &queuev1.QueueConfig{MaxRetries: 0})
	ctx := t.Context()
	take := func(session string) *queuev1.Settlement {
		t.Helper()
		res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: session, Wait: queuetest.Seconds(5), LeaseDuration: queuetest.Seconds(1)})
		if err != nil || len(res.GetLeases()) != 1 {
			t.Fatalf("Get = %v, %v", res, err)
		}
		return &queuev1.Settlement{Queue: queuetest.Q, Key: "k", Token: res.GetLeases()[0].GetToken(), Outcome: queuev1.Outcome_OUTCOME_DEAD}
	}
	r.AddKeys(t, "k")
	late := take("a")
	r.Advance(2 * time.Second)
	now := take("b")
	for _, st := range []*queuev1.Settlement{late, now} {
		if _, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "x", Settlements: []*queuev1.Settlement{st}}); err != nil {
			t.Fatal(err)
		}
	}
	want(t, r.Tel.Registry, map[string]float64{
		"deltaplane_queue_leases_expired_total": 1, "deltaplane_queue_leases_redelivered_total": 1, "deltaplane_queue_settlements_total": 2,
		"deltaplane_queue_buried_total": 1, "deltaplane_queue_dead": 1, "deltaplane_queue_leases": 0,
	})
}

func TestOpenStreamsAreCountedByKind(t *testing.T) {
	t.Parallel()
	r := queuetest.Start(t, "memory", queue.Config{})
	r.Configure(t)
	open := func() (work, produce float64) {
		t.Helper()
		families, err := r.Tel.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "deltaplane_queue_streams" {
				for _, m := range f.GetMetric() {
					if m.GetLabel()[0].GetValue() == "work" {
						work = m.GetGauge().GetValue()
					} else {
						produce = m.GetGauge().GetValue()
					}
				}
			}
		}
		return work, produce
	}
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	p, err := r.Produce(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Hello{Hello: &queuev1.ProduceHello{SessionId: "p"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Recv(); err != nil {
		t.Fatal(err)
	}
	batch := &queuev1.ProduceBatch{RequestId: 1, Queue: queuetest.Q, Ops: []*queuev1.ProduceOp{
		{Key: "a", Kind: queuev1.ProduceKind_PRODUCE_KIND_ADD_AFTER}, {Key: "b"},
	}}
	if err := p.Send(&queuev1.ProduceRequest{Kind: &queuev1.ProduceRequest_Batch{Batch: batch}}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Recv(); err != nil { // so it is open
		t.Fatal(err)
	}
	if work, produce := open(); work != 1 || produce != 1 {
		t.Errorf("%v Work and %v Produce streams, want one of each", work, produce)
	}
	want(t, r.Tel.Registry, map[string]float64{"workqueue_retries_total": 1, "workqueue_adds_total": 2}) // AddAfter without a delay is a retry
	res, err := r.Inspect(t.Context(), &queuev1.InspectRequest{Queue: queuetest.Q, Key: "a"})
	if err != nil || queuetest.Tell(res.GetHistory()) != "added p" {
		t.Errorf("history %q, %v, want the producer's add", queuetest.Tell(res.GetHistory()), err)
	}
	w.Cancel()
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
		if work, _ := open(); work == 0 {
			return
		}
	}
	t.Error("a Work stream that ended is still counted")
}

func TestFailedTransactionsAreCountedByReason(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{Engine: e}
	r := queuetest.Serve(t, queue.Config{}, f)
	r.Configure(t)
	f.err.Store(&engine.ErrDenied)
	if _, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "k"}}}); err == nil {
		t.Fatal("an add went through")
	}
	f.err.Store(nil)
	families, err := r.Tel.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, fam := range families {
		if fam.GetName() != "deltaplane_queue_turn_errors_total" {
			continue
		}
		for _, m := range fam.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "reason" && l.GetValue() == "denied" && m.GetCounter().GetValue() > 0 {
					return
				}
			}
		}
	}
	t.Error("no failed transaction is counted as denied")
}
