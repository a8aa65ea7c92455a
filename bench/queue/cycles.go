package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// manyStreams is how many streams of each kind share a load when it is not one.
const manyStreams = 4

// streamCycles measures full cycles by Produce and Work streams on Redis, with
// and without a fsync for every answer, beside the memory engine, asynq and what
// the parts reach alone. Everything shares the machine, unpinned.
func streamCycles(ctx context.Context, b *harness.Bench) (err error) {
	var rigs []*rig
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.close())
		}
	}()
	start := func(store string, always bool, cfg *queuev1.QueueConfig) (*rig, *driver, error) {
		r, err := newRig(ctx, b, store, always, 1)
		if err != nil {
			return nil, nil, err
		}
		rigs = append(rigs, r)
		l, err := r.load(ctx, load.BenchQueue, cfg)
		return r, l, err
	}
	b.Version(ctx, "redis", "redis-server", "--version")
	plain, onRedis, err := start("redis", false, &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	durable, onAOF, err := start("aof", true, &queuev1.QueueConfig{Durability: queuev1.Durability_DURABILITY_FSYNC})
	if err != nil {
		return err
	}
	native, inMemory, err := start("", false, &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	bare, err := newBareTurns(ctx, plain.store.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.engine.Close()) }()
	script, err := plain.store.admin.ScriptLoad(ctx, "return 0").Result()
	if err != nil {
		return err
	}
	echoes, err := load.Dial(native.infos[0].Echo, load.QueueConnections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, echoes.Close()) }()

	measured := func(name string, server *harness.Child, store *redisStore, loop func(context.Context, time.Duration) (load.Turns, error)) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			return measureKeys(ctx, b, name, server, store, d, loop)
		}}
	}
	cycles := func(name string, r *rig, l *driver, m mix) harness.Side {
		return measured(name, r.servers[0], r.store, func(ctx context.Context, d time.Duration) (load.Turns, error) {
			t, err := l.run(ctx, d, m)
			if err != nil {
				return t, err
			}
			return t, l.balance(ctx, 0)
		})
	}
	peer := load.AsynqPeer{Addr: plain.store.Addr(), Redis: plain.store.admin}
	durablePeer := load.AsynqPeer{Addr: durable.store.Addr(), Redis: durable.store.admin}
	sides := []harness.Side{
		measured("ping", nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) {
			return pipelined(ctx, plain.store.Addr(), d/2, "PING")
		}),
		measured("evalsha", nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) {
			return pipelined(ctx, plain.store.Addr(), d/2, "EVALSHA", script, "0")
		}),
		measured("echo", native.servers[0], nil, func(ctx context.Context, d time.Duration) (load.Turns, error) { return echoStreams(ctx, echoes, d/2) }),
		cycles("redis-256", plain, onRedis, mix{inFlight: 256}),
		cycles("aof-256", durable, onAOF, mix{inFlight: 256}),
		cycles("redis-1024", plain, onRedis, mix{inFlight: 1024}),
		cycles("aof-1024", durable, onAOF, mix{inFlight: 1024}),
		cycles("rich-256", plain, onRedis, mix{inFlight: 256, rich: true}),
		cycles("rich-1024", plain, onRedis, mix{inFlight: 1024, rich: true}),
		cycles("memory-256", native, inMemory, mix{inFlight: 256}),
		cycles("memory-1024", native, inMemory, mix{inFlight: 1024}),
		measured("asynq-whole", nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) { return peer.Whole(ctx, d, 100) }),
		measured("asynq-process", nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) { return peer.Process(ctx, d, 100) }),
	}
	for _, n := range harness.Pick(b, []int{64}, []int{1, 64, 256}) {
		sides = append(sides, measured(fmt.Sprintf("turn-%d", n), nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) { return bare.run(ctx, d/2, n) }))
	}
	if b.Quick {
		b.LeaveOut("cycles by several streams, asynq as it is by default, asynq with AOF always, the bare turn script by 1 and 256 keys", "--quick")
	} else {
		byDefault := peer
		byDefault.Untuned = true
		sides = append(sides,
			cycles("many-256", plain, onRedis, mix{inFlight: 256, streams: manyStreams}),
			cycles("many-1024", plain, onRedis, mix{inFlight: 1024, streams: manyStreams}),
			measured("asynq-default", nil, plain.store, func(ctx context.Context, d time.Duration) (load.Turns, error) { return byDefault.Process(ctx, d, 0) }),
			measured("asynq-aof", nil, durable.store, func(ctx context.Context, d time.Duration) (load.Turns, error) {
				return durablePeer.Process(ctx, d/4, 100)
			}),
		)
	}
	t, err := harness.Interleave(ctx, b, b.Plan("cycles", 2, 7, 600*time.Millisecond, time.Second), sides...)
	if err != nil {
		return err
	}
	synced, err := fsync(filepath.Join(b.Dir, "probe"))
	if err != nil {
		return err
	}
	b.Note("cycles: keys of 23 bytes on all 8 priorities, no payload, one partition; one Produce and one compact Work stream, on two connections, where nothing else is said; with barrier and trace: 2 collections, one traceparent, and workers that name what they read at")
	b.Note("cycles: fsync of 4 KiB here: p50 %.0f us, p99 %.0f us", synced.Quantile(.5).Seconds()*1e6, synced.Quantile(.99).Seconds()*1e6)
	b.Note("asynq: tuned is concurrency 100, pool 64, check interval 1 ms; process only works off what was enqueued before; no retention, no Unique: it neither deduplicates nor excludes; in process without gRPC, counted when the handler returns")
	cycleFigures(b, t)
	return nil
}

func cycleFigures(b *harness.Bench, t harness.Table) {
	foreign := harness.SpreadOf(t.Of(harness.MachineSide, "foreign")).Median
	row := func(name, side, besideName string, beside []float64, goal *harness.Target) {
		f := harness.Compare(name, "cycles/s", t.Of(side, "rate"), besideName, beside, goal)
		if goal == nil || goal.Of == "ours" { // CPU says nothing of a ratio
			f.Foreign, f.Capacity = foreign, new(harness.SpreadOf(t.Of(side, "capacity")))
		}
		for _, part := range []string{"server", "client", "redis"} {
			if v := t.Of(side, part); len(v) > 0 && slices.Max(v) > 0 {
				f = f.With(part+" CPU/cycle", "us", v)
			}
		}
		b.Add(f)
	}
	process := t.Of("asynq-process", "rate")
	row("Work + Produce, Redis, 256 in flight", "redis-256", "asynq process only", process, harness.AtLeast("ours", 60_000))
	b.Add(harness.Compare("the same beside asynq", "cycles/s", t.Of("redis-256", "rate"), "asynq process only", process, harness.AtLeast("ratio", 8)))
	row("Work + Produce, Redis, 1,024 in flight", "redis-1024", "asynq process only", process, harness.AtLeast("ours", 85_000))
	b.Add(harness.Compare("the same beside asynq", "cycles/s", t.Of("redis-1024", "rate"), "asynq process only", process, harness.AtLeast("ratio", 8)))
	if t["many-256"] != nil {
		row(fmt.Sprintf("by %d Work and %[1]d Produce streams, 256 in flight", manyStreams), "many-256", "asynq process only", process, nil)
		row(fmt.Sprintf("by %d Work and %[1]d Produce streams, 1,024 in flight", manyStreams), "many-1024", "asynq process only", process, nil)
	}
	row("with barrier and trace, 256 in flight", "rich-256", "asynq process only", process, nil)
	row("with barrier and trace, 1,024 in flight", "rich-1024", "asynq process only", process, nil)
	row("AOF always, 256 in flight", "aof-256", "without AOF", t.Of("redis-256", "rate"), harness.AtLeast("ratio", 0.6))
	row("AOF always, 1,024 in flight", "aof-1024", "without AOF", t.Of("redis-1024", "rate"), harness.AtLeast("ratio", 0.6))
	whole := t.Of("asynq-whole", "redis")
	for _, side := range []string{"redis-256", "redis-1024"} {
		b.Add(harness.Compare("Redis CPU per cycle, "+side[len("redis-"):]+" in flight", "us", t.Of(side, "redis"), "asynq enqueue+process", whole, harness.AtMost("ours", 10)))
		b.Add(harness.Compare("the same beside asynq", "us", t.Of(side, "redis"), "asynq enqueue+process", whole, harness.AtMost("ratio", 1./7)))
	}
	row("memory engine over gRPC, 256 in flight", "memory-256", "bidi echo", t.Of("echo", "rate"), nil)
	row("memory engine over gRPC, 1,024 in flight", "memory-1024", "bidi echo", t.Of("echo", "rate"), harness.AtLeast("ours", 200_000))
	for _, name := range slices.Sorted(maps.Keys(t)) {
		about, ok := map[string]string{
			"ping": "ceiling: PING, 4 connections, 64 deep", "evalsha": "ceiling: empty EVALSHA, 4 connections, 64 deep",
			"echo": "ceiling: bidi echo, one item a message, 4 streams, window 64", "turn-1": "ceiling: the turn script, 1 key a call",
			"turn-64": "ceiling: the turn script, 64 keys a call", "turn-256": "ceiling: the turn script, 256 keys a call",
			"asynq-whole": "asynq tuned, enqueue+process", "asynq-process": "asynq tuned, process only",
			"asynq-default": "asynq by default, process only", "asynq-aof": "asynq tuned, process only, AOF always",
		}[name]
		if ok {
			f := harness.Alone(about, "/s", t.Of(name, "rate"), nil)
			// Of asynq's processing alone it would hold the enqueueing before it, too.
			if v := t.Of(name, "redis"); slices.Max(v) > 0 && (name == "asynq-whole" || !strings.HasPrefix(name, "asynq")) {
				f = f.With("Redis CPU each", "us", v)
			}
			b.Add(f)
		}
	}
}

// fsync measures the disk under the append-only file.
func fsync(path string) (*harness.Histogram, error) {
	file, err := os.Create(path) //nolint:gosec // in our scratch folder
	if err != nil {
		return nil, err
	}
	defer file.Close()
	h, block := &harness.Histogram{}, make([]byte, 4096)
	for range 200 {
		if _, err := file.Write(block); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := file.Sync(); err != nil {
			return nil, err
		}
		h.Record(time.Since(began))
	}
	return h, nil
}
