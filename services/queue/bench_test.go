package queue_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
)

// BenchmarkEcho is the ceiling of unary calls: Health/Check on the same server.
func BenchmarkEcho(b *testing.B) {
	r := queuetest.Start(b, "memory", queue.Config{})
	conn, err := rpc.Dial(r.Addr, rpc.DialConfig{})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	h := healthpb.NewHealthClient(conn)
	callers(b, 256, func(ctx context.Context, _ int) error {
		_, err := h.Check(ctx, &healthpb.HealthCheckRequest{})
		return err
	})
}

// BenchmarkUnaryCycle is Add, Get and Settle of one key by three calls.
func BenchmarkUnaryCycle(b *testing.B) {
	for _, kind := range []string{"memory", "redis"} {
		b.Run(kind, func(b *testing.B) {
			r := queuetest.Start(b, kind, queue.Config{})
			r.Configure(b)
			callers(b, 256, func(ctx context.Context, i int) error {
				if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "default/some-job-name-" + strconv.Itoa(i)}}}); err != nil {
					return err
				}
				res, err := r.Get(ctx, &queuev1.GetRequest{Queue: queuetest.Q, SessionId: "w", Wait: durationpb.New(time.Minute)})
				if err != nil {
					return err
				}
				l := res.GetLeases()[0]
				_, err = r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
					Queue: queuetest.Q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
				}}})
				return err
			})
		})
	}
}

// callers runs f b.N times from n goroutines.
func callers(b *testing.B, n int, f func(ctx context.Context, i int) error) {
	b.Helper()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	for range n {
		wg.Go(func() {
			for {
				i := int(next.Add(1))
				if i > b.N {
					return
				}
				if err := f(b.Context(), i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}

// BenchmarkStreams is cycles by a Produce and a compact Work stream with a
// number of keys in flight: each key is added again when it is settled.
func BenchmarkStreams(b *testing.B) {
	for _, kind := range []string{"memory", "redis"} {
		for _, inFlight := range []int{256, 1024} {
			b.Run(kind+"/"+strconv.Itoa(inFlight), func(b *testing.B) {
				r := queuetest.Start(b, kind, queue.Config{})
				r.Configure(b)
				turnover(b, r, inFlight, bare)
			})
		}
		b.Run(kind+"/256/laden", func(b *testing.B) { // with all that a key can carry
			r := queuetest.Start(b, kind, queue.Config{})
			r.Configure(b)
			turnover(b, r, 256, laden)
		})
		b.Run(kind+"/1024/4-partitions", func(b *testing.B) {
			r := queuetest.Start(b, kind, queue.Config{})
			r.Make(b, &queuev1.QueueConfig{Name: queuetest.Q, Partitions: 4})
			turnover(b, r, 1024, bare)
		})
	}
}

func bare(i int) *queuev1.ProduceOp {
	return &queuev1.ProduceOp{Key: "default/some-job-name-" + strconv.Itoa(i)}
}

func laden(i int) *queuev1.ProduceOp {
	rv := strconv.Itoa(1_000_000 + i)
	return &queuev1.ProduceOp{
		Key: "default/some-job-name-" + strconv.Itoa(i), Priority: int32(i%8) - 4, Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		Barrier: []*deltav1.CollectionRevision{
			{Collection: "dev/jobs.v1.batch", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: rv}},
			{Collection: "dev/pods.v1", Revision: &deltav1.Revision{Epoch: 1, ResourceVersion: rv}},
		},
	}
}

func turnover(b *testing.B, r *queuetest.Rig, inFlight int, op func(i int) *queuev1.ProduceOp) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	w, err := r.Work(ctx)
	if err != nil {
		b.Fatal(err)
	}
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{queuetest.Q}, Compact: true}}})
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(inFlight)}}})
	a := r.Adder(ctx, b, "p", queuetest.Q, 2)
	var wg sync.WaitGroup
	wg.Go(a.Send)
	wg.Go(func() {
		for {
			if _, err := a.S.Recv(); err != nil {
				return
			}
			<-a.Slots
		}
	})
	key := 0
	add := func() {
		a.Ops <- op(key)
		key++
	}
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu()
	for range min(inFlight, b.N) {
		add()
	}
	done, id := 0, uint64(0)
	for done < b.N {
		m, err := w.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if ls := m.GetAssign().GetLeases(); len(ls) > 0 {
			id++
			batch := &queuev1.SettleBatch{RequestId: id, Settlements: make([]*queuev1.Settlement, len(ls))}
			all := make([]queuev1.Settlement, len(ls))
			for i, l := range ls {
				s := &all[i]
				s.Queue, s.Key, s.Token, s.Outcome = queuetest.Q, l.GetKey(), l.GetToken(), queuev1.Outcome_OUTCOME_FORGET
				batch.Settlements[i] = s
			}
			if err := w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: batch}}); err != nil {
				b.Fatal(err)
			}
		}
		for _, s := range m.GetSettled().GetStatuses() {
			if s != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				b.Fatalf("settled as %v", s)
			}
			done++
			if key < b.N {
				add()
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	b.ReportMetric((cpu()-before).Seconds()*1e6/float64(b.N), "cpu-us/cycle") // client and server
	close(a.Ops)
	wg.Wait()
	cancel()
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkDuplicateAdds is a thousand callers adding a hundred hot keys by
// four Produce streams, each waiting for its answer.
func BenchmarkDuplicateAdds(b *testing.B) {
	for _, kind := range []string{"memory", "redis"} {
		b.Run(kind, func(b *testing.B) {
			r := queuetest.Start(b, kind, queue.Config{})
			r.Configure(b)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			const streams, callers, keys = 4, 1000, 100
			var wg sync.WaitGroup
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ReportAllocs()
			b.ResetTimer()
			for n := range streams {
				a := r.Adder(ctx, b, "p"+strconv.Itoa(n), queuetest.Q, 2)
				hot := make([]*queuev1.ProduceOp, keys)
				for i := range hot {
					hot[i] = &queuev1.ProduceOp{Key: "default/some-job-name-" + strconv.Itoa(i)}
				}
				next, under := 0, 0
				add := func() bool {
					if left.Add(-1) < 0 {
						return false
					}
					a.Ops <- hot[next%keys]
					next++
					under++
					return true
				}
				wg.Go(a.Send)
				wg.Go(func() {
					defer close(a.Ops)
					for range callers / streams {
						add()
					}
					for under > 0 {
						m, err := a.S.Recv()
						if err != nil {
							b.Error(err)
							return
						}
						<-a.Slots
						for _, s := range m.GetProduced().GetStatuses() {
							under--
							if s == queuev1.AddStatus_ADD_STATUS_UNSPECIFIED {
								b.Error("an add without a status")
							}
							add()
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "adds/s")
		})
	}
}
