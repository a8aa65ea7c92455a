package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// bigBacklog compares a cycle on a queue that holds a million ready and a
// million delayed keys with one on an empty queue, both on the same Redis.
func bigBacklog(ctx context.Context, b *harness.Bench) (err error) {
	r, err := newRig(ctx, b, "backlog", false, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	empty, err := r.load(ctx, "bench/empty", &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	full, err := r.load(ctx, "bench/full", &queuev1.QueueConfig{})
	if err != nil {
		return err
	}
	for name, value := range map[string]string{"slowlog-log-slower-than": "500", "slowlog-max-len": "100000"} {
		if err := r.store.admin.ConfigSet(ctx, name, value).Err(); err != nil {
			return err
		}
	}
	n := harness.Pick(b, 100_000, 1_000_000)
	began := time.Now()
	if err := full.fill(ctx, n, mix{}, nil); err != nil {
		return err
	}
	if err := full.fill(ctx, n, mix{}, func() time.Duration { return time.Hour + rand.N(10*time.Hour) }); err != nil {
		return err
	}
	b.Say("  backlog: %d keys added in %.1f s", 2*n, time.Since(began).Seconds())
	filling, err := longestScript(ctx, r.store)
	if err != nil {
		return err
	}
	cycles := func(name string, l *driver) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			return measureKeys(ctx, b, name, r.servers[0], r.store, d, func(ctx context.Context, d time.Duration) (load.Turns, error) {
				return l.run(ctx, d, mix{inFlight: 256, paired: true})
			})
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("backlog", 3, 7, 500*time.Millisecond, time.Second), cycles("empty", empty), cycles("full", full))
	if err != nil {
		return err
	}
	longest, err := longestScript(ctx, r.store)
	if err != nil {
		return err
	}
	if b.Quick {
		b.LeaveOut("a backlog of 1,000,000 ready and as many delayed keys", "--quick: 100,000")
	}
	b.Note("backlog: %d ready and %d delayed keys; a key is taken for each one added, so that the backlog stays", n, n)
	f := harness.Compare("Redis CPU per cycle on the backlog", "us", t.Of("full", "redis"), "empty", t.Of("empty", "redis"), harness.AtMost("ratio", 1.3))
	b.Add(f.With("rate", "cycles/s", t.Of("full", "rate")).With("rate when empty", "cycles/s", t.Of("empty", "rate")))
	b.Add(harness.Alone("longest script on the backlog", "ms", []float64{longest}, harness.AtMost("ours", 5)).With("while it was filled", "ms", []float64{filling}))
	return errors.Join(empty.balance(ctx, 0), full.balance(ctx, int64(n)))
}

// longestScript is the longest script since the last call in milliseconds; 0.5 when all took less.
func longestScript(ctx context.Context, store *redisStore) (float64, error) {
	logged, err := store.admin.SlowLogGet(ctx, -1).Result()
	if err != nil {
		return 0, err
	}
	longest := .5
	for _, entry := range logged {
		if len(entry.Args) > 0 && slices.Contains([]string{"evalsha", "eval", "fcall", "EVALSHA", "EVAL", "FCALL"}, entry.Args[0]) {
			longest = max(longest, harness.Ms(entry.Duration))
		}
	}
	return longest, store.admin.SlowLogReset(ctx).Err()
}
