package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveDir); dir != "" {
		fmt.Fprintln(os.Stderr, serveUntilKilled(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func quiet() *telemetry.Telemetry {
	return &telemetry.Telemetry{
		Log: slog.New(slog.DiscardHandler), Tracer: tracenoop.NewTracerProvider(), Registry: prometheus.NewRegistry(),
	}
}

// rig is a running service, its engine's clock and a client.
type rig struct {
	queuev1.QueueServiceClient
	svc     *Service
	tel     *telemetry.Telemetry
	advance func(time.Duration)
	stop    func() error // ends Run and returns its error
	addr    string
}

// engines are the stores every test of the service runs on.
var engines = map[string]func(t testing.TB, now *atomic.Int64) engine.Engine{
	"memory": func(t testing.TB, skew *atomic.Int64) engine.Engine {
		e, err := memory.New(memory.Config{Now: func() time.Time { return time.Now().Add(time.Duration(skew.Load())) }})
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
	"redis": func(t testing.TB, skew *atomic.Int64) engine.Engine {
		srv, err := embedded.StartRedis(context.Background(), filepath.Join(t.TempDir(), "redis"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(srv.Stop)
		e, err := redis.New(redis.Config{URL: srv.URL(), Skew: func() time.Duration { return time.Duration(skew.Load()) }})
		if err != nil {
			t.Fatal(err)
		}
		return e
	},
}

func start(t testing.TB, kind string, cfg Config) *rig {
	t.Helper()
	var skew atomic.Int64
	r := serve(t, cfg, engines[kind](t, &skew))
	r.advance = func(d time.Duration) { skew.Add(int64(d)) }
	return r
}

// serve runs a service on an engine until the test ends.
func serve(t testing.TB, cfg Config, e engine.Engine) *rig {
	t.Helper()
	cfg.Admin.Listen = "off"
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	tel := quiet()
	svc, err := build(cfg.withDefaults(), e, tel)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	addr, err := svc.Addr(ctx)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(addr, rpc.DialConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var stopped atomic.Bool
	r := &rig{QueueServiceClient: queuev1.NewQueueServiceClient(conn), svc: svc, tel: tel, addr: addr}
	r.stop = func() error {
		if stopped.Swap(true) {
			return nil
		}
		cancel()
		return <-ended
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if err := r.stop(); err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return r
}

// on runs a test on every engine.
func on(t *testing.T, f func(t *testing.T, kind string)) {
	t.Helper()
	for kind := range engines {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f(t, kind)
		})
	}
}

const q = "dev/job"

func (r *rig) configure(t testing.TB) {
	t.Helper()
	if _, err := r.ConfigureQueue(context.Background(), &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: q}}); err != nil {
		t.Fatal(err)
	}
}

func TestAKeyGoesRoundByUnaryCalls(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		ctx := t.Context()
		got := make(chan *queuev1.GetResponse, 1)
		go func() {
			res, err := r.Get(ctx, &queuev1.GetRequest{Queue: q, SessionId: "w", Wait: durationpb.New(30 * time.Second)})
			if err != nil {
				t.Error(err)
			}
			got <- res
		}()
		added, err := r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "default/a"}}})
		if err != nil || added.GetResults()[0].GetStatus() != queuev1.AddStatus_ADD_STATUS_QUEUED || added.GetGeneration() == "" {
			t.Fatalf("Add = %v, %v", added, err)
		}
		res := <-got
		if len(res.GetLeases()) != 1 || res.GetLeases()[0].GetKey() != "default/a" {
			t.Fatalf("Get = %v", res)
		}
		l := res.GetLeases()[0]
		done, err := r.Settle(ctx, &queuev1.SettleRequest{SessionId: "w", RequestId: 1, Settlements: []*queuev1.Settlement{{
			Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET,
		}}})
		if err != nil || done.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			t.Fatalf("Settle = %v, %v", done, err)
		}
	})
}

func TestAKeyGoesRoundByAWorkStream(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, kind string) {
		r := start(t, kind, Config{})
		r.configure(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := r.Work(ctx)
		if err != nil {
			t.Fatal(err)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: &queuev1.Hello{SessionId: "w", Queues: []string{q}}}})
		m, err := w.Recv()
		if err != nil || m.GetWelcome() == nil {
			t.Fatalf("first message = %v, %v", m, err)
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: &queuev1.Credit{Items: 1}}})
		r.Add(ctx, &queuev1.AddRequest{Queue: q, Items: []*queuev1.AddItem{{Key: "a"}, {Key: "b"}}})
		for i, want := range []string{"a", "b"} {
			m, err = w.Recv()
			if err != nil || len(m.GetAssign().GetLeases()) != 1 || m.GetAssign().GetLeases()[0].GetKey() != want {
				t.Fatalf("message = %v, %v, want %q assigned", m, err, want)
			}
			l := m.GetAssign().GetLeases()[0]
			w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: &queuev1.SettleBatch{RequestId: uint64(i + 1), Settlements: []*queuev1.Settlement{{
				Queue: q, Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_DONE,
			}}}}})
			m, err = w.Recv()
			if err != nil || m.GetSettled().GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
				t.Fatalf("message = %v, %v, want settled", m, err)
			}
		}
		w.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Goodbye{Goodbye: &queuev1.Goodbye{}}})
		if m, err := w.Recv(); !errors.Is(err, io.EOF) {
			t.Fatalf("after goodbye = %v, %v, want the end", m, err)
		}
	})
}
