package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// restartSchedule lets containers crash again and again and measures when each
// restart came, against the end of the instance before it and the delay that
// CrashLoopBackOff had reached: none, then the initial one, doubled from there.
func restartSchedule(ctx context.Context, b *harness.Bench) error {
	initial, limit := harness.Pick(b, time.Second, 10*time.Second), harness.Pick(b, 10*time.Second, 300*time.Second)
	const restarts = 4
	b.Note("crash: a container that ends with 1 after 200 ms, 3 pods on each of two nodes; back-off of %v doubling up to %v; late is from the end of the instance before, beyond the delay that is due, to when the next is created, by the runtime's times", initial, limit)
	return onBoth(ctx, b, "crash", func(ctx context.Context, r *agentRig, on string) error {
		pods := map[string][]string{}
		for node, events := range map[string]bool{"relisting": false, "streaming": true} {
			if _, err := r.agent(ctx, node, events, initial, limit); err != nil {
				return err
			}
			for range 3 {
				name, err := r.create(ctx, benchPod{node: node, forNow: 200 * time.Millisecond, code: 1, always: true})
				if err != nil {
					return err
				}
				pods[node] = append(pods[node], name)
			}
		}
		runs, err := r.runs(ctx, append(slices.Clone(pods["relisting"]), pods["streaming"]...), restarts+1)
		if err != nil {
			return err
		}
		for node, most := range map[string]float64{"relisting": 1.2, "streaming": 0.2} {
			var late, running []float64
			for _, name := range pods[node] {
				delay := time.Duration(0)
				for i, run := range runs[name][1:] {
					if i > 0 {
						delay = min(initial<<(i-1), limit)
					}
					by := run.created.Sub(runs[name][i].finished) - delay
					if by < 0 {
						return fmt.Errorf("restart %d of %s came %v early", i+1, name, -by)
					}
					late = append(late, by.Seconds())
					running = append(running, by.Seconds()+run.started.Sub(run.created).Seconds())
				}
			}
			b.Add(harness.Alone(fmt.Sprintf("CrashLoopBackOff, %s, %s: the latest of %d restarts, none early", node, on, len(late)), "s", []float64{slices.Max(late)}, harness.AtMost("ours", most)).
				With("median", "s", []float64{quantile(late, 0.5)}).
				With("latest until it runs", "s", []float64{slices.Max(running)}))
		}
		return nil
	})
}

// runs collects the first n instances of each pod's container, in order. The runtime
// is asked as soon as an end is seen: dead containers do not stay for long.
func (r *agentRig) runs(ctx context.Context, names []string, n int) (map[string][]oneRun, error) {
	known := map[string]bool{}
	runs := map[string][]oneRun{}
	err := harness.Await(ctx, 10*time.Minute, "containers are not restarted", func() (bool, error) {
		done := true
		for _, name := range names {
			ends, err := r.pods.endsOf(name)
			if err != nil {
				return false, err
			}
			for id := range ends {
				if known[id] {
					continue
				}
				known[id] = true
				run, err := r.container(ctx, id)
				if err != nil {
					return false, err
				}
				runs[name] = append(runs[name], run)
			}
			done = done && len(runs[name]) >= n
		}
		return done, nil
	})
	for _, name := range names {
		slices.SortFunc(runs[name], func(a, b oneRun) int { return a.started.Compare(b.started) })
		if err == nil && len(runs[name]) < n {
			err = errors.New("an instance of " + name + " was missed")
		}
	}
	return runs, err
}
