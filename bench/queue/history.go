package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// historyCost compares cycles on servers that remember what happened to keys, as they do by
// default, with those on servers that do not, each on a store of its own.
func historyCost(ctx context.Context, b *harness.Bench) (err error) {
	var rigs []*rig
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.close())
		}
	}()
	stores := []struct{ name, about string }{{"redis", "Redis"}, {"memory", "memory engine"}}
	var sides []harness.Side
	for _, store := range stores {
		for _, history := range []struct {
			name string
			keys int
		}{{"on", 0}, {"off", -1}} {
			name := store.name + "-" + history.name
			folder := ""
			if store.name == "redis" {
				folder = "history-" + history.name
			}
			r, err := newRigOf(ctx, b, folder, false, 1, system.QueueServerConfig{HistoryKeys: history.keys})
			if err != nil {
				return err
			}
			rigs = append(rigs, r)
			l, err := r.load(ctx, load.BenchQueue, &queuev1.QueueConfig{})
			if err != nil {
				return err
			}
			sides = append(sides, harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
				return measureKeys(ctx, b, "history-"+name, r.servers[0], r.store, d, func(ctx context.Context, d time.Duration) (load.Turns, error) {
					t, err := l.run(ctx, d, mix{inFlight: 256, rich: true})
					if err != nil {
						return t, err
					}
					return t, l.balance(ctx, 0)
				})
			}})
		}
	}
	plan := b.Plan("history", 2, 16, 600*time.Millisecond, time.Second)
	plan.Rotate = true
	t, err := harness.Interleave(ctx, b, plan, sides...)
	if err != nil {
		return err
	}
	b.Note("history: with barrier and trace, 256 in flight; on is the default of 100,000 keys with 8 events each, off is --queue-history-keys -1; each side has a server and a store of its own")
	for _, store := range stores {
		on, off := store.name+"-on", store.name+"-off"
		b.Add(harness.Compare(fmt.Sprintf("cycles with history, %s", store.about), "cycles/s", t.Of(on, "rate"), "without", t.Of(off, "rate"), harness.AtLeast("ratio", 0.97)))
		b.Add(harness.Compare("the same, server CPU/cycle", "us", t.Of(on, "server"), "without", t.Of(off, "server"), nil))
	}
	return nil
}
