package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// NewDemo is the command "demo" and those below it.
func NewDemo() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch Deltaplane at work on simulated nodes",
	}
	cmd.AddCommand(newDemoNodeFailure())
	cli.Group(cmd)
	return cmd
}

var jobResource = kube.Resource{Group: "batch", Version: "v1", Name: "jobs", Kind: "Job", Namespaced: true}

// demoNamespace is where the demo's Job lives, demoPods how many it has.
const (
	demoNamespace = "default"
	demoPods      = 4
)

// failure is one run of the demo of a node's failure.
type failure struct {
	ask   inspect.NodeQuestion
	kube  *kube.Client
	index *client.Index
	out   io.Writer

	job   string
	stay  time.Duration
	limit time.Duration

	node string
	told map[string]bool
}

func newDemoNodeFailure() *cobra.Command {
	var f failure
	var k cli.KubeFlags
	var keep bool
	cmd := &cobra.Command{
		Use:   "node-failure",
		Short: "Let a node die, watch its pods being evicted and replaced, and let it come back",
		Long: fmt.Sprintf(`Create a Job of %d pods, stop the agent of the simulated node that runs most of them, and tell
what happens: how long the node is silent, that it is given up and tainted, when its pods are
to be evicted, the pods that replace them on other nodes. Then the agent is started again,
the node recovers, and the Job is deleted.

It takes the grace period of the node lifecycle controller (20 s in "deltaplane up") and
--stay together, and a few seconds more. It needs two nodes of "up" or "serve node
--simulated-nodes", and the controllers job, nodelifecycle and tainteviction.`, demoPods),
		Example: `  deltaplane demo node-failure
  deltaplane demo node-failure --stay 30s      # time for "describe node" in another terminal`,
		Args: cli.Args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.stay < time.Second || f.limit <= 0 {
				return &cli.UsageError{Err: fmt.Errorf("--stay %v must be a second or more, and --limit %v above zero", f.stay, f.limit)}
			}
			if f.kube, err = k.Load(); err != nil {
				return err
			}
			defer f.kube.Close()
			conn, err := cli.Dial(f.ask.Index, f.ask.Config)
			if err != nil {
				return err
			}
			defer conn.Close()
			f.index, f.out, f.told = client.NewIndex(conn), cmd.OutOrStdout(), map[string]bool{}
			ctx, cancel := context.WithTimeout(cmd.Context(), f.limit)
			defer cancel()
			err = f.run(ctx)
			// What was begun is put right also when it was interrupted.
			return errors.Join(err, f.clean(context.WithoutCancel(ctx), keep))
		},
	}
	flags := cmd.Flags()
	f.ask.Register(flags)
	k.Register(flags)
	flags.StringVar(&f.ask.Cluster, "cluster", "dev", "`name` of the cluster, the first part of its collections' names")
	flags.DurationVar(&f.stay, "stay", 10*time.Second, "how long the pods tolerate a dead node, in whole seconds")
	flags.DurationVar(&f.limit, "limit", 5*time.Minute, "when to give up")
	flags.BoolVar(&keep, "keep", false, "leave the Job where it is")
	return cmd
}

// say prints one line under the time of day.
func (f *failure) say(format string, values ...any) {
	fmt.Fprintf(f.out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// once says something the first time that it is so.
func (f *failure) once(key, format string, values ...any) {
	if !f.told[key] {
		f.told[key] = true
		f.say(format, values...)
	}
}

func (f *failure) run(ctx context.Context) error {
	nodes, err := f.nodes(ctx)
	if err != nil {
		return err
	}
	if len(nodes) < 2 {
		return &cli.HintError{Err: fmt.Errorf("%d nodes are ready, and the demo needs two", len(nodes)), Hint: `"deltaplane up" has three, "deltaplane serve node --simulated-nodes 3" adds some to a cluster`}
	}
	if err := f.create(ctx); err != nil {
		return err
	}
	if err := f.until(ctx, "its pods to run", f.choose); err != nil {
		return err
	}
	if err := setStopped(ctx, f.kube, f.node, true); err != nil {
		return err
	}
	f.say("%s stopped: its agent falls silent, its containers go on   (deltaplane node stop %s)", f.node, f.node)
	if err := f.until(ctx, "the evictions of its pods", f.dying); err != nil {
		return err
	}
	if err := setStopped(ctx, f.kube, f.node, false); err != nil {
		return err
	}
	f.say("%s started: its agent finds its containers, and that their pods are to go   (deltaplane node start %s)", f.node, f.node)
	if err := f.until(ctx, "its recovery", f.recovered); err != nil {
		return err
	}
	f.say("%s is ready again, its taints are gone, and so are the pods that were evicted", f.node)
	return nil
}

// until asks twice a second until done says so.
func (f *failure) until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		yes, err := done(ctx)
		if yes {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("waited in vain for %s: --limit %v is over", what, f.limit)
			}
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// nodes are those that are ready.
func (f *failure) nodes(ctx context.Context) ([]string, error) {
	collection := delta.Collection{Cluster: f.ask.Cluster, Version: "v1", Resource: "nodes"}.String()
	objs, _, err := f.index.List(ctx, collection, client.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ready []string
	for _, o := range objs {
		var n nodelifecycle.Node
		if err := json.Unmarshal(o.Payload, &n); err != nil {
			return nil, fmt.Errorf("node %s: %w", o.Key, err)
		}
		if n.Ready() == nodelifecycle.True {
			ready = append(ready, o.Key)
		}
	}
	return ready, nil
}

func (f *failure) create(ctx context.Context) error {
	f.job = "node-failure-" + time.Now().Format("150405")
	seconds := int64(f.stay / time.Second)
	tolerations := []corev1.Toleration{}
	for _, key := range []string{taint.NotReady, taint.Unreachable} {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds})
	}
	job, err := json.Marshal(map[string]any{
		"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": f.job, "labels": map[string]string{"app": "demo"}},
		"spec": map[string]any{"parallelism": demoPods, "completions": demoPods, "template": map[string]any{
			"metadata": map[string]any{"labels": map[string]string{"app": "demo"}, "annotations": map[string]string{"deltaplane.io/run-seconds": "forever"}},
			"spec": map[string]any{
				"restartPolicy": "Never", "tolerations": tolerations, "containers": []any{map[string]any{"name": "main", "image": "busybox"}},
			},
		}},
	})
	if err != nil {
		return err
	}
	if _, err = f.kube.Create(ctx, kube.Ref{Resource: jobResource, Namespace: demoNamespace}, job, kube.WriteOptions{}); err != nil {
		return err
	}
	f.say("Job %s: %d pods that tolerate a dead node for %v", f.job, demoPods, f.stay)
	return nil
}

// pods are the Job's, in the order of their names.
func (f *failure) pods(ctx context.Context) ([]corev1.Pod, error) {
	collection := delta.Collection{Cluster: f.ask.Cluster, Version: "v1", Resource: "pods"}.String()
	objs, _, err := f.index.List(ctx, collection, client.ListOptions{Labels: "job-name=" + f.job, Namespace: demoNamespace})
	if err != nil {
		return nil, err
	}
	pods := make([]corev1.Pod, len(objs))
	for i, o := range objs {
		if err := json.Unmarshal(o.Payload, &pods[i]); err != nil {
			return nil, fmt.Errorf("pod %s: %w", o.Key, err)
		}
	}
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, nil
}

// choose waits for the pods to run, and picks the node that runs most of them.
func (f *failure) choose(ctx context.Context) (bool, error) {
	pods, err := f.pods(ctx)
	if err != nil {
		return false, err
	}
	count := map[string]int{}
	for _, p := range pods {
		if p.Status.Phase == corev1.PodRunning {
			count[p.Spec.NodeName]++
		}
	}
	var where []string
	total := 0
	for _, node := range slices.Sorted(maps.Keys(count)) {
		where = append(where, fmt.Sprintf("%d on %s", count[node], node))
		total += count[node]
		if count[node] > count[f.node] {
			f.node = node
		}
	}
	if total < demoPods {
		f.node = ""
		return false, nil
	}
	f.say("all run: %s", strings.Join(where, ", "))
	return true, nil
}

// clean starts the node again, if it was stopped, and deletes the Job.
func (f *failure) clean(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	if f.node != "" {
		if err := setStopped(ctx, f.kube, f.node, false); err != nil {
			errs = append(errs, fmt.Errorf("%s may still be stopped (deltaplane node start %s): %w", f.node, f.node, err))
		}
	}
	if f.job != "" && !keep {
		_, err := f.kube.Delete(ctx, kube.Ref{Resource: jobResource, Namespace: demoNamespace, Name: f.job}, kube.DeleteOptions{Propagation: "Background"})
		if err != nil {
			errs = append(errs, fmt.Errorf("the Job %s may still be there: %w", f.job, err))
		} else {
			f.say("Job %s deleted", f.job)
		}
	}
	return errors.Join(errs...)
}
