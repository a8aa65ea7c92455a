package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	observed "github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/test/node/containerd"
)

// Family holds the figures of the node agent, on a real containerd where one can run.
func Family() harness.Family {
	return harness.Family{
		Name:  "agent",
		About: "container exit to pod status, the cost of relisting, a hung runtime call, 110 pods at once, the schedule of restarts",
		Parts: []harness.Part{
			{Name: "exit", Run: exitToStatus},
			{Name: "relist", Run: relistCost},
			{Name: "hung", Run: hungCall},
			{Name: "start", Run: podsAtOnce},
			{Name: "crash", Run: restartSchedule},
		},
	}
}

// onBoth runs work on a real containerd, where one can run, and on the simulated runtime.
func onBoth(ctx context.Context, b *harness.Bench, name string, work func(ctx context.Context, r *agentRig, on string) error) error {
	for _, real := range []bool{true, false} {
		on := map[bool]string{true: "containerd", false: "simulated"}[real]
		err := func() (err error) {
			r, err := newAgentRig(ctx, b, name+"-"+on, real)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, r.close()) }()
			if real {
				b.Report.Machine.Versions["containerd"] = r.real.Programs().Version
			}
			return work(ctx, r, on)
		}()
		if errors.Is(err, containerd.ErrMissing) {
			b.LeaveOut(name+" on containerd", err.Error())
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exitToStatus lets containers end and measures how long it takes until a watch of
// the API server shows it, at two nodes of one runtime: one relists every second, the
// other follows the runtime's events.
func exitToStatus(ctx context.Context, b *harness.Bench) error {
	n := harness.Pick(b, 20, 60)
	b.Note("exit: pods of one container each that ends after 1 s, one made every 0.8 s on each node in turn (simulated: every 150 ms); from the runtime's finishedAt to the watch event that shows it terminated, by one clock")
	return onBoth(ctx, b, "exit", func(ctx context.Context, r *agentRig, on string) error {
		for node, events := range map[string]bool{"relisting": false, "streaming": true} {
			if _, err := r.agent(ctx, node, events, 0, 0); err != nil {
				return err
			}
		}
		pace := 75 * time.Millisecond
		if r.real != nil {
			pace = 400 * time.Millisecond // a sandbox and a container of a real runtime take a tenth of a second of CPU and more
		}
		pods := map[string][]string{}
		for range n {
			for _, node := range []string{"relisting", "streaming"} {
				name, err := r.create(ctx, benchPod{node: node, forNow: time.Second})
				if err != nil {
					return err
				}
				pods[node] = append(pods[node], name)
				time.Sleep(pace)
			}
		}
		late := map[string][]float64{}
		for node, names := range pods {
			got, err := r.exits(ctx, names)
			if err != nil {
				return err
			}
			late[node] = got
		}
		p99 := func(node string) []float64 { return []float64{quantile(late[node], 0.99)} }
		b.Add(harness.Compare("container exit -> pod status, p50, events, "+on, "ms", []float64{quantile(late["streaming"], 0.5)}, "relist",
			[]float64{quantile(late["relisting"], 0.5)}, nil))
		b.Add(harness.Compare("container exit -> pod status, p99, events, "+on, "ms", p99("streaming"), "relist", p99("relisting"), nil))
		return nil
	})
}

// exits waits for the end of each pod's container and returns how late it was seen, in ms.
func (r *agentRig) exits(ctx context.Context, names []string) (late []float64, err error) {
	for _, name := range names {
		var ends map[string]time.Time
		err := harness.Await(ctx, 2*time.Minute, "the end of "+name+" was not seen", func() (bool, error) {
			ends, err = r.pods.endsOf(name)
			return len(ends) > 0, err
		})
		if err != nil {
			return nil, err
		}
		for id, seen := range ends {
			run, err := r.container(ctx, id)
			if err != nil {
				return nil, err
			}
			late = append(late, float64(seen.Sub(run.finished).Microseconds())/1000)
		}
	}
	return late, nil
}

func quantile(values []float64, q float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// relistCost measures what a node full of pods that do nothing costs an agent that
// relists every second, beside one that follows events.
func relistCost(ctx context.Context, b *harness.Bench) error {
	window := harness.Pick(b, 4*time.Second, 15*time.Second)
	b.Note("relist: simulated runtime in a process of its own; CPU is the agent's alone, over %v, with its resyncs and heartbeats; the p99 is the least bound of a bucket of the agent's own histogram that holds 99 in 100", window)
	if b.Quick {
		b.LeaveOut("relisting 500 pods", "--quick")
	}
	for _, n := range harness.Pick(b, []int{110}, []int{110, 500}) {
		cpu := map[bool]float64{}
		var mean, p99 float64
		for _, events := range []bool{false, true} {
			err := func() (err error) {
				r, err := newAgentRig(ctx, b, fmt.Sprintf("relist-%d-%t", n, events), false)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, r.close()) }()
				c, err := r.agent(ctx, "full", events, 0, 0)
				if err != nil {
					return err
				}
				if _, err := r.fill(ctx, n, "full", 2*time.Minute); err != nil {
					return err
				}
				time.Sleep(3 * time.Second) // what follows a start has passed
				var was, is relists
				before, err := c.Usage()
				if err != nil {
					return err
				}
				if err := c.Call("relists", nil, &was); err != nil {
					return err
				}
				time.Sleep(window)
				after, err := c.Usage()
				if err != nil {
					return err
				}
				if err := c.Call("relists", nil, &is); err != nil {
					return err
				}
				cpu[events] = float64((after.CPU - before.CPU).Microseconds()) / 1000 / window.Seconds()
				if !events {
					var looks uint64
					if looks, mean, p99 = is.since(was); looks == 0 {
						return errors.New("the agent did not look at its runtime")
					}
				}
				return nil
			}()
			if err != nil {
				return err
			}
		}
		b.Add(harness.Compare(fmt.Sprintf("agent with %d idle pods, relisting every second", n), "ms CPU/s", []float64{cpu[false]}, "events", []float64{cpu[true]}, nil).
			With("relist mean", "ms", []float64{1000 * mean}).With("relist p99 at most", "ms", []float64{1000 * p99}))
	}
	return nil
}

// hungCall lets the runtime never answer about one pod, and measures what that does to the others.
func hungCall(ctx context.Context, b *harness.Bench) (err error) {
	n := harness.Pick(b, 20, 60)
	r, err := newAgentRig(ctx, b, "hung", false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if _, err := r.agent(ctx, "full", false, 0, 0); err != nil {
		return err
	}
	victim, err := r.create(ctx, benchPod{node: "full", forNow: 8 * time.Second})
	if err != nil {
		return err
	}
	round := func() ([]float64, error) {
		var names []string
		for range n {
			name, err := r.create(ctx, benchPod{node: "full", forNow: time.Second})
			if err != nil {
				return nil, err
			}
			names = append(names, name)
			time.Sleep(50 * time.Millisecond)
		}
		return r.exits(ctx, names)
	}
	free, err := round()
	if err != nil {
		return err
	}
	boxes, err := r.cri.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{observed.LabelPodName: victim}}})
	if err != nil || len(boxes.GetItems()) != 1 {
		return errors.Join(err, fmt.Errorf("%s has %d sandboxes", victim, len(boxes.GetItems())))
	}
	if err := r.sim.Call("hang", boxes.GetItems()[0].GetId(), nil); err != nil {
		return err
	}
	time.Sleep(4 * time.Second) // its container ends, and the agent asks about it
	hung, err := round()
	if err != nil {
		return err
	}
	if ends, err := r.pods.endsOf(victim); err != nil || len(ends) > 0 {
		return errors.Join(err, errors.New("the runtime hangs, but the end of its container was seen"))
	}
	if err := r.sim.Call("hang", "", nil); err != nil {
		return err
	}
	if _, err := r.exits(ctx, []string{victim}); err != nil {
		return err
	}
	b.Note("hung: relisting every second; the runtime never answers about one pod whose container ended, while %d others end; then it does, and that end is seen as well", n)
	b.Add(harness.Compare("container exit -> pod status, p99, while a status call hangs", "ms", []float64{quantile(hung, 0.99)}, "none hangs", []float64{quantile(free, 0.99)}, nil).
		With("median", "ms", []float64{quantile(hung, 0.5)}).With("median, none hangs", "ms", []float64{quantile(free, 0.5)}))
	return nil
}

// podsAtOnce makes 110 pods in one go.
func podsAtOnce(ctx context.Context, b *harness.Bench) error {
	n := harness.Pick(b, 20, 110)
	return onBoth(ctx, b, "start", func(ctx context.Context, r *agentRig, on string) error {
		c, err := r.agent(ctx, "fresh", true, 0, 0)
		if err != nil {
			return err
		}
		before, err := c.Usage()
		if err != nil {
			return err
		}
		began := time.Now()
		names, err := r.fill(ctx, n, "fresh", 5*time.Minute)
		if err != nil {
			return err
		}
		after, err := c.Usage()
		if err != nil {
			return err
		}
		var last time.Time
		r.pods.mu.Lock()
		for _, name := range names {
			last = harness.Later(last, r.pods.ran[name])
		}
		r.pods.mu.Unlock()
		b.Add(harness.Alone(fmt.Sprintf("%d pods created at once until all are Running, %s", n, on), "s", []float64{last.Sub(began).Seconds()}, nil).
			With("agent CPU", "ms", []float64{float64((after.CPU - before.CPU).Milliseconds())}).
			With("agent peak memory", "MB", []float64{float64(after.PeakRSS) / 1e6}))
		return nil
	})
}
