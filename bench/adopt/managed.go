package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/plane"
	"github.com/deltaplane/deltaplane/internal/kube"
)

var pods = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}

// operatorModule is an operator on controller-runtime. As heavy a dependency as that is, it has a
// module of its own.
const operatorModule = "./bench/operator"

// measures are what an operator prints of itself.
type measures map[string]float64

// managed compares an operator on controller-runtime that has handlers on all pods, and owns a few
// ConfigMaps, with the same one on its own cache and queue.
func managed(ctx context.Context, b *harness.Bench) (err error) {
	many, owned, each := harness.Pick(b, 5_000, 100_000), harness.Pick(b, 200, 1000), 30
	binary := b.PathIn("operator-program")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, ".") //nolint:gosec // of this repository
	build.Dir = operatorModule
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", operatorModule, err, out)
	}
	r, err := newRig(ctx, b, "managed", plane.PlaneConfig{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.plane.Close()) }()
	if _, err := r.write(ctx, oursName, owned, 0); err != nil {
		return err
	}
	b.Say("managed: %d pods are created", many)
	if err := r.createPods(ctx, many, each); err != nil {
		return err
	}
	round := 0
	run := func(name string, args ...string) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, _ time.Duration) (map[string]float64, error) {
			round++
			args := append([]string{
				"-api", r.plane.Cfg.API, "-name", "bench-" + strconv.Itoa(round), "-node", "node-1", "-owned", strconv.Itoa(owned), "-pods", strconv.Itoa(many),
				"-reads", strconv.Itoa(harness.Pick(b, 300, 2000)), "-empty", strconv.Itoa(harness.Pick(b, 2000, 20_000)),
			}, args...)
			return measure(ctx, binary, args)
		}}
	}
	table, err := harness.Interleave(ctx, b, b.Plan("managed", 1, 3, time.Second, time.Second),
		run(oursName, "-index", r.plane.Cfg.Index, "-queue", r.plane.Cfg.Queue), run(peerName))
	if err != nil {
		return err
	}
	b.Note("managed: %d pods, %d on each node, and %d ConfigMaps; one replica, handlers on both kinds, 8 workers", many, each, owned)
	show := func(name, unit, of string, t *harness.Target) {
		b.Add(harness.Compare(name, unit, table.Of(oursName, of), "its own cache and queue", table.Of(peerName, of), t))
	}
	show("memory (RSS) of an operator on controller-runtime, remote cache", "B", "rss", harness.AtMost("ratio", 1.0/15))
	show("start to first reconcile", "s", "first", harness.AtMost("ratio", 0.1))
	show("Get of a pod, p50", "ms", "get_p50", harness.AtMost("ours", 0.25))
	show("Get of a pod, p99", "ms", "get_p99", harness.AtMost("ours", 1))
	show("List of the pods of a node, p50", "ms", "list_p50", harness.AtMost("ours", 0.4))
	show("List of the pods of a node, p99", "ms", "list_p99", harness.AtMost("ours", 1.5))
	show("reconciles that do nothing, one replica", "/s", "rate", harness.AtLeast("ratio", 0.5))
	return nil
}

// measure runs the program.
func measure(ctx context.Context, binary string, args []string) (measures, error) {
	ctx, cancel := context.WithTimeout(ctx, 12*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	var failure strings.Builder
	cmd.Stderr = &failure
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", binary, strings.Join(args, " "), err, failure.String())
	}
	var m measures
	return m, json.Unmarshal(out, &m)
}

// createPods creates pods, so many on each node.
func (r *rig) createPods(ctx context.Context, n, each int) error {
	var env []map[string]string
	for i := range 20 {
		env = append(env, map[string]string{"name": "SETTING_" + strconv.Itoa(i), "value": strings.Repeat("v", 40)})
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error {
			body, err := json.Marshal(map[string]any{
				"apiVersion": "v1", "kind": "Pod",
				"metadata": map[string]any{"name": "p-" + strconv.Itoa(i), "namespace": peerName, "labels": map[string]string{"app": "bench"}},
				"spec": map[string]any{
					"nodeName": "node-" + strconv.Itoa(i/each), "containers": []any{map[string]any{"name": "c", "image": "registry.example.com/app:1.2.3", "env": env}},
				},
			})
			if err != nil {
				return err
			}
			_, err = r.plane.Kube.Create(ctx, pods.Ref(peerName, ""), body, kube.WriteOptions{})
			return err
		})
	}
	return g.Wait()
}
