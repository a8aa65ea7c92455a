package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

const (
	// slowTimes is how much slower the log becomes.
	slowTimes = 10
	// slowGrowth is what the reflector may need more while the log is slow, in MB: three
	// times its stage, as a heap is collected when it has doubled.
	slowGrowth = 3 * 64 << 20 / 1e6
)

// logSlow lets events happen while the log takes a tenth of what it took before.
// The watch must go on as if nothing were, memory must stay bounded, and once the
// log is fast again everything must be in it.
func logSlow(ctx context.Context, b *harness.Bench) (err error) {
	m, err := startMirror(ctx, b, "slow", scriptConfig{Pods: harness.Pick(b, 3000, 9990), Templates: harness.Pick(b, 500, 600)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	slow, err := newThrottle(ctx, m.nats)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, slow.close()) }()
	r, err := m.reflector(ctx, "bench", "nats://"+slow.addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := m.settle(); err != nil {
		return err
	}
	normal, held := harness.Pick(b, time.Second, 20*time.Second), harness.Pick(b, 4*time.Second, time.Minute)
	passed := slow.passed.Load()
	if err := m.script.Call("run", system.ChurnArgs{Rate: system.DeltasPerSecond, For: normal}, nil); err != nil {
		return err
	}
	if err := m.settle(); err != nil {
		return err
	}
	speed := float64(slow.passed.Load()-passed) / normal.Seconds()
	before, err := m.slowState(ctx, r)
	if err != nil {
		return err
	}
	b.Say("  slow: the log takes %.1f MB/s, now a tenth of it for %v", speed/1e6, held)
	slow.setLimit(speed / slowTimes)
	if err := m.script.Call("run", system.ChurnArgs{Rate: system.DeltasPerSecond, For: held}, nil); err != nil {
		return err
	}
	during, err := m.slowState(ctx, r)
	if err != nil {
		return err
	}
	slow.setLimit(0)
	released := time.Now()
	if err := m.settle(); err != nil {
		return err
	}
	caught := time.Since(released)
	after, err := m.slowState(ctx, r)
	if err != nil {
		return err
	}
	b.Note("slow: %d events a second of %d bytes, %.2f MB/s on the way to the log, then a tenth of it for %v; the state at the end has the source's hash; the last error of the reflector was %q",
		system.DeltasPerSecond, m.script.FullMean, speed/1e6, held, after.status.GetLastError())
	b.Add(slowRow("watches ended while the log is 10 times slower", "watches", after.asked.Ended, before.asked.Ended, harness.AtMost("ours", 0)))
	b.Add(slowRow("lists asked for meanwhile", "lists", after.asked.Lists+after.asked.Streams, before.asked.Lists+before.asked.Streams, harness.AtMost("ours", 0)))
	b.Add(slowRow("leadership terms begun meanwhile", "terms", after.faults.Terms, before.faults.Terms, harness.AtMost("ours", 0)))
	b.Add(slowRow("gaps below a claimed revision meanwhile", "gaps", after.faults.Gaps, before.faults.Gaps, harness.AtMost("ours", 0)))
	f := harness.Alone("growth of the reflector's peak RSS meanwhile", "MB", []float64{after.peak - before.peak}, harness.AtMost("ours", slowGrowth))
	b.Add(f.With("before", "MB", []float64{before.peak}).With("after", "MB", []float64{after.peak}))
	f = harness.Alone("changes folded into later ones meanwhile", "changes", []float64{float64(after.status.GetCoalesced())}, nil)
	f = f.With("waiting at the end of it", "", []float64{float64(during.status.GetPending())})
	b.Add(f.With("until all is in the log, once it is fast again", "s", []float64{caught.Seconds()}))
	return nil
}

func slowRow(name, unit string, after, before int, t *harness.Target) harness.Figure {
	return harness.Alone(name, unit, []float64{float64(after - before)}, t)
}

// slowState is what source, reflector and reader tell at one moment.
type slowState struct {
	asked  asked
	faults faults
	status *reflectorv1.Reflection
	peak   float64 // RSS of the reflector, MB
}

func (m *mirror) slowState(ctx context.Context, r *system.Reflecting) (s slowState, err error) {
	if s.asked, err = m.script.counts(); err != nil {
		return s, err
	}
	used, err := r.Usage()
	if err != nil {
		return s, err
	}
	s.peak = float64(used.PeakRSS) / 1e6
	if s.status, err = r.Status(ctx); err != nil {
		return s, fmt.Errorf("while the log is slow: %w", err)
	}
	return s, m.reader.Call("faults", nil, &s.faults)
}
