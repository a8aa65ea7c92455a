package change

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/inspect"
	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
)

// dying tells what has become of the stopped node and of its pods; it is done when all
// of those were evicted and replaced.
func (f *failure) dying(ctx context.Context) (bool, error) {
	n, err := f.ask.Ask(ctx, f.node)
	if err != nil {
		return false, err
	}
	f.tellNode(n)
	pods, err := f.pods(ctx)
	if err != nil {
		return false, err
	}
	here, elsewhere := 0, 0
	for _, p := range pods {
		switch {
		case p.Spec.NodeName == f.node && p.DeletionTimestamp == nil:
			here++
		case p.Spec.NodeName == f.node:
			f.once("gone "+p.Name, "%s evicted; it stays Terminating: only its node can say that it has ended", p.Name)
			f.once("back-off", "the Job counts that as a failure, after which it waits 10 s or more before it makes other pods")
		case p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil:
			elsewhere++
			if f.told["tainted"] && !f.told["first "+p.Name] {
				f.once("new "+p.Name, "%s replaces it and runs on %s", p.Name, p.Spec.NodeName)
			}
		}
		if !f.told["tainted"] {
			f.told["first "+p.Name] = true
		}
	}
	return here == 0 && elsewhere == demoPods, nil
}

// tellNode tells of the node what is new, and counts its silence and the evictions in steps of 5 s.
func (f *failure) tellNode(n *inspect.NodeAnswer) {
	const step = 5 * time.Second
	every := func(key string, d time.Duration) string { return key + (d / step * step).String() }
	if s := n.Silence; s != nil && !f.told["unknown"] {
		d, grace := seconds(s.Seconds), seconds(s.Grace)
		if d >= step || s.Over {
			f.once(every("silent ", d), "%s has been silent for %v; its grace is %v", f.node, d.Truncate(time.Second), grace)
		}
	} else if s == nil && n.Trouble != "" {
		f.once("trouble "+n.Trouble, "%s: its silence is not measured: %s", f.node, n.Trouble)
	} else if s == nil {
		f.once("nobody", "no node lifecycle controller has looked at %s: does one run (deltaplane up, or serve controllers --controllers job,nodelifecycle,tainteviction)?", f.node)
	}
	for _, c := range n.Conditions {
		if c.Type == nodelifecycle.Ready && c.Status == nodelifecycle.Unknown {
			f.once("unknown", "%s is given up: Ready is Unknown, %s", f.node, c.Reason)
		}
	}
	for _, x := range taint.Evicting(n.Taints) {
		f.once("tainted", "%s is tainted %s:%s; %s", f.node, x.Key, x.Effect, n.Zone.Text())
	}
	if f.told["unknown"] && !f.told["tainted"] && n.Zone.Stopped {
		f.once("stopped", "every zone is down: nothing is tainted, a whole cluster does not die at once")
	}
	ours := func(e inspect.EvictionAnswer) bool { return strings.HasPrefix(e.Pod, demoNamespace+"/"+f.job+"-") }
	for _, e := range n.Evictions {
		left := time.Until(e.Due)
		if !ours(e) || left <= 0 {
			continue
		}
		f.once(every("due "+e.Pod, left+step-1), "eviction of %s at %s, in %v", e.Pod, e.Due.Local().Format(time.TimeOnly), left.Round(time.Second))
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// recovered says that the node is as it was, and that the pods evicted from it are gone.
func (f *failure) recovered(ctx context.Context) (bool, error) {
	n, err := f.ask.Ask(ctx, f.node)
	if err != nil {
		return false, err
	}
	for _, c := range n.Conditions {
		if c.Type == nodelifecycle.Ready && c.Status != nodelifecycle.True {
			return false, nil
		}
	}
	pods, err := f.pods(ctx)
	if err != nil {
		return false, err
	}
	for _, p := range pods {
		if p.Spec.NodeName == f.node && p.DeletionTimestamp != nil {
			return false, nil
		}
	}
	return len(taint.Evicting(n.Taints)) == 0, nil
}
