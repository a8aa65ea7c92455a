package control

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
	"github.com/deltaplane/deltaplane/internal/devcluster/write"
)

// Binder gives pending pods a node, as a scheduler would: one that is Ready, whose
// taints the pod tolerates, whose labels it selects, with the fewest pods.
type Binder struct {
	store       *store.Store
	writer      *write.Writer
	log         *slog.Logger
	pods, nodes *kinds.Resource
	count       map[string]int           // pods per node that have not ended
	extra       map[string]int           // of those bound in this round, whose events are still to come
	pending     map[string]struct{}      // keys of pods without a node
	node        map[string]*store.Object // nodes by name
}

// follow calls handle for the state of a resource and then every change of it, each
// followed by idle once the backlog is done, until ctx ends. A lost history starts over.
func (b *Binder) follow(ctx context.Context, r *kinds.Resource, reset func(), handle func(prev, cur *store.Object), idle func(wake <-chan struct{}) bool) {
	for ctx.Err() == nil {
		t, state, rv, err := b.store.Open(r, 0)
		if err != nil {
			return
		}
		reset()
		state.Ascend(func(o *store.Object) bool { handle(nil, o); return true })
		for {
			next, err := b.store.Pull(r, t, rv, store.PullLimit)
			if err != nil {
				break
			}
			for _, e := range next.Events {
				if e.Junk == nil {
					handle(e.Prev, e.Cur)
				}
			}
			rv = next.RV
			if len(next.Events) < store.PullLimit && !idle(next.Wake) {
				return
			}
		}
	}
}

// NewBinder makes a binder; it binds nothing before Run.
func NewBinder(s *store.Store, kinds *kinds.Registry, w *write.Writer, log *slog.Logger) *Binder {
	return &Binder{store: s, writer: w, log: log, pods: kinds.Get("pods"), nodes: kinds.Get("nodes")}
}

// Run binds pods until ctx ends.
func (b *Binder) Run(ctx context.Context) error {
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
func (b *Binder) note(prev, cur *store.Object) {
	if prev != nil {
		if p := prev.Decoded.(*corev1.Pod); occupies(p) {
			b.count[p.Spec.NodeName]--
		}
		delete(b.pending, prev.Key)
	}
	if cur == nil {
		return
	}
	p := cur.Decoded.(*corev1.Pod)
	if occupies(p) {
		b.count[p.Spec.NodeName]++
	}
	if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && p.Spec.SchedulerName == corev1.DefaultSchedulerName && len(p.Spec.SchedulingGates) == 0 &&
		p.Status.Phase == corev1.PodPending {
		b.pending[cur.Key] = struct{}{}
	}
}

func occupies(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// lookAtNodes refreshes the nodes and returns what is closed when they change.
func (b *Binder) lookAtNodes() <-chan struct{} {
	b.node = map[string]*store.Object{}
	moved := make(chan struct{})
	close(moved)
	t, state, rv, err := b.store.Open(b.nodes, 0)
	if err != nil {
		return moved
	}
	state.Ascend(func(o *store.Object) bool { b.node[o.Key] = o; return true })
	pulled, err := b.store.Pull(b.nodes, t, rv, 1)
	if err != nil || len(pulled.Events) > 0 {
		return moved
	}
	return pulled.Wake
}

// bindPending binds what can be bound and reports whether it wrote anything.
func (b *Binder) bindPending() bool {
	wrote := false
	b.extra = map[string]int{}
	for key := range b.pending {
		o := b.store.Get(b.pods, key)
		if o == nil {
			delete(b.pending, key)
			continue
		}
		pod := o.Decoded.(*corev1.Pod)
		node := b.choose(pod)
		if node == "" {
			wrote = b.unschedulable(key, pod) || wrote
			continue
		}
		if err := b.writer.Bind(key, node, false); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
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
func (b *Binder) choose(p *corev1.Pod) string {
	best := ""
	for name, o := range b.node {
		n := o.Decoded.(*corev1.Node)
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
func (b *Binder) load(node string) int { return b.count[node] + b.extra[node] }

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
func (b *Binder) unschedulable(key string, p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return false
		}
	}
	_, err := b.writer.Update(b.pods, key, write.Options{Manager: "binder", Sub: "status"}, func(cur *store.Object) (kinds.APIObject, error) {
		pod := cur.Clone().(*corev1.Pod)
		write.SetPodCondition(pod, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: fmt.Sprintf("0/%d nodes are available for this pod", len(b.node)),
		}, metav1.NewTime(b.store.Now()))
		return pod, nil
	})
	return err == nil
}
