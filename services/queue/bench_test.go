package queue

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// BenchmarkEcho is the ceiling of unary calls: Health/Check on the same server.
func BenchmarkEcho(b *testing.B) {
	r := start(b, "memory", Config{})
	conn, err := rpc.Dial(r.addr, rpc.DialConfig{})
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
			r := start(b, kind, Config{})
			r.configure(b)
			callers(b, 256, func(ctx context.Context, i int) error {
				if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "default/some-job-name-" + strconv.Itoa(i)}}}); err != nil {
					return err
				}
				res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", Wait: durationpb.New(time.Minute)})
				if err != nil {
					return err
				}
				l := res.GetLeases()[0]
				_, err = r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
					Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
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

// BenchmarkWorkStream is cycles by a Work stream with 256 keys in flight: each
// key is added again when it is settled.
func BenchmarkWorkStream(b *testing.B) {
	for _, kind := range []string{"memory", "redis"} {
		b.Run(kind, func(b *testing.B) {
			r := start(b, kind, Config{})
			r.configure(b)
			turnover(b, r, 256)
		})
	}
}

func turnover(b *testing.B, r *rig, inFlight int) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	w, err := r.Work(ctx)
	if err != nil {
		b.Fatal(err)
	}
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{q}}}})
	w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: int32(inFlight)}}})
	adds := make(chan int, 2*inFlight)
	for i := range inFlight {
		adds <- i
	}
	var wg sync.WaitGroup
	wg.Go(func() { // producer: what gathered goes out together
		i := 0
		for range adds {
			items := []*queuev1.AddItem{{Key: "default/some-job-name-" + strconv.Itoa(i)}}
			i++
			for more := true; more && len(items) < inFlight; {
				select {
				case _, ok := <-adds:
					if !ok {
						return
					}
					items = append(items, &queuev1.AddItem{Key: "default/some-job-name-" + strconv.Itoa(i)})
					i++
				default:
					more = false
				}
			}
			if _, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: items}); err != nil {
				return
			}
		}
	})
	b.ReportAllocs()
	b.ResetTimer()
	done, id := 0, uint64(0)
	for done < b.N {
		m, err := w.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if ls := m.GetAssign().GetLeases(); len(ls) > 0 {
			id++
			batch := &queuev1.SettleBatch{RequestId: id}
			for _, l := range ls {
				batch.Settlements = append(batch.Settlements, &queuev1.Settlement{Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET})
			}
			if err := w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: batch}}); err != nil {
				b.Fatal(err)
			}
		}
		for _, s := range m.GetSettled().GetResults() {
			if s.GetStatus() == queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				done++
				adds <- 1
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
	cancel()
	close(adds)
	wg.Wait()
}
