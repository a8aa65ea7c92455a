package queue

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

// inProcess measures the memory engine without a server: turns of 256 keys,
// bare, logged, and logged with a fsync for each.
func inProcess(ctx context.Context, b *harness.Bench) (err error) {
	var engines []engine.Engine
	defer func() {
		for _, e := range engines {
			err = errors.Join(err, e.Close())
		}
	}()
	var sides []harness.Side
	for _, k := range []struct {
		name string
		cfg  memory.Config
	}{
		{"bare", memory.Config{}},
		{"logged", memory.Config{Dir: filepath.Join(b.Dir, "logged")}},
		{"fsync", memory.Config{Dir: filepath.Join(b.Dir, "fsync"), Fsync: true}},
	} {
		e, err := memory.New(k.cfg)
		if err != nil {
			return err
		}
		engines = append(engines, e)
		q, _, err := e.Configure(ctx, load.BenchQueue, workqueue.Config{})
		if err != nil {
			return err
		}
		var next uint64
		sides = append(sides, harness.Side{Name: k.name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			return measureKeys(ctx, b, k.name, nil, nil, d, func(ctx context.Context, d time.Duration) (load.Turns, error) {
				return engineTurns(ctx, q, &next, d, 256)
			})
		}})
	}
	t, err := harness.Interleave(ctx, b, b.Plan("inprocess", 2, 7, 300*time.Millisecond, 700*time.Millisecond), sides...)
	if err != nil {
		return err
	}
	rate := func(name, side string, goal *harness.Target) {
		f := harness.Alone(name, "cycles/s", t.Of(side, "rate"), goal)
		f.Foreign, f.Capacity = harness.SpreadOf(t.Of(harness.MachineSide, "foreign")).Median, new(harness.SpreadOf(t.Of(side, "capacity")))
		b.Add(f.With("CPU/cycle", "us", t.Of(side, "client")))
	}
	rate("memory engine in process, turns of 256", "bare", harness.AtLeast("ours", 1_000_000))
	rate("memory engine in process, logged", "logged", nil)
	rate("memory engine in process, fsync of every turn", "fsync", nil)
	return nil
}
