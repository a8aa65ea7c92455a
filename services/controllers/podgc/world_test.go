package podgc_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/podgc"
)

// state is pods and nodes by key; nodes have no slash.
type state struct {
	pods  map[string]*corev1.Pod
	nodes map[string]*corev1.Node
}

// world is an API server, an index that may lag behind it, and a queue on a clock
// that tests move.
type world struct {
	t      *testing.T
	now    time.Time
	mu     sync.Mutex // guards what calls to the API server change
	live   state
	index  state
	frozen bool                 // the index does not follow
	stale  bool                 // and says so
	due    map[string]time.Time // the queue: a key and when it is due
	states map[string][]byte
	said   map[string]string // why a key waits
	did    []string
	lists  int // of ended pods
	fail   func(call, key string) error
	rules  rules.Rules
	rv     int
	reg    *prometheus.Registry
	rec    *podgc.Reconciler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	none := func() state { return state{map[string]*corev1.Pod{}, map[string]*corev1.Node{}} }
	w := &world{
		t: t, now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), live: none(), index: none(),
		due: map[string]time.Time{}, states: map[string][]byte{}, said: map[string]string{},
	}
	w.restart()
	return w
}

// restart is a new process: nothing but the queue's store survives.
func (w *world) restart() {
	w.t.Helper()
	w.reg = prometheus.NewRegistry()
	rec, err := podgc.New(podgc.Config{Rules: w.rules, Now: func() time.Time { return w.now }, Metrics: w.reg}, w, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.rec = rec
}

// changed brings a key to the index, unless that is frozen, and wakes it as the
// trigger does.
func (w *world) changed(key string) {
	if w.frozen {
		return
	}
	if strings.Contains(key, "/") {
		follow(w.live.pods, w.index.pods, key)
	} else {
		follow(w.live.nodes, w.index.nodes, key)
	}
	w.due[key] = w.now
}

func follow[T interface{ DeepCopy() T }](from, to map[string]T, key string) {
	if obj, ok := from[key]; ok {
		to[key] = obj.DeepCopy()
	} else {
		delete(to, key)
	}
}

// thaw lets the index follow again.
func (w *world) thaw() {
	w.frozen = false
	for _, m := range []state{w.live, w.index} {
		for key := range m.pods {
			w.changed(key)
		}
		for key := range m.nodes {
			w.changed(key)
		}
	}
}

// sweep wakes every key that the index knows, as a trigger does at a new queue.
func (w *world) sweep() {
	for key := range w.index.pods {
		w.due[key] = w.now
	}
	for key := range w.index.nodes {
		w.due[key] = w.now
	}
}

// run lets the queue work for d.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	until := w.now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 10_000 {
			w.t.Fatal("the queue never rests")
		}
		next := ""
		for key, at := range w.due {
			if next == "" || at.Before(w.due[next]) || at.Equal(w.due[next]) && key < next {
				next = key
			}
		}
		if next == "" || w.due[next].After(until) {
			w.now = until
			return
		}
		if w.due[next].After(w.now) {
			w.now = w.due[next]
		}
		delete(w.due, next)
		w.look(next)
	}
}

// look is one lease of a key; it returns how that ended.
func (w *world) look(key string) error {
	next, err := w.rec.Reconcile(w.t.Context(), podgc.Request{Key: key, State: w.states[key], Reader: index{w}, Lease: lease{w, key}})
	w.said[key] = next.Reason
	delay := next.After
	if err != nil {
		delay = time.Second
	}
	if at, ok := w.due[key]; delay > 0 && (!ok || w.now.Add(delay).Before(at)) {
		w.due[key] = w.now.Add(delay)
	}
	return err
}

type index struct{ w *world }

func (x index) Fresh(context.Context) error {
	if x.w.stale {
		return podgc.ErrStale
	}
	return nil
}

func (x index) Pod(_ context.Context, key string) ([]byte, error) { return encode(x.w.index.pods, key) }

func (x index) Node(_ context.Context, name string) ([]byte, error) {
	return encode(x.w.index.nodes, name)
}

func (x index) PodsOn(_ context.Context, node string) ([]string, error) {
	var keys []string
	for key, p := range x.w.index.pods {
		if p.Spec.NodeName == node {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

func (x index) Ended(_ context.Context, above int) ([][]byte, error) {
	var ended [][]byte
	for key, p := range x.w.index.pods {
		if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			raw, err := encode(x.w.index.pods, key)
			if err != nil {
				return nil, err
			}
			ended = append(ended, raw)
		}
	}
	if len(ended) <= above {
		return nil, nil
	}
	x.w.lists++
	return ended, nil
}

type lease struct {
	w   *world
	key string
}

func (l lease) Alive() error { return l.w.call("alive", l.key) }

func (l lease) Save(_ context.Context, state []byte) error {
	if len(state) == 0 {
		delete(l.w.states, l.key)
		return nil
	}
	l.w.states[l.key] = state
	return nil
}

func (l lease) Wake(_ context.Context, keys []string) error {
	for _, key := range keys {
		l.w.due[key] = l.w.now
	}
	return nil
}

func (w *world) call(what, key string) error {
	if w.fail != nil {
		return w.fail(what, key)
	}
	return nil
}

// Get, Patch and Delete are the [podgc.API].
func (w *world) Get(_ context.Context, ref kube.Ref) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.call("get", keyOf(ref)); err != nil {
		return nil, err
	}
	raw, err := encode(w.live.nodes, ref.Name)
	if ref.Resource.Namespaced {
		raw, err = encode(w.live.pods, keyOf(ref))
	}
	if raw == nil {
		return nil, kube.ErrNotFound
	}
	return raw, err
}

func (w *world) Patch(_ context.Context, ref kube.Ref, t kube.PatchType, patch []byte, _ kube.WriteOptions) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if ref.Subresource != "status" || t != kube.StrategicPatch {
		w.t.Errorf("a %s of %s %s", t, ref.Resource.Name, ref.Subresource)
	}
	if err := w.call("patch", keyOf(ref)); err != nil {
		return nil, err
	}
	var with corev1.Pod
	if err := json.Unmarshal(patch, &with); err != nil {
		return nil, err
	}
	p := w.live.pods[keyOf(ref)]
	if err := precondition(p, string(with.UID), with.ResourceVersion); err != nil {
		return nil, err
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		w.t.Errorf("%s has ended as %s and became %s", p.Name, p.Status.Phase, with.Status.Phase)
	}
	p.Status.Phase, p.Status.Conditions = with.Status.Phase, append(p.Status.Conditions, with.Status.Conditions...)
	w.version(p)
	did := []string{"fail", p.Name}
	seen := []int64{with.Status.ObservedGeneration}
	for _, c := range with.Status.Conditions {
		seen = append(seen, c.ObservedGeneration)
		did = append(did, fmt.Sprintf("%s=%s/%s/%s", c.Type, c.Status, c.Reason, c.Message))
	}
	if slices.ContainsFunc(seen, func(g int64) bool { return g != p.Generation }) {
		w.t.Errorf("%s was judged at generations %d, want %d", p.Name, seen, p.Generation)
	}
	w.did = append(w.did, strings.Join(did, " "))
	w.changed(keyOf(ref))
	return patch, nil
}

func (w *world) Delete(_ context.Context, ref kube.Ref, o kube.DeleteOptions) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.UID == "" || o.Grace == nil || *o.Grace != 0 {
		w.t.Errorf("%s is deleted with %+v, want its UID and no grace", ref.Name, o)
	}
	if err := w.call("delete", keyOf(ref)); err != nil {
		return nil, err
	}
	p := w.live.pods[keyOf(ref)]
	if err := precondition(p, o.UID, o.RV); err != nil {
		return nil, err
	}
	if n := w.live.nodes[p.Spec.NodeName]; n != nil && len(n.Spec.Taints) == 0 && p.Annotations["ended"] == "" {
		w.t.Errorf("%s was deleted although its node is there", p.Name)
	}
	w.did = append(w.did, "delete "+p.Name)
	if len(p.Finalizers) == 0 {
		delete(w.live.pods, keyOf(ref))
	} else {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: w.now}, new(int64(0))
		w.version(p)
	}
	w.changed(keyOf(ref))
	return nil, nil
}

func precondition(p *corev1.Pod, uid, rv string) error {
	switch {
	case p == nil:
		return kube.ErrNotFound
	case uid != string(p.UID), rv != "" && rv != p.ResourceVersion:
		return kube.ErrConflict
	}
	return nil
}

// keyOf is that of what ref names: nodes have no namespace.
func keyOf(ref kube.Ref) string { return strings.TrimPrefix(ref.Namespace+"/"+ref.Name, "/") }

func encode[T any](all map[string]T, key string) ([]byte, error) {
	obj, ok := all[key]
	if !ok {
		return nil, nil
	}
	return json.Marshal(obj)
}

var errDown = errors.New("the API server is down")

func (w *world) version(obj metav1.Object) {
	w.rv++
	obj.SetResourceVersion(strconv.Itoa(w.rv))
}

// node makes or replaces a node; gone takes it away.
func (w *world) node(name string, ready corev1.ConditionStatus, taints ...string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute})
	}
	w.version(n)
	n.UID = types.UID("uid-" + n.ResourceVersion)
	w.live.nodes[name] = n
	w.changed(name)
}

func (w *world) gone(key string) {
	delete(w.live.nodes, key)
	delete(w.live.pods, key)
	w.changed(key)
}

// pod makes or replaces a pod.
func (w *world) pod(name, node string, phase corev1.PodPhase, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 3, CreationTimestamp: metav1.Time{Time: w.now}}}
	p.Spec.NodeName, p.Status.Phase = node, phase
	if phase == corev1.PodSucceeded || phase == corev1.PodFailed {
		p.Annotations = map[string]string{"ended": "true"}
	}
	w.version(p)
	p.UID = types.UID("uid-" + p.ResourceVersion)
	for _, f := range change {
		f(p)
	}
	w.live.pods["default/"+name] = p
	w.changed("default/" + name)
}

// ending are pods that are being deleted and have so many seconds left.
func (w *world) ending(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: w.now}, &seconds
	}
}

func finalizer(p *corev1.Pod) { p.Finalizers = []string{"batch.kubernetes.io/job-tracking"} }

const disrupted = " DisruptionTarget=True/DeletionByPodGC/PodGC: node no longer exists"

// want are the writes since the last call.
func (w *world) want(what string, did ...string) {
	w.t.Helper()
	if !slices.Equal(w.did, did) {
		w.t.Errorf("%s: %q, want %q", what, w.did, did)
	}
	w.did = nil
}

// counted is the value of a counter for a reason.
func (w *world) counted(name string, why rules.Reason) float64 {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() != "pod_gc_collector_"+name || m.GetLabel()[1].GetValue() != string(why) {
				continue
			}
			if ns := m.GetLabel()[0].GetValue(); ns != "default" {
				w.t.Errorf("%s counts namespace %q", name, ns)
			}
			return m.GetCounter().GetValue()
		}
	}
	return 0
}

// broken is an index whose objects are not what they should be.
type broken struct {
	index
	raw string
}

func (b broken) Pod(context.Context, string) ([]byte, error)  { return []byte(b.raw), nil }
func (b broken) Node(context.Context, string) ([]byte, error) { return []byte(b.raw), nil }
func (b broken) Ended(context.Context, int) ([][]byte, error) { return [][]byte{[]byte(b.raw)}, nil }
