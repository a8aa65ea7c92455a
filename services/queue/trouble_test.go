package queue_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/rpc"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
	"github.com/deltaplane/deltaplane/services/queue/queuetest"
	"github.com/deltaplane/deltaplane/services/queue/redis"
)

// failing is an engine whose transactions fail, or wait, when told so.
type failing struct {
	engine.Engine
	err  atomic.Pointer[error]
	gate atomic.Pointer[chan struct{}] // transactions wait until it is closed
}

type failingQueue struct {
	engine.Queue
	f *failing
}

type failingPart struct {
	engine.Partition
	f *failing
}

func (f *failing) Configure(ctx context.Context, name string, cfg workqueue.Config) (engine.Queue, bool, error) {
	q, created, err := f.Engine.Configure(ctx, name, cfg)
	return failingQueue{q, f}, created, err
}

func (f failingQueue) Partitions() []engine.Partition {
	var out []engine.Partition
	for _, p := range f.Queue.Partitions() {
		out = append(out, failingPart{p, f.f})
	}
	return out
}

func (f failingPart) Apply(ctx context.Context, t *workqueue.Transaction) (*workqueue.Result, error) {
	if gate := f.f.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := f.f.err.Load(); err != nil {
		return nil, *err
	}
	return f.Partition.Apply(ctx, t)
}

func TestTroubleOfTheStoreHasANamedReasonAndLosesNothing(t *testing.T) {
	t.Parallel()
	for reason, tc := range map[string]struct {
		err   error
		code  codes.Code
		retry bool
	}{
		"STORE_UNAVAILABLE":     {engine.ErrUnavailable, codes.Unavailable, true},
		"STORE_OUTCOME_UNKNOWN": {engine.ErrUnknown, codes.Unknown, true},
		"STORE_FULL":            {engine.ErrFull, codes.ResourceExhausted, true},
		"STORE_DENIED":          {engine.ErrDenied, codes.Unavailable, true},
		"STORE_UNFIT":           {engine.ErrUnsuitable, codes.Unavailable, true},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			e, err := memory.New(memory.Config{})
			if err != nil {
				t.Fatal(err)
			}
			f := &failing{Engine: e}
			r := queuetest.Serve(t, queue.Config{}, f)
			r.Configure(t)
			r.AddKeys(t, "before")
			f.err.Store(&tc.err)
			for began := time.Now(); ; { // a busy machine may not even hear the refusal in time
				_, err = r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "meanwhile"}}})
				if got := rpc.Reason(err); got == reason || got != "STORE_OUTCOME_UNKNOWN" || time.Since(began) > 20*time.Second {
					break
				}
			}
			if rpc.Code(err) != tc.code || rpc.Reason(err) != reason || (rpc.RetryDelay(err) > 0) != tc.retry {
				t.Errorf("%v, reason %q, retry after %v", err, rpc.Reason(err), rpc.RetryDelay(err))
			}
			f.err.Store(nil)
			r.AddKeys(t, "after")
			if n := r.Counts(t).GetReady(); n != 2 {
				t.Errorf("%d ready, want what was acknowledged: 2", n)
			}
		})
	}
}

func TestTroubleOfRedisHasANamedReasonAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		begin, end [][]any
		code       codes.Code
		reason     string
	}{
		"read-only replica": {
			[][]any{{"REPLICAOF", "127.0.0.1", "1"}}, [][]any{{"REPLICAOF", "NO", "ONE"}}, codes.Unavailable, "STORE_UNAVAILABLE",
		},
		"wrong password": {
			[][]any{{"CONFIG", "SET", "requirepass", "other"}, {"AUTH", "other"}, {"CLIENT", "KILL", "TYPE", "normal"}},
			[][]any{{"CONFIG", "SET", "requirepass", ""}},
			codes.Unavailable, "STORE_DENIED",
		},
		"scripts forbidden": {
			[][]any{{"ACL", "SETUSER", "default", "-evalsha", "-eval"}}, [][]any{{"ACL", "SETUSER", "default", "+@all"}}, codes.Unavailable, "STORE_DENIED",
		},
		"out of memory": {
			[][]any{{"CONFIG", "SET", "maxmemory", "1"}}, [][]any{{"CONFIG", "SET", "maxmemory", "0"}}, codes.ResourceExhausted, "STORE_FULL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, err := embedded.StartRedis(t.Context(), filepath.Join(t.TempDir(), "redis"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(srv.Stop)
			e, err := redis.New(redis.Config{URL: srv.URL(), GiveUp: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			r := queuetest.Serve(t, queue.Config{}, e)
			r.Configure(t)
			r.AddKeys(t, "before")
			client := goredis.NewClient(&goredis.Options{Addr: srv.Addr()})
			defer client.Close()
			operator := client.Conn() // one connection: it stays when others are refused
			defer operator.Close()
			run := func(commands [][]any) {
				t.Helper()
				for _, c := range commands {
					if err := operator.Do(t.Context(), c...).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			run(tc.begin)
			for began := time.Now(); ; { // a busy machine may not even hear the refusal in time
				_, err = r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "meanwhile"}}})
				if rpc.Reason(err) != "STORE_OUTCOME_UNKNOWN" || time.Since(began) > 20*time.Second {
					break
				}
			}
			if rpc.Code(err) != tc.code || rpc.Reason(err) != tc.reason || rpc.RetryDelay(err) <= 0 {
				t.Errorf("%v, reason %q, retry after %v", err, rpc.Reason(err), rpc.RetryDelay(err))
			}
			run(tc.end)
			for began := time.Now(); ; {
				_, err := r.Add(t.Context(), &queuev1.AddRequest{Queue: queuetest.Q, Items: []*queuev1.AddItem{{Key: "after"}}})
				if err == nil {
					break
				}
				if time.Since(began) > 20*time.Second {
					t.Fatalf("still failing: %v", err)
				}
			}
			if n := r.Counts(t).GetReady(); n != 2 {
				t.Errorf("%d ready, want what was acknowledged: 2", n)
			}
		})
	}
}

func TestAnOverloadedQueueRefusesAddsAndStillSettles(t *testing.T) {
	t.Parallel()
	e, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	f := &failing{Engine: e}
	r := queuetest.Serve(t, queue.Config{MaxPending: 2000}, f)
	r.Configure(t)
	w := r.OpenWork(t, &queuev1.Hello{SessionId: "w"})
	w.Give(1)
	r.AddKeys(t, "held")
	held := queuetest.Wait(t, w.Leases)

	gate := make(chan struct{}) // the store hangs
	f.gate.Store(&gate)
	results := make(chan error, 10)
	for i := range 10 {
		go func() {
			req := &queuev1.AddRequest{Queue: queuetest.Q}
			for _, k := range queuetest.KeysN(500) { // keys of its own: adds of one key would become one
				req.Items = append(req.Items, &queuev1.AddItem{Key: fmt.Sprintf("%d-%s", i, k)})
			}
			_, err := r.Add(context.Background(), req)
			results <- err
		}()
	}
	refused := 0
	for refused < 4 { // 10 calls of 500: one fits into the transaction under way, and 4 into the 2000 that wait
		select {
		case err := <-results:
			if rpc.Code(err) != codes.ResourceExhausted || rpc.Reason(err) != "OVERLOADED" || rpc.RetryDelay(err) <= 0 {
				t.Fatalf("Add = %v, want OVERLOADED with RetryInfo", err)
			}
			refused++
		case <-time.After(30 * time.Second):
			t.Fatalf("%d of 10 adds refused while the store hangs", refused)
		}
	}
	settled := make(chan error, 1)
	go func() {
		res, err := r.Settle(context.Background(), &queuev1.SettleRequest{SessionId: "w", Settlements: []*queuev1.Settlement{{
			Queue: queuetest.Q, Key: held.GetKey(), Token: held.GetToken(), Outcome: queuetest.Done,
		}}})
		if err == nil && res.GetResults()[0].GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			err = errors.New(res.String())
		}
		settled <- err
	}()
	f.gate.Store(nil)
	close(gate)
	if err := queuetest.Wait(t, settled); err != nil {
		t.Errorf("Settle of an overloaded queue: %v", err)
	}
	for range 10 - refused {
		switch err := queuetest.Wait(t, results); {
		case rpc.Reason(err) == "OVERLOADED":
			refused++
		case err != nil:
			t.Errorf("Add once the store answers: %v", err)
		}
	}
	r.AddKeys(t, "in the end")
	want(t, r.Tel.Registry, map[string]float64{"deltaplane_queue_shed_total": float64(refused)})
}
