package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/deltaplane/deltaplane/core/workqueue"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/memory"
)

// inProcess measures the memory engine without a server: turns of 256 keys,
// bare, logged, and logged with a fsync for each.
func inProcess(ctx context.Context, b *bench) (err error) {
	var engines []engine.Engine
	defer func() {
		for _, e := range engines {
			err = errors.Join(err, e.Close())
		}
	}()
	var sides []side
	for _, k := range []struct {
		name string
		cfg  memory.Config
	}{
		{"bare", memory.Config{}},
		{"logged", memory.Config{Dir: filepath.Join(b.dir, "logged")}},
		{"fsync", memory.Config{Dir: filepath.Join(b.dir, "fsync"), Fsync: true}},
	} {
		e, err := memory.New(k.cfg)
		if err != nil {
			return err
		}
		engines = append(engines, e)
		q, _, err := e.Configure(ctx, benchQueue, workqueue.Config{})
		if err != nil {
			return err
		}
		var next uint64
		sides = append(sides, side{k.name, func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			return measureKeys(ctx, b, k.name, nil, nil, d, func(ctx context.Context, d time.Duration) (turns, error) {
				return engineTurns(ctx, q, &next, d, 256)
			})
		}})
	}
	t, err := interleave(ctx, b, b.plan("inprocess", 2, 7, 300*time.Millisecond, 700*time.Millisecond), sides...)
	if err != nil {
		return err
	}
	rate := func(name, side string, goal *target) {
		f := alone(name, "cycles/s", t.of(side, "rate"), goal)
		f.Foreign, f.Capacity = spreadOf(t.of(machineSide, "foreign")).Median, new(spreadOf(t.of(side, "capacity")))
		b.add(f.with("CPU/cycle", "us", t.of(side, "client")))
	}
	rate("memory engine in process, turns of 256", "bare", atLeast("ours", 1_000_000))
	rate("memory engine in process, logged", "logged", nil)
	rate("memory engine in process, fsync of every turn", "fsync", nil)
	return nil
}
