package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/rpc"
)

// nodesFamily holds the figures of node failure: from a kubelet's silence to the
// eviction of its pods.
func nodesFamily() family {
	return family{
		name:  "nodes",
		about: "silence to taint to eviction, the same beside kube-controller-manager, the schedule of a zone's rate, cost of heartbeats, evictions across a kill of everything",
		parts: []part{
			{"silence", silenceToEviction},
			{"beside", besideManager},
			{"rates", zoneRates},
			{"kill", evictionsAcrossAKill},
			{"heartbeats", heartbeatCost},
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

func tenths(nodes int) planeConfig {
	return planeConfig{Nodes: nodes, Heartbeat: tenthHeartbeat, Grace: tenthGrace, Liveness: tenthLiveness}
}

// silenceToEviction stops kubelets one after the other and measures how long after
// the end of their grace they are tainted, and how long after that their pod goes.
func silenceToEviction(ctx context.Context, b *bench) (err error) {
	trials := pick(b, 20, 30)
	p, err := startPlane(ctx, b, "silence", tenths(2*trials))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	s, err := watchNodes(ctx, p.kube)
	defer s.close()
	if err != nil {
		return err
	}
	if err := p.nodes.bind(ctx, trials, 1, taint.Unreachable, func(int) int { return 0 }); err != nil {
		return err
	}
	if err := p.control(ctx, 1, 1000, "nodelifecycle", "tainteviction"); err != nil {
		return err
	}
	time.Sleep(2 * tenthHeartbeat) // every node is seen to be alive
	p.silence(0, trials, 130*time.Millisecond, true)
	if err := await(ctx, time.Minute, "not every pod was evicted", s.count(func() int { return len(s.gone) }, trials)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var beyond, deleted []float64
	for i := range trials {
		at, ok := s.tainted[kubeletName(i)]
		if !ok {
			return fmt.Errorf("the pod of %s went, but no taint was seen", kubeletName(i))
		}
		beyond = append(beyond, (at.Sub(s.renewed[kubeletName(i)]) - tenthGrace).Seconds())
		deleted = append(deleted, s.gone[podName(i)].Sub(at).Seconds())
	}
	if slices.Min(beyond) < -0.1 {
		return fmt.Errorf("a node was tainted %v s before the end of its grace", -slices.Min(beyond))
	}
	b.note("silence: %d nodes of %d stop, one every 130 ms; heartbeats every %v, grace %v, liveness %v, a tenth of the defaults; from the last renewal as a watch of the API server saw it", trials, 2*trials, tenthHeartbeat, tenthGrace, tenthLiveness)
	b.add(alone("last heartbeat -> NoExecute taint, beyond the grace", "s", beyond, atMost("ours", 1)).with("greatest", "s", []float64{slices.Max(beyond)}))
	b.add(alone("taint -> its first pod deleted", "s", deleted, atMost("ours", 1)).with("greatest", "s", []float64{slices.Max(deleted)}))
	return nil
}

// zoneRates lets many nodes of one zone die at once and measures how long it takes
// to taint them, against the schedule that the rate implies.
func zoneRates(ctx context.Context, b *bench) (err error) {
	const zone = 200
	p, err := startPlane(ctx, b, "rates", tenths(zone))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	s, err := watchNodes(ctx, p.kube)
	defer s.close()
	if err != nil {
		return err
	}
	b.note("rates: a bucket of one token does not make up for a token that is taken late, so that what a busy machine delays adds up; at the default of one node in 10 s a hundredth of a second is 0.1 %%")
	b.note("rates: timed from the first taint after all were known to be silent: before, fewer nodes wait than there are tokens")
	for _, c := range []struct {
		dead     int
		rate     float64
		replicas int
		full     bool
	}{{10, 1, 1, true}, {100, 2.5, 1, true}, {10, 1, 3, false}, {100, 2.5, 3, true}} {
		if c.full && b.quick {
			b.leaveOut(fmt.Sprintf("%d dead nodes, %d replicas", c.dead, c.replicas), "--quick")
			continue
		}
		if err := p.control(ctx, c.replicas, c.rate, "nodelifecycle"); err != nil {
			return err
		}
		time.Sleep(2 * tenthHeartbeat)
		p.silence(0, c.dead, 0, true)
		if err := await(ctx, 2*time.Minute, "not every dead node was tainted", s.count(func() int { return len(s.tainted) }, c.dead)); err != nil {
			return err
		}
		s.mu.Lock()
		var known time.Time // when the last of them is known to be silent; the queue never runs dry from then on
		for i := range c.dead {
			known = later(known, s.renewed[kubeletName(i)].Add(tenthGrace+2*tenthLiveness))
		}
		at := slices.SortedFunc(maps.Values(s.tainted), time.Time.Compare)
		s.mu.Unlock()
		at = slices.DeleteFunc(at, func(t time.Time) bool { return t.Before(known) })
		if len(at) < c.dead/2 {
			return fmt.Errorf("only %d of %d nodes were tainted after all were known to be silent", len(at), c.dead)
		}
		took, exact := at[len(at)-1].Sub(at[0]).Seconds(), float64(len(at)-1)/c.rate
		off := took/exact - 1
		b.add(alone(fmt.Sprintf("%d dead nodes of %d in a zone at %g/s, %d replicas: off the schedule", c.dead, zone, c.rate, c.replicas),
			"%", []float64{100 * abs(off)}, atMost("ours", 2)).
			with("took", "s", []float64{took}).with("schedule", "s", []float64{exact}).with("each", "ms late", []float64{1000 * (took - exact) / float64(len(at)-1)}))
		p.silence(0, c.dead, 0, false)
		if err := await(ctx, time.Minute, "taints of living nodes stay", s.count(func() int { return len(s.tainted) }, 0)); err != nil {
			return err
		}
		if err := p.release(); err != nil {
			return err
		}
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// evictionsAcrossAKill plans evictions, kills every process of ours while they are
// counted down, and starts them again.
func evictionsAcrossAKill(ctx context.Context, b *bench) (err error) {
	const (
		on    = 20
		pods  = 1000
		first = 15 // seconds of the shortest toleration
		key   = "bench"
	)
	p, err := startPlane(ctx, b, "kill", planeConfig{Nodes: on, Heartbeat: 10 * time.Second, Grace: 50 * time.Second, Liveness: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	s, err := watchNodes(ctx, p.kube)
	defer s.close()
	if err != nil {
		return err
	}
	seconds := func(i int) int { return first + i/on%10 }
	if err := p.nodes.bind(ctx, on, pods/on, key, seconds); err != nil {
		return err
	}
	if err := p.control(ctx, 1, 1, "tainteviction"); err != nil {
		return err
	}
	placed := time.Now().Truncate(time.Second)
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": []taint.Taint{{Key: key, Effect: taint.NoExecute, TimeAdded: &placed}}}})
	if err != nil {
		return err
	}
	for i := range on {
		if _, err := p.kube.Patch(ctx, kube.Ref{Resource: planeNode, Name: kubeletName(i)}, kube.MergePatch, patch, kube.WriteOptions{}); err != nil {
			return err
		}
	}
	conn, err := rpc.Dial(p.cfg.Queue, rpc.DialConfig{})
	if err != nil {
		return err
	}
	defer conn.Close()
	err = await(ctx, first*time.Second, "not every eviction was planned", func() (bool, error) {
		counts, err := client.NewQueue(conn, "dev/tainteviction", "").Len(ctx)
		return counts.GetDelayed() >= pods, err
	})
	if err != nil {
		return err
	}
	planned := time.Since(placed)
	if err := p.kill(); err != nil {
		return err
	}
	down := time.Now()
	if err := p.start(ctx); err != nil {
		return err
	}
	if err := p.control(ctx, 1, 1, "tainteviction"); err != nil {
		return err
	}
	back := time.Since(down)
	if time.Since(placed) > first*time.Second {
		return fmt.Errorf("the processes were back only %v after the taint, when the first pod was due", time.Since(placed))
	}
	limited, cancel := context.WithDeadline(ctx, placed.Add((first+10+20)*time.Second))
	defer cancel()
	_ = await(limited, time.Minute, "", s.count(func() int { return len(s.gone) }, pods)) // those that are missing are counted
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	var late []float64
	for i := range pods {
		if at, ok := s.gone[podName(i)]; ok {
			// The pod was bound before the taint was placed, so that the taint's time counts.
			late = append(late, at.Sub(placed.Add(time.Duration(seconds(i))*time.Second)).Seconds())
		}
	}
	b.note("kill: %d evictions planned %.1f s after the taint, tolerated for %d to %d s; log, queue (memory engine with a log on disk), index, reflector and controllers killed, all back after %.1f s", pods, planned.Seconds(), first, first+9, back.Seconds())
	b.add(alone("evictions lost over a kill -9 of everything, of 1,000", "", []float64{float64(pods - len(late))}, atMost("ours", 0)))
	if len(late) > 0 {
		b.add(alone("their greatest distance from the deadline", "s", []float64{max(slices.Max(late), -slices.Min(late))}, atMost("ours", 1)).
			with("median", "s", late).with("earliest", "s", []float64{slices.Min(late)}))
	}
	return nil
}

// heartbeatCost measures what a cluster at rest costs each of our processes.
func heartbeatCost(ctx context.Context, b *bench) (err error) {
	if b.quick {
		b.leaveOut("500 nodes of 30 pods with heartbeats every 10 s: CPU and memory", "--quick")
		return nil
	}
	const nodes, each = 500, 30
	p, err := startPlane(ctx, b, "heartbeats", planeConfig{Nodes: nodes, Heartbeat: 10 * time.Second, Grace: 50 * time.Second, Liveness: 5 * time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.nodes.bind(ctx, nodes, each, "bench", func(int) int { return 300 }); err != nil {
		return err
	}
	if err := p.control(ctx, 1, 0.1, "nodelifecycle", "tainteviction"); err != nil {
		return err
	}
	time.Sleep(20 * time.Second) // every key was looked at once
	const window = 30 * time.Second
	parts := map[string]*child{"controllers": p.workers[0]}
	maps.Copy(parts, p.parts)
	before := map[string]usage{}
	for name, c := range parts {
		if before[name], err = c.usage(); err != nil {
			return err
		}
	}
	time.Sleep(window)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		after, err := parts[name].usage()
		if err != nil {
			return err
		}
		cpu := 100 * (after.CPU - before[name].CPU).Seconds() / window.Seconds()
		b.add(alone(fmt.Sprintf("%d nodes x %d pods, heartbeats every 10 s: CPU of %s", nodes, each, name), "% of a core", []float64{cpu}, nil).
			with("peak RSS", "MB", []float64{float64(after.PeakRSS) / 1e6}))
	}
	return nil
}
