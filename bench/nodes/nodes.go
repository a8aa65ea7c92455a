package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// Family holds the figures of node failure: from a kubelet's silence to the
// eviction of its pods.
func Family() harness.Family {
	return harness.Family{
		Name:  "nodes",
		About: "silence to taint to eviction, the same beside kube-controller-manager, the schedule of a zone's rate, cost of heartbeats, evictions across a kill of everything",
		Parts: []harness.Part{
			{Name: "silence", Run: silenceToEviction},
			{Name: "beside", Run: besideManager},
			{Name: "rates", Run: zoneRates},
			{Name: "kill", Run: evictionsAcrossAKill},
			{Name: "heartbeats", Run: heartbeatCost},
		},
	}
}

// Times are a tenth of the defaults, so that a run stays short; what is measured is
// the time beyond them.
const (
	tenthHeartbeat = time.Second
	tenthGrace     = 5 * time.Second
	tenthLiveness  = 500 * time.Millisecond
)

func tenths(nodes int) plane.PlaneConfig {
	return plane.PlaneConfig{Nodes: nodes, Heartbeat: tenthHeartbeat, Grace: tenthGrace, Liveness: tenthLiveness}
}

// silenceToEviction stops kubelets one after the other and measures how long after
// the end of their grace they are tainted, and how long after that their pod goes.
func silenceToEviction(ctx context.Context, b *harness.Bench) (err error) {
	trials := harness.Pick(b, 20, 30)
	p, err := plane.StartPlane(ctx, b, "silence", tenths(2*trials))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	s, err := watchNodes(ctx, p.Kube)
	defer s.close()
	if err != nil {
		return err
	}
	if err := p.Nodes.Bind(ctx, trials, 1, taint.Unreachable, func(int) int { return 0 }); err != nil {
		return err
	}
	if err := p.Control(ctx, 1, 1000, "nodelifecycle", "tainteviction"); err != nil {
		return err
	}
	time.Sleep(2 * tenthHeartbeat) // every node is seen to be alive
	p.Silence(0, trials, 130*time.Millisecond, true)
	if err := harness.Await(ctx, time.Minute, "not every pod was evicted", s.count(func() int { return len(s.gone) }, trials)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var beyond, deleted []float64
	for i := range trials {
		at, ok := s.tainted[plane.KubeletName(i)]
		if !ok {
			return fmt.Errorf("the pod of %s went, but no taint was seen", plane.KubeletName(i))
		}
		beyond = append(beyond, (at.Sub(s.renewed[plane.KubeletName(i)]) - tenthGrace).Seconds())
		deleted = append(deleted, s.gone[plane.PodName(i)].Sub(at).Seconds())
	}
	if slices.Min(beyond) < -0.1 {
		return fmt.Errorf("a node was tainted %v s before the end of its grace", -slices.Min(beyond))
	}
	b.Note("silence: %d nodes of %d stop, one every 130 ms; heartbeats every %v, grace %v, liveness %v, a tenth of the defaults; from the last renewal as a watch of the API server saw it", trials, 2*trials, tenthHeartbeat, tenthGrace, tenthLiveness)
	b.Add(harness.Alone("last heartbeat -> NoExecute taint, beyond the grace", "s", beyond, harness.AtMost("ours", 1)).With("greatest", "s", []float64{slices.Max(beyond)}))
	b.Add(harness.Alone("taint -> its first pod deleted", "s", deleted, harness.AtMost("ours", 1)).With("greatest", "s", []float64{slices.Max(deleted)}))
	return nil
}

// zoneRates lets many nodes of one zone die at once and measures how long it takes
// to taint them, against the schedule that the rate implies.
func zoneRates(ctx context.Context, b *harness.Bench) (err error) {
	const zone = 200
	p, err := plane.StartPlane(ctx, b, "rates", tenths(zone))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	s, err := watchNodes(ctx, p.Kube)
	defer s.close()
	if err != nil {
		return err
	}
	b.Note("rates: a bucket of one token does not make up for a token that is taken late, so that what a busy machine delays adds up; at the default of one node in 10 s a hundredth of a second is 0.1 %%")
	b.Note("rates: timed from the first taint after all were known to be silent: before, fewer nodes wait than there are tokens")
	for _, c := range []struct {
		dead     int
		rate     float64
		replicas int
		full     bool
	}{{10, 1, 1, true}, {100, 2.5, 1, true}, {10, 1, 3, false}, {100, 2.5, 3, true}} {
		if c.full && b.Quick {
			b.LeaveOut(fmt.Sprintf("%d dead nodes, %d replicas", c.dead, c.replicas), "--quick")
			continue
		}
		if err := p.Control(ctx, c.replicas, c.rate, "nodelifecycle"); err != nil {
			return err
		}
		time.Sleep(2 * tenthHeartbeat)
		p.Silence(0, c.dead, 0, true)
		if err := harness.Await(ctx, 2*time.Minute, "not every dead node was tainted", s.count(func() int { return len(s.tainted) }, c.dead)); err != nil {
			return err
		}
		s.mu.Lock()
		var known time.Time // when the last of them is known to be silent; the queue never runs dry from then on
		for i := range c.dead {
			known = harness.Later(known, s.renewed[plane.KubeletName(i)].Add(tenthGrace+2*tenthLiveness))
		}
		at := slices.SortedFunc(maps.Values(s.tainted), time.Time.Compare)
		s.mu.Unlock()
		at = slices.DeleteFunc(at, func(t time.Time) bool { return t.Before(known) })
		if len(at) < c.dead/2 {
			return fmt.Errorf("only %d of %d nodes were tainted after all were known to be silent", len(at), c.dead)
		}
		took, exact := at[len(at)-1].Sub(at[0]).Seconds(), float64(len(at)-1)/c.rate
		off := took/exact - 1
		b.Add(harness.Alone(fmt.Sprintf("%d dead nodes of %d in a zone at %g/s, %d replicas: off the schedule", c.dead, zone, c.rate, c.replicas),
			"%", []float64{100 * harness.Abs(off)}, harness.AtMost("ours", 2)).
			With("took", "s", []float64{took}).With("schedule", "s", []float64{exact}).With("each", "ms late", []float64{1000 * (took - exact) / float64(len(at)-1)}))
		p.Silence(0, c.dead, 0, false)
		if err := harness.Await(ctx, time.Minute, "taints of living nodes stay", s.count(func() int { return len(s.tainted) }, 0)); err != nil {
			return err
		}
		if err := p.Release(); err != nil {
			return err
		}
	}
	return nil
}

// evictionsAcrossAKill plans evictions, kills every process of ours while they are
// counted down, and starts them again.
func evictionsAcrossAKill(ctx context.Context, b *harness.Bench) (err error) {
	const (
		on    = 20
		pods  = 1000
		first = 15 // seconds of the shortest toleration
		key   = "bench"
	)
	p, err := plane.StartPlane(ctx, b, "kill", plane.PlaneConfig{Nodes: on, Heartbeat: 10 * time.Second, Grace: 50 * time.Second, Liveness: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	s, err := watchNodes(ctx, p.Kube)
	defer s.close()
	if err != nil {
		return err
	}
	seconds := func(i int) int { return first + i/on%10 }
	if err := p.Nodes.Bind(ctx, on, pods/on, key, seconds); err != nil {
		return err
	}
	if err := p.Control(ctx, 1, 1, "tainteviction"); err != nil {
		return err
	}
	placed := time.Now().Truncate(time.Second)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": []taint.Taint{{Key: key, Effect: taint.NoExecute, TimeAdded: &placed}}}})
	if err != nil {
		return err
	}
	for i := range on {
		if _, err := p.Kube.Patch(ctx, kube.Ref{Resource: plane.PlaneNode, Name: plane.KubeletName(i)}, kube.MergePatch, patch, kube.WriteOptions{}); err != nil {
			return err
		}
	}
	conn, err := rpc.Dial(p.Cfg.Queue, rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	err = harness.Await(ctx, first*time.Second, "not every eviction was planned", func() (bool, error) {
		counts, err := client.NewQueue(conn, "dev/tainteviction", "").Len(ctx)
		return counts.Delayed >= pods, err
	})
	if err != nil {
		return err
	}
	planned := time.Since(placed)
	if err := p.Kill(); err != nil {
		return err
	}
	down := time.Now()
	if err := p.Start(ctx); err != nil {
		return err
	}
	if err := p.Control(ctx, 1, 1, "tainteviction"); err != nil {
		return err
	}
	back := time.Since(down)
	if time.Since(placed) > first*time.Second {
		return fmt.Errorf("the processes were back only %v after the taint, when the first pod was due", time.Since(placed))
	}
	limited, cancel := context.WithDeadline(ctx, placed.Add((first+10+20)*time.Second))
	defer cancel()
	_ = harness.Await(limited, time.Minute, "", s.count(func() int { return len(s.gone) }, pods)) // those that are missing are counted
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	var late []float64
	for i := range pods {
		if at, ok := s.gone[plane.PodName(i)]; ok {
			// The pod was bound before the taint was placed, so that the taint's time counts.
			late = append(late, at.Sub(placed.Add(time.Duration(seconds(i))*time.Second)).Seconds())
		}
	}
	b.Note("kill: %d evictions planned %.1f s after the taint, tolerated for %d to %d s; log, queue (memory engine with a log on disk), index, reflector and controllers killed, all back after %.1f s", pods, planned.Seconds(), first, first+9, back.Seconds())
	b.Add(harness.Alone("evictions lost over a kill -9 of everything, of 1,000", "", []float64{float64(pods - len(late))}, harness.AtMost("ours", 0)))
	if len(late) > 0 {
		b.Add(harness.Alone("their greatest distance from the deadline", "s", []float64{max(slices.Max(late), -slices.Min(late))}, harness.AtMost("ours", 1)).
			With("median", "s", late).With("earliest", "s", []float64{slices.Min(late)}))
	}
	return nil
}

// heartbeatCost measures what a cluster at rest costs each of our processes.
func heartbeatCost(ctx context.Context, b *harness.Bench) (err error) {
	if b.Quick {
		b.LeaveOut("500 nodes of 30 pods with heartbeats every 10 s: CPU and memory", "--quick")
		return nil
	}
	const nodes, each = 500, 30
	p, err := plane.StartPlane(ctx, b, "heartbeats", plane.PlaneConfig{Nodes: nodes, Heartbeat: 10 * time.Second, Grace: 50 * time.Second, Liveness: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Nodes.Bind(ctx, nodes, each, "bench", func(int) int { return 300 }); err != nil {
		return err
	}
	if err := p.Control(ctx, 1, 0.1, "nodelifecycle", "tainteviction"); err != nil {
		return err
	}
	time.Sleep(20 * time.Second) // every key was looked at once
	const window = 30 * time.Second
	parts := map[string]*harness.Child{"controllers": p.Workers[0]}
	maps.Copy(parts, p.Parts)
	before := map[string]harness.Usage{}
	for name, c := range parts {
		if before[name], err = c.Usage(); err != nil {
			return err
		}
	}
	time.Sleep(window)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		after, err := parts[name].Usage()
		if err != nil {
			return err
		}
		cpu := 100 * (after.CPU - before[name].CPU).Seconds() / window.Seconds()
		b.Add(harness.Alone(fmt.Sprintf("%d nodes x %d pods, heartbeats every 10 s: CPU of %s", nodes, each, name), "% of a core", []float64{cpu}, nil).
			With("peak RSS", "MB", []float64{float64(after.PeakRSS) / 1e6}))
	}
	return nil
}
