package slice

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	"github.com/deltaplane/deltaplane/internal/embedded"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// queueEnd is a queue service in a child and what drives it.
type queueEnd struct {
	server *harness.Child
	cycler *load.Cycler
	echoes load.Pool
}

func newQueueEnd(ctx context.Context, b *harness.Bench, redisURL string) (*queueEnd, error) {
	var info system.QueueServerInfo
	server, err := b.Spawn(ctx, "queue", harness.Place{}, system.QueueServerConfig{RedisURL: redisURL}, &info)
	if err != nil {
		return nil, err
	}
	e := &queueEnd{server: server}
	queues, err := load.Dial(info.Queue, load.QueueConnections)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.cycler = load.NewCycler(queues, load.BenchQueue)
	if e.echoes, err = load.Dial(info.Echo, load.QueueConnections); err != nil {
		return nil, errors.Join(err, e.close())
	}
	_, err = e.cycler.Admin().ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: load.BenchQueue}})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

func (e *queueEnd) close() error {
	var err error
	if e.cycler != nil {
		err = e.cycler.Pool.Close()
	}
	return errors.Join(err, e.echoes.Close(), e.server.Stop())
}

// queueCycles measures full cycles, Add to acknowledged Settle, beside the echo
// and beside asynq. Server, Redis and driver share the machine, unpinned.
func queueCycles(ctx context.Context, b *harness.Bench) (err error) {
	store, err := embedded.StartRedis(ctx, filepath.Join(b.Dir, "redis"))
	if err != nil {
		return err
	}
	defer store.Stop()
	b.Version(ctx, "redis", "redis-server", "--version")
	admin := redis.NewClient(&redis.Options{Addr: store.Addr(), DB: load.AsynqDB})
	defer admin.Close()
	memory, err := newQueueEnd(ctx, b, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, memory.close()) }()
	shared, err := newQueueEnd(ctx, b, store.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.close()) }()
	peer := load.AsynqPeer{Addr: store.Addr(), Redis: admin}
	measured := func(name string, server *harness.Child, loop func(context.Context, time.Duration) (load.Turns, error)) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			run := func() error {
				got, err = perCycle(ctx, server, admin, d, loop)
				return err
			}
			if server == nil {
				return got, run()
			}
			err = b.Profiled(server, "queue-"+name, run)
			return got, err
		}}
	}
	sides := []harness.Side{
		measured("echo", memory.server, func(ctx context.Context, d time.Duration) (load.Turns, error) {
			return load.ClosedLoop(ctx, d, load.CyclesInFlight, func(ctx context.Context, caller int) error {
				return memory.echoes[caller%load.QueueConnections].Invoke(ctx, load.EchoEmpty, &emptypb.Empty{}, &emptypb.Empty{})
			})
		}),
		measured("unary-memory", memory.server, memory.cycler.Unary),
		measured("unary-redis", shared.server, shared.cycler.Unary),
		measured("work-memory", memory.server, memory.cycler.Work),
		measured("work-redis", shared.server, shared.cycler.Work),
	}
	for _, n := range harness.Pick(b, []int{100}, []int{10, 100}) {
		sides = append(sides, measured("asynq-"+strconv.Itoa(n), nil, func(ctx context.Context, d time.Duration) (load.Turns, error) { return peer.Whole(ctx, d, n) }))
		if b.Quick {
			b.LeaveOut("asynq, concurrency 10, and asynq processing alone", "--quick")
			continue
		}
		sides = append(sides, measured("asynq-process-"+strconv.Itoa(n), nil, func(ctx context.Context, d time.Duration) (load.Turns, error) { return peer.Process(ctx, d, n) }))
	}
	t, err := harness.Interleave(ctx, b, b.Plan("queue", 2, 7, 700*time.Millisecond, 3*time.Second), sides...)
	if err != nil {
		return err
	}
	b.Note("queue: keys of 23 bytes, no payload, one partition; Redis without persistence; %d in flight on %d connections; Work: %d streams, %d adders that batch what the window allows",
		load.CyclesInFlight, load.QueueConnections, load.WorkStreams, load.WorkProducers)
	b.Note("asynq: pool 64, check interval 1 ms, no retention, no Unique: it neither deduplicates nor excludes; driven in process without gRPC, counted when the handler returns")
	queueFigures(b, t)
	return errors.Join(memory.cycler.Balance(ctx), shared.cycler.Balance(ctx))
}

func queueFigures(b *harness.Bench, t harness.Table) {
	third := harness.Scaled(t.Of("echo", "rate"), 1./3)
	costs := func(f harness.Figure, side string) harness.Figure {
		if cpu := t.Of(side, "server"); cpu != nil {
			f = f.With("server CPU/cycle", "us", cpu)
		}
		return f.With("Redis CPU/cycle", "us", t.Of(side, "redis"))
	}
	b.Add(costs(harness.Compare("queue, unary calls, memory", "cycles/s", t.Of("unary-memory", "rate"), "echo/3", third, harness.AtLeast("ratio", 0.5)), "unary-memory"))
	b.Add(costs(harness.Compare("queue, unary calls, Redis", "cycles/s", t.Of("unary-redis", "rate"), "echo/3", third, harness.AtLeast("ratio", 0.3)), "unary-redis"))
	for i, n := range []string{"asynq-100", "asynq-10"} {
		if t[n] == nil {
			continue
		}
		goal := harness.AtLeast("ours", 25_000)
		if i > 0 {
			goal = nil // the same number again, beside another peer
		}
		f := harness.Compare("queue, Work stream, Redis", "cycles/s", t.Of("work-redis", "rate"), n+" enqueue+process", t.Of(n, "rate"), goal)
		f.Foreign, f.Capacity = harness.SpreadOf(t.Of(harness.MachineSide, "foreign")).Median, new(harness.SpreadOf(t.Of("work-redis", "capacity")))
		b.Add(costs(f, "work-redis").With("asynq's Redis CPU/task", "us", t.Of(n, "redis")))
		if p := strings.Replace(n, "-", "-process-", 1); t[p] != nil {
			f := harness.Compare("queue, Work stream, Redis", "cycles/s", t.Of("work-redis", "rate"), n+" process only", t.Of(p, "rate"), nil)
			b.Add(f.With("asynq's Redis CPU/task", "us", t.Of(p, "redis")))
		}
	}
	b.Add(costs(harness.Compare("queue, Work stream, memory", "cycles/s", t.Of("work-memory", "rate"), "echo", t.Of("echo", "rate"), nil), "work-memory"))
}

// perCycle runs a loop and returns its rate and the CPU of server and Redis for each cycle, in µs.
func perCycle(ctx context.Context, server *harness.Child, store *redis.Client, d time.Duration, loop func(context.Context, time.Duration) (load.Turns, error)) (map[string]float64, error) {
	var before, after harness.Usage
	var err error
	if server != nil {
		if before, err = server.Usage(); err != nil {
			return nil, err
		}
	}
	redisBefore, err := system.RedisCPU(ctx, store)
	if err != nil {
		return nil, err
	}
	all := harness.FamilyBusy()
	t, err := loop(ctx, d)
	if err != nil {
		return nil, err
	}
	all = harness.FamilyBusy() - all
	redisAfter, err := system.RedisCPU(ctx, store)
	if err != nil {
		return nil, err
	}
	got := map[string]float64{"rate": t.Rate(), "capacity": system.Capacity(t, all), "redis": (redisAfter - redisBefore) * 1e6 / float64(t.Done)}
	if server != nil {
		if after, err = server.Usage(); err != nil {
			return nil, err
		}
		got["server"] = (after.CPU - before.CPU).Seconds() * 1e6 / float64(t.Done)
	}
	return got, nil
}
