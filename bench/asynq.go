package main

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
)

// asynqDB keeps the peer's keys apart from ours on the same Redis.
const asynqDB = 9

const asynqTask = "bench"

// asynqPeer is asynq at its best: 64 connections, tasks looked for every
// millisecond, no retention. Its client and its workers run in this process and
// speak to Redis themselves: no gRPC hop. A task counts when its handler has
// returned, which is before asynq has acknowledged it. It neither deduplicates
// nor excludes.
type asynqPeer struct {
	addr  string
	redis *redis.Client
	// untuned leaves everything as asynq's documentation has it by default.
	untuned bool
}

func (a asynqPeer) opt() asynq.RedisClientOpt {
	if a.untuned {
		return asynq.RedisClientOpt{Addr: a.addr, DB: asynqDB}
	}
	return asynq.RedisClientOpt{Addr: a.addr, DB: asynqDB, PoolSize: 64}
}

func (a asynqPeer) server(concurrency int) *asynq.Server {
	if a.untuned {
		return asynq.NewServer(a.opt(), asynq.Config{ShutdownTimeout: time.Second, LogLevel: asynq.FatalLevel})
	}
	return asynq.NewServer(a.opt(), asynq.Config{
		Concurrency: concurrency, TaskCheckInterval: time.Millisecond, ShutdownTimeout: time.Second,
		LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: time.Minute, JanitorInterval: time.Hour,
	})
}

// whole makes tasks from enqueue to handled, cyclesInFlight of them at a time.
func (a asynqPeer) whole(ctx context.Context, d time.Duration, concurrency int) (turns, error) {
	if err := a.clear(ctx); err != nil {
		return turns{}, err
	}
	client := asynq.NewClient(a.opt())
	defer client.Close()
	handled := make([]chan struct{}, cyclesInFlight)
	for i := range handled {
		handled[i] = make(chan struct{}, 1)
	}
	server := a.server(concurrency)
	err := server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		handled[binary.BigEndian.Uint32(t.Payload())] <- struct{}{}
		return nil
	}))
	if err != nil {
		return turns{}, err
	}
	defer server.Shutdown()
	t, err := closedLoop(ctx, d, cyclesInFlight, func(ctx context.Context, caller int) error {
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

// process works off tasks that were enqueued before.
func (a asynqPeer) process(ctx context.Context, d time.Duration, concurrency int) (turns, error) {
	if err := a.clear(ctx); err != nil {
		return turns{}, err
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
		return turns{}, err
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
		return turns{}, err
	}
	defer server.Shutdown()
	select {
	case <-all:
	case <-ctx.Done():
		return turns{}, ctx.Err()
	}
	return turns{done: total, elapsed: time.Since(began), latency: &histogram{}}, a.empty(ctx)
}

func (a asynqPeer) clear(ctx context.Context) error { return a.redis.FlushDB(ctx).Err() }

// empty waits until asynq has acknowledged everything that was handled.
func (a asynqPeer) empty(ctx context.Context) error {
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
