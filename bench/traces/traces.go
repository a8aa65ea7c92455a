package traces

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// Family holds the figures of tracing.
func Family() harness.Family {
	return harness.Family{
		Name:  "traces",
		About: "CPU of a change from the API server to the reconcile and its write, traced and not",
		Parts: []harness.Part{{Name: "cost", Run: cost}},
	}
}

// The sides, by the share of changes that they trace.
const (
	off = "off"
	on  = "on"
	all = "all"
)

var ratios = map[string]float64{off: 0, on: 0.01, all: 1}

const (
	// changeEvery is the time between two changes: a fixed load, so that batches are alike.
	changeEvery = 4 * time.Millisecond
	// settled is how long a turn goes on after its last write: the event of that write is on its way,
	// and spans leave in batches.
	settled = 500 * time.Millisecond
)

// cost compares the CPU of a change. The processes of a side are started several times, since two
// that do the same may differ for as long as they live.
func cost(ctx context.Context, b *harness.Bench) error {
	jobs := harness.Pick(b, 100, 400)
	starts := harness.Pick(b, 1, 4)
	cpu, spans := map[string][]float64{}, map[string][]float64{}
	for n := range starts {
		t, err := interleaved(ctx, b, n, jobs)
		if err != nil {
			return err
		}
		for side := range ratios {
			cpu[side] = append(cpu[side], t.Of(side, "cpu")...)
			spans[side] = append(spans[side], t.Of(side, "spans")...)
		}
	}
	if slices.Max(spans[on]) == 0 || slices.Max(spans[all]) == 0 {
		return errors.New("no spans were sent where changes are traced")
	}
	b.Note("traces: %d suspended Jobs on a dev cluster; one is resumed or suspended every %v, which the Job controller writes into its status; CPU is that of log, reflector, index, queue and controllers, a process each, without cluster, driver and collector", jobs, changeEvery)
	b.Note("traces: all sides send to a collector, every 200 ms; they differ in the --trace-ratio of their reflectors; %d starts of all processes", starts)
	row := func(name, side string, goal *harness.Target) {
		b.Add(harness.Compare(name, "us", cpu[side], "--trace-ratio 0", cpu[off], goal).With("spans of a thousand changes", "", spans[side]))
	}
	row("CPU of a change from the API server to the write, --trace-ratio 0.01", on, harness.AtMost("ratio", 1.01))
	row("the same, --trace-ratio 1", all, nil)
	return nil
}

// interleaved starts the processes of each side, and lets the sides take turns.
func interleaved(ctx context.Context, b *harness.Bench, n, jobs int) (_ harness.Table, err error) {
	var rigs []*rig
	defer func() {
		for _, r := range rigs {
			err = errors.Join(err, r.close())
		}
	}()
	var sides []harness.Side
	for _, name := range []string{off, on, all} {
		r, err := newRig(ctx, b, name+"-"+strconv.Itoa(n), ratios[name], jobs)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		rigs = append(rigs, r)
		sides = append(sides, harness.Side{Name: name, Run: r.turn})
	}
	plan := b.Plan(fmt.Sprintf("start %d", n+1), 2, 20, 2*time.Second, 2*time.Second)
	plan.Rotate = true
	return harness.Interleave(ctx, b, plan, sides...)
}
