package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// AsynqDB keeps the peer's keys apart from ours on the same Redis.
const AsynqDB = 9

const asynqTask = "bench"

// AsynqPeer is asynq at its best: 64 connections, tasks looked for every
// millisecond, no retention. Its client and its workers run in this process and
// speak to Redis themselves: no gRPC hop. A task counts when its handler has
// returned, which is before asynq has acknowledged it. It neither deduplicates
// nor excludes.
type AsynqPeer struct {
	Addr  string
	Redis *redis.Client
	// Untuned leaves everything as asynq's documentation has it by default.
	Untuned bool
}

func (a AsynqPeer) opt() asynq.RedisClientOpt {
	if a.Untuned {
		return asynq.RedisClientOpt{Addr: a.Addr, DB: AsynqDB}
	}
	return asynq.RedisClientOpt{Addr: a.Addr, DB: AsynqDB, PoolSize: 64}
}

func (a AsynqPeer) server(concurrency int) *asynq.Server {
	if a.Untuned {
		return asynq.NewServer(a.opt(), asynq.Config{ShutdownTimeout: time.Second, LogLevel: asynq.FatalLevel})
	}
	return asynq.NewServer(a.opt(), asynq.Config{
		Concurrency: concurrency, TaskCheckInterval: time.Millisecond, ShutdownTimeout: time.Second,
		LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: time.Minute, JanitorInterval: time.Hour,
	})
}

// Whole makes tasks from enqueue to handled, CyclesInFlight of them at a time.
func (a AsynqPeer) Whole(ctx context.Context, d time.Duration, concurrency int) (Turns, error) {
	if err := a.clear(ctx); err != nil {
		return Turns{}, err
	}
	client := asynq.NewClient(a.opt())
	defer client.Close()
	handled := make([]chan struct{}, CyclesInFlight)
	for i := range handled {
		handled[i] = make(chan struct{}, 1)
	}
	server := a.server(concurrency)
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		handled[binary.BigEndian.Uint32(t.Payload())] <- struct{}{}
		return nil
	}))
	if err != nil {
		return Turns{}, err
	}
	defer server.Shutdown()
	t, err := ClosedLoop(ctx, d, CyclesInFlight, func(ctx context.Context, caller int) error {
		task := asynq.NewTask(asynqTask, binary.BigEndian.AppendUint32(nil, uint32(caller)))
		if _, err := client.EnqueueContext(ctx, task, asynq.MaxRetry(0)); err != nil {
			return err
		}
		select {
		case <-handled[caller]:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return t, errors.Join(err, a.empty(ctx))
}

// Process works off tasks that were enqueued before.
func (a AsynqPeer) Process(ctx context.Context, d time.Duration, concurrency int) (Turns, error) {
	if err := a.clear(ctx); err != nil {
		return Turns{}, err
	}
	total := int64(d.Seconds() * 8000)
	client := asynq.NewClient(a.opt())
	defer client.Close()
	var group sync.WaitGroup
	var left atomic.Int64
	left.Store(total)
	errs := make(chan error, 64)
	for range 64 {
		group.Go(func() {
			for left.Add(-1) >= 0 {
				if _, err := client.EnqueueContext(ctx, asynq.NewTask(asynqTask, nil), asynq.MaxRetry(0)); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	group.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return Turns{}, err
	}
	var done atomic.Int64
	all := make(chan struct{})
	server := a.server(concurrency)
	began := time.Now()
	err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if done.Add(1) == total {
			close(all)
		}
		return nil
	}))
	if err != nil {
		return Turns{}, err
	}
	defer server.Shutdown()
	select {
	case <-all:
	case <-ctx.Done():
		return Turns{}, ctx.Err()
	}
	return Turns{Done: total, Elapsed: time.Since(began), Latency: &harness.Histogram{}}, a.empty(ctx)
}

func (a AsynqPeer) clear(ctx context.Context) error { return a.Redis.FlushDB(ctx).Err() }

// empty waits until asynq has acknowledged everything that was handled.
func (a AsynqPeer) empty(ctx context.Context) error {
	inspector := asynq.NewInspector(a.opt())
	defer inspector.Close()
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			return err
		}
		if info.Size == 0 {
			tick.Stop()
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("asynq keeps %d tasks: %w", info.Size, ctx.Err())
		}
	}
}
