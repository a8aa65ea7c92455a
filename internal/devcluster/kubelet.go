package devcluster

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// restartDelay is how long a failed container waits before it runs again; it
	// doubles per restart up to restartDelayMax.
	restartDelay    = 100 * time.Millisecond
	restartDelayMax = 10 * time.Second
)

// nodes are the kubelets of the cluster: they keep their Node and Lease alive and take
// the pods bound to them through their lives. One goroutine serves all of them.
type nodes struct {
	api  *api
	pods *resource

	mu     sync.Mutex
	silent map[string]bool // by node of ours
	wake   chan struct{}   // a node was started again

	due   timers
	timer map[types.UID]*timer
}

func newNodes(a *api) *nodes {
	n := &nodes{api: a, pods: a.registry.get("pods"), silent: map[string]bool{}, wake: a.wakeNodes, timer: map[types.UID]*timer{}}
	for i := range max(a.cfg.Nodes, 0) {
		n.silent[fmt.Sprintf("node-%d", i+1)] = false
	}
	return n
}

// silence stops or starts one node.
func (n *nodes) silence(name string, silent bool) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ours := n.silent[name]; !ours {
		return false
	}
	n.silent[name] = silent
	select {
	case n.wake <- struct{}{}:
	default:
	}
	return true
}

// StoppedAnnotation on a node, "true", makes its kubelet fall silent as
// [Cluster.StopNode] does, for those who have nothing but the API.
const StoppedAnnotation = "deltaplane.io/stopped"

func stopped(o *object) bool {
	return o != nil && o.obj.GetAnnotations()[StoppedAnnotation] == "true"
}

// runs reports whether a node is ours and alive.
func (n *nodes) runs(name string) bool {
	n.mu.Lock()
	silent, ours := n.silent[name]
	n.mu.Unlock()
	return ours && !silent && !stopped(n.api.store.get(n.api.registry.get("nodes"), name))
}

// noteNode wakes the nodes when one of them was stopped or started by its annotation.
func (a *api) noteNode(prev, cur *object) {
	if stopped(prev) == stopped(cur) {
		return
	}
	select {
	case a.wakeNodes <- struct{}{}:
	default:
	}
}

func (n *nodes) names() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]string, 0, len(n.silent))
	for name := range n.silent {
		out = append(out, name)
	}
	return out
}

// run serves all nodes until ctx ends.
func (n *nodes) run(ctx context.Context) error {
	if len(n.silent) == 0 {
		<-ctx.Done()
		return nil
	}
	n.heartbeat(true)
	beat := time.NewTicker(n.api.cfg.HeartbeatEvery)
	defer beat.Stop()
	next := time.NewTimer(0)
	defer next.Stop()
	reset := func() { n.due, n.timer = nil, map[types.UID]*timer{} }
	n.api.follow(ctx, n.pods, reset, n.note, func(wake <-chan struct{}) bool {
		n.step()
		next.Reset(n.untilNext())
		select {
		case <-wake:
		case <-next.C:
		case <-n.wake:
			n.heartbeat(false)
			n.noteAll()
		case <-beat.C:
			n.heartbeat(false)
		case <-ctx.Done():
			return false
		}
		return true
	})
	return nil
}

// timer is the next thing to do with a pod.
type timer struct {
	at    time.Time
	key   string
	uid   types.UID
	index int
}

type timers []*timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i]; t[i].index, t[j].index = i, j }
func (t *timers) Push(x any)        { x.(*timer).index = len(*t); *t = append(*t, x.(*timer)) }
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}

// note schedules the next step of a pod that changed.
func (n *nodes) note(prev, cur *object) {
	if prev != nil && (cur == nil || cur.obj.GetUID() != prev.obj.GetUID()) {
		n.forget(prev.obj.GetUID())
	}
	if cur == nil {
		return
	}
	pod := cur.obj.(*corev1.Pod)
	at, todo := n.nextStep(pod)
	if !todo {
		n.forget(pod.UID)
		return
	}
	if t := n.timer[pod.UID]; t != nil {
		t.at = at
		heap.Fix(&n.due, t.index)
		return
	}
	t := &timer{at: at, key: cur.key, uid: pod.UID}
	n.timer[pod.UID] = t
	heap.Push(&n.due, t)
}

func (n *nodes) forget(uid types.UID) {
	if t := n.timer[uid]; t != nil {
		heap.Remove(&n.due, t.index)
		delete(n.timer, uid)
	}
}

// noteAll looks at every pod again, after a node came back.
func (n *nodes) noteAll() {
	snap, _, err := n.api.store.snapshot(n.pods, 0)
	if err != nil {
		return
	}
	snap.Ascend(func(o *object) bool { n.note(nil, o); return true })
}

func (n *nodes) untilNext() time.Duration {
	if len(n.due) == 0 {
		return time.Hour
	}
	return max(time.Until(n.due[0].at), 0)
}

// step does everything that is due.
func (n *nodes) step() {
	now := time.Now()
	for len(n.due) > 0 && !n.due[0].at.After(now) {
		t := heap.Pop(&n.due).(*timer)
		delete(n.timer, t.uid)
		if err := n.advance(t); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			n.api.warn("kubelet", err, t.key)
		}
	}
}

// nextStep says when a pod is to be looked at again. It depends on the stored pod
// alone, so that a restarted cluster goes on where it was.
func (n *nodes) nextStep(p *corev1.Pod) (time.Time, bool) {
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	if !n.runs(p.Spec.NodeName) {
		return time.Time{}, false
	}
	now := time.Now()
	if p.DeletionTimestamp != nil {
		if ended && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0 {
			return time.Time{}, false // only finalizers hold it
		}
		return now.Add(n.api.cfg.PodStart), true
	}
	if ended {
		return time.Time{}, false
	}
	if p.Status.Phase != corev1.PodRunning {
		return now.Add(n.api.cfg.PodStart), true
	}
	if c := firstContainer(p); c != nil && c.State.Waiting != nil {
		return now.Add(backoff(c.RestartCount)), true
	}
	plan, err := readPlan(p)
	if err != nil {
		return now, true
	}
	if plan.forever {
		return time.Time{}, false
	}
	return startedAt(p).Add(plan.run), true
}

func firstContainer(p *corev1.Pod) *corev1.ContainerStatus {
	if len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[0]
}

// backoff is the wait before the nth restart.
func backoff(restarts int32) time.Duration {
	return min(restartDelay<<min(restarts, 16), restartDelayMax)
}

// startedAt is when the current run began. The API keeps whole seconds, so a short run
// is measured from the exact time noted beside it.
func startedAt(p *corev1.Pod) time.Time {
	if c := firstContainer(p); c != nil && c.State.Running != nil {
		if t, err := time.Parse(time.RFC3339Nano, p.Annotations[startedAnnotation]); err == nil {
			return t
		}
		return c.State.Running.StartedAt.Time
	}
	return time.Now()
}

// startedAnnotation holds the exact start of the current run.
const startedAnnotation = "deltaplane.io/started-at"

// advance takes a pod one step further.
func (n *nodes) advance(t *timer) error {
	cur := n.api.store.get(n.pods, t.key)
	if cur == nil || cur.obj.GetUID() != t.uid {
		return nil
	}
	pod := cur.obj.(*corev1.Pod)
	if !n.runs(pod.Spec.NodeName) {
		return nil
	}
	if pod.DeletionTimestamp != nil {
		return n.end(t)
	}
	return n.write(t, func(p *corev1.Pod, now metav1.Time) {
		plan, err := readPlan(p)
		switch {
		case err != nil:
			reject(p, now, err)
		case p.Status.Phase == corev1.PodPending || p.Status.Phase == "":
			start(p, now)
		case p.Status.Phase == corev1.PodRunning && firstContainer(p) != nil && firstContainer(p).State.Waiting != nil:
			restart(p, now)
		case p.Status.Phase == corev1.PodRunning:
			stop(p, now, plan.draw())
		}
	})
}

// end finishes a graceful deletion: the containers stop, the pod's last status is
// reported, and the pod is deleted; finalizers may hold it after that.
func (n *nodes) end(t *timer) error {
	err := n.write(t, func(p *corev1.Pod, now metav1.Time) {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			terminate(p, now)
		}
	})
	if err != nil {
		return err
	}
	uid := t.uid
	_, _, err = n.api.delete(n.pods, t.key, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid}})
	return err
}

// write changes a pod as its kubelet.
func (n *nodes) write(t *timer, change func(*corev1.Pod, metav1.Time)) error {
	_, err := n.api.update(n.pods, t.key, writeOptions{manager: "kubelet", sub: "status"}, func(cur *object) (apiObject, error) {
		if cur.obj.GetUID() != t.uid {
			return nil, apierrors.NewNotFound(n.pods.groupResource(), t.key)
		}
		p := cur.clone().(*corev1.Pod)
		change(p, metav1.Now())
		return p, nil
	})
	return err
}
