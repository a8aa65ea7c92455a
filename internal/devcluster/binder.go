package devcluster

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// binder gives pending pods a node, as a scheduler would: one that is Ready, whose
// taints the pod tolerates, whose labels it selects, with the fewest pods.
type binder struct {
	store       *store
	writer      *writer
	log         *slog.Logger
	pods, nodes *resource
	count       map[string]int      // pods per node that have not ended
	extra       map[string]int      // of those bound in this round, whose events are still to come
	pending     map[string]struct{} // keys of pods without a node
	node        map[string]*object  // nodes by name
}

// follow calls handle for the state of a resource and then every change of it, each
// followed by idle once the backlog is done, until ctx ends. A lost history starts over.
func (b *binder) follow(ctx context.Context, r *resource, reset func(), handle func(prev, cur *object), idle func(wake <-chan struct{}) bool) {
	for ctx.Err() == nil {
		t, state, rv, err := b.store.open(r, 0)
		if err != nil {
			return
		}
		reset()
		state.Ascend(func(o *object) bool { handle(nil, o); return true })
		for {
			next, err := b.store.pull(r, t, rv, pullLimit)
			if err != nil {
				break
			}
			for _, e := range next.events {
				if e.junk == nil {
					handle(e.prev, e.cur)
				}
			}
			rv = next.rv
			if len(next.events) < pullLimit && !idle(next.wake) {
				return
			}
		}
	}
}

func newBinder(s *store, kinds *registry, w *writer, log *slog.Logger) *binder {
	return &binder{store: s, writer: w, log: log, pods: kinds.get("pods"), nodes: kinds.get("nodes")}
}

// run binds pods until ctx ends.
func (b *binder) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	reset := func() { b.count, b.pending = map[string]int{}, map[string]struct{}{} }
	b.follow(ctx, b.pods, reset, b.note, func(wake <-chan struct{}) bool {
		nodesMoved := b.lookAtNodes()
		if b.bindPending() {
			return ctx.Err() == nil // our own writes come back as events
		}
		select {
		case <-wake:
		case <-nodesMoved:
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
		return true
	})
	return nil
}

// warn reports a failed write of one of the cluster's own parts, which tries again.
func warn(log *slog.Logger, part string, err error, key string) {
	log.Warn("dev cluster could not write", slog.String("part", part), slog.String("key", key), slog.Any("error", err))
}

// note keeps the counts and the list of pods that wait.
func (b *binder) note(prev, cur *object) {
	if prev != nil {
		if p := prev.obj.(*corev1.Pod); occupies(p) {
			b.count[p.Spec.NodeName]--
		}
		delete(b.pending, prev.key)
	}
	if cur == nil {
		return
	}
	p := cur.obj.(*corev1.Pod)
	if occupies(p) {
		b.count[p.Spec.NodeName]++
	}
	if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && p.Spec.SchedulerName == corev1.DefaultSchedulerName && len(p.Spec.SchedulingGates) == 0 &&
		p.Status.Phase == corev1.PodPending {
		b.pending[cur.key] = struct{}{}
	}
}

func occupies(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// lookAtNodes refreshes the nodes and returns what is closed when they change.
func (b *binder) lookAtNodes() <-chan struct{} {
	b.node = map[string]*object{}
	moved := make(chan struct{})
	close(moved)
	t, state, rv, err := b.store.open(b.nodes, 0)
	if err != nil {
		return moved
	}
	state.Ascend(func(o *object) bool { b.node[o.key] = o; return true })
	pulled, err := b.store.pull(b.nodes, t, rv, 1)
	if err != nil || len(pulled.events) > 0 {
		return moved
	}
	return pulled.wake
}

// bindPending binds what can be bound and reports whether it wrote anything.
func (b *binder) bindPending() bool {
	wrote := false
	b.extra = map[string]int{}
	for key := range b.pending {
		o := b.store.get(b.pods, key)
		if o == nil {
			delete(b.pending, key)
			continue
		}
		pod := o.obj.(*corev1.Pod)
		node := b.choose(pod)
		if node == "" {
			wrote = b.unschedulable(key, pod) || wrote
			continue
		}
		if err := b.writer.bind(key, node, false); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			warn(b.log, "binder", err, key)
			continue
		}
		delete(b.pending, key)
		b.extra[node]++
		wrote = true
	}
	return wrote
}

// choose returns the best node for a pod, or "".
func (b *binder) choose(p *corev1.Pod) string {
	best := ""
	for name, o := range b.node {
		n := o.obj.(*corev1.Node)
		if !accepts(n, p) {
			continue
		}
		if best == "" || b.load(name) < b.load(best) || (b.load(name) == b.load(best) && name < best) {
			best = name
		}
	}
	return best
}

// load is how many pods a node has, with those bound in this round.
func (b *binder) load(node string) int { return b.count[node] + b.extra[node] }

// accepts reports whether a node may run a pod.
func accepts(n *corev1.Node, p *corev1.Pod) bool {
	if n.DeletionTimestamp != nil || !nodeReady(n) {
		return false
	}
	for k, v := range p.Spec.NodeSelector {
		if n.Labels[k] != v {
			return false
		}
	}
	taints := n.Spec.Taints
	if n.Spec.Unschedulable {
		taints = append(slices.Clip(taints), corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for _, t := range taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated(t, p.Spec.Tolerations) {
			return false
		}
	}
	return true
}

func nodeReady(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func tolerated(t corev1.Taint, list []corev1.Toleration) bool {
	for _, tol := range list {
		if tol.Effect != "" && tol.Effect != t.Effect {
			continue
		}
		if tol.Key != "" && tol.Key != t.Key {
			continue
		}
		if tol.Operator == corev1.TolerationOpExists || (tol.Key != "" && tol.Value == t.Value) {
			return true
		}
	}
	return false
}

// unschedulable notes in the pod why it waits; it writes once.
func (b *binder) unschedulable(key string, p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return false
		}
	}
	_, err := b.writer.update(b.pods, key, writeOptions{manager: "binder", sub: "status"}, func(cur *object) (apiObject, error) {
		pod := cur.clone().(*corev1.Pod)
		setPodCondition(pod, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: fmt.Sprintf("0/%d nodes are available for this pod", len(b.node)),
		}, metav1.NewTime(b.store.now()))
		return pod, nil
	})
	return err == nil
}
