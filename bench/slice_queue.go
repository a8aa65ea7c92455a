package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/deltaplane/deltaplane/internal/embedded"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue"
)

const benchQueue = "bench/cycles"

type queueServerConfig struct {
	RedisURL string `json:"redis_url"` // empty: the memory engine
}

type queueServerInfo struct {
	Queue string `json:"queue"`
	Echo  string `json:"echo"`
}

// queueServer is the servant that serves a queue and an echo.
func queueServer(ctx context.Context, raw json.RawMessage) (*servant, error) {
	var cfg queueServerConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	tel, err := telemetry.Setup(ctx, telemetry.Config{Service: "queue", LogLevel: "warn"})
	if err != nil {
		return nil, err
	}
	s, err := queue.New(queue.Config{RedisURL: cfg.RedisURL, Queues: []queue.QueueConfig{{Name: benchQueue}}}, tel)
	if err != nil {
		return nil, err
	}
	stop := inBackground(ctx, s.Run)
	var info queueServerInfo
	if info.Queue, err = s.Addr(ctx); err != nil {
		return nil, errors.Join(err, stop())
	}
	if info.Echo, err = startEcho(ctx, &echo{}); err != nil {
		return nil, errors.Join(err, stop())
	}
	return &servant{info: info, stop: stop}, nil
}

// queueEnd is a queue service in a child and what drives it.
type queueEnd struct {
	server *child
	cycler *cycler
	echoes pool
}

func newQueueEnd(ctx context.Context, b *bench, redisURL string) (*queueEnd, error) {
	var info queueServerInfo
	server, err := b.spawn(ctx, "queue", place{}, queueServerConfig{RedisURL: redisURL}, &info)
	if err != nil {
		return nil, err
	}
	e := &queueEnd{server: server}
	queues, err := dial(info.Queue, queueConnections)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	e.cycler = newCycler(queues, benchQueue)
	if e.echoes, err = dial(info.Echo, queueConnections); err != nil {
		return nil, errors.Join(err, e.close())
	}
	_, err = e.cycler.client(0).ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: benchQueue}})
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// queueConnections is how many connections carry the calls of a queue, and of the echo beside it.
const queueConnections = 4

func (e *queueEnd) close() error {
	var err error
	if e.cycler != nil {
		err = e.cycler.pool.Close()
	}
	return errors.Join(err, e.echoes.Close(), e.server.stop())
}

// queueCycles measures full cycles, Add to acknowledged Settle, beside the echo
// and beside asynq. Server, Redis and driver share the machine, unpinned.
func queueCycles(ctx context.Context, b *bench) (err error) {
	store, err := embedded.StartRedis(ctx, filepath.Join(b.dir, "redis"))
	if err != nil {
		return err
	}
	defer store.Stop()
	b.version(ctx, "redis", "redis-server", "--version")
	admin := redis.NewClient(&redis.Options{Addr: store.Addr(), DB: asynqDB})
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
	peer := asynqPeer{addr: store.Addr(), redis: admin}
	measured := func(name string, server *child, loop func(context.Context, time.Duration) (turns, error)) side {
		return side{name, func(ctx context.Context, d time.Duration) (got map[string]float64, err error) {
			run := func() error {
				got, err = perCycle(ctx, server, admin, d, loop)
				return err
			}
			if server == nil {
				return got, run()
			}
			err = b.profiled(server, "queue-"+name, run)
			return got, err
		}}
	}
	sides := []side{
		measured("echo", memory.server, func(ctx context.Context, d time.Duration) (turns, error) {
			return closedLoop(ctx, d, cyclesInFlight, func(ctx context.Context, caller int) error {
				return memory.echoes[caller%queueConnections].Invoke(ctx, echoEmpty, &emptypb.Empty{}, &emptypb.Empty{})
			})
		}),
		measured("unary-memory", memory.server, memory.cycler.unary),
		measured("unary-redis", shared.server, shared.cycler.unary),
		measured("work-memory", memory.server, memory.cycler.work),
		measured("work-redis", shared.server, shared.cycler.work),
	}
	for _, n := range pick(b, []int{100}, []int{10, 100}) {
		sides = append(sides, measured("asynq-"+strconv.Itoa(n), nil, func(ctx context.Context, d time.Duration) (turns, error) { return peer.whole(ctx, d, n) }))
		if b.quick {
			b.leaveOut("asynq, concurrency 10, and asynq processing alone", "--quick")
			continue
		}
		sides = append(sides, measured("asynq-process-"+strconv.Itoa(n), nil, func(ctx context.Context, d time.Duration) (turns, error) { return peer.process(ctx, d, n) }))
	}
	t, err := interleave(ctx, b, b.plan("queue", 2, 7, 700*time.Millisecond, 3*time.Second), sides...)
	if err != nil {
		return err
	}
	b.note("queue: keys of 23 bytes, no payload, one partition; Redis without persistence; %d in flight on %d connections; Work: %d streams, %d adders that batch what the window allows",
		cyclesInFlight, queueConnections, workStreams, workProducers)
	b.note("asynq: pool 64, check interval 1 ms, no retention, no Unique: it neither deduplicates nor excludes; driven in process without gRPC, counted when the handler returns")
	queueFigures(b, t)
	return errors.Join(memory.cycler.balance(ctx), shared.cycler.balance(ctx))
}

func queueFigures(b *bench, t table) {
	third := scaled(t.of("echo", "rate"), 1./3)
	costs := func(f figure, side string) figure {
		if cpu := t.of(side, "server"); cpu != nil {
			f = f.with("server CPU/cycle", "us", cpu)
		}
		return f.with("Redis CPU/cycle", "us", t.of(side, "redis"))
	}
	b.add(costs(compare("queue, unary calls, memory", "cycles/s", t.of("unary-memory", "rate"), "echo/3", third, atLeast("ratio", 0.5)), "unary-memory"))
	b.add(costs(compare("queue, unary calls, Redis", "cycles/s", t.of("unary-redis", "rate"), "echo/3", third, atLeast("ratio", 0.3)), "unary-redis"))
	for i, n := range []string{"asynq-100", "asynq-10"} {
		if t[n] == nil {
			continue
		}
		goal := atLeast("ours", 25_000)
		if i > 0 {
			goal = nil // the same number again, beside another peer
		}
		f := compare("queue, Work stream, Redis", "cycles/s", t.of("work-redis", "rate"), n+" enqueue+process", t.of(n, "rate"), goal)
		f.Foreign, f.Capacity = spreadOf(t.of(machineSide, "foreign")).Median, new(spreadOf(t.of("work-redis", "capacity")))
		b.add(costs(f, "work-redis").with("asynq's Redis CPU/task", "us", t.of(n, "redis")))
		if p := strings.Replace(n, "-", "-process-", 1); t[p] != nil {
			f := compare("queue, Work stream, Redis", "cycles/s", t.of("work-redis", "rate"), n+" process only", t.of(p, "rate"), nil)
			b.add(f.with("asynq's Redis CPU/task", "us", t.of(p, "redis")))
		}
	}
	b.add(costs(compare("queue, Work stream, memory", "cycles/s", t.of("work-memory", "rate"), "echo", t.of("echo", "rate"), nil), "work-memory"))
}

// perCycle runs a loop and returns its rate and what server and Redis spent on each turn, in microseconds of CPU.
func perCycle(ctx context.Context, server *child, store *redis.Client, d time.Duration, loop func(context.Context, time.Duration) (turns, error)) (map[string]float64, error) {
	var before, after usage
	var err error
	if server != nil {
		if before, err = server.usage(); err != nil {
			return nil, err
		}
	}
	redisBefore, err := redisCPU(ctx, store)
	if err != nil {
		return nil, err
	}
	all := familyBusy()
	t, err := loop(ctx, d)
	if err != nil {
		return nil, err
	}
	all = familyBusy() - all
	redisAfter, err := redisCPU(ctx, store)
	if err != nil {
		return nil, err
	}
	got := map[string]float64{"rate": t.rate(), "capacity": capacity(t, all), "redis": (redisAfter - redisBefore) * 1e6 / float64(t.done)}
	if server != nil {
		if after, err = server.usage(); err != nil {
			return nil, err
		}
		got["server"] = (after.CPU - before.CPU).Seconds() * 1e6 / float64(t.done)
	}
	return got, nil
}

// capacity is the rate at which the CPU that one turn took of all processes would fill every core.
func capacity(t turns, all time.Duration) float64 {
	return float64(runtime.NumCPU()) * float64(t.done) / all.Seconds()
}

// redisCPU is what a Redis has spent so far, in seconds.
func redisCPU(ctx context.Context, store *redis.Client) (float64, error) {
	return infoNumber(ctx, store, "cpu", "used_cpu_sys", "used_cpu_user")
}

// infoNumber is the sum of numbers of a section of INFO.
func infoNumber(ctx context.Context, store *redis.Client, section string, names ...string) (float64, error) {
	text, err := store.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	var sum float64
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if slices.Contains(names, name) {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO %s: %s: %w", section, name, err)
			}
			sum += v
		}
	}
	return sum, nil
}
