package tainteviction_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/tainteviction"
)

// world is an API server, an index that may lag behind it, and a queue on a
// clock that tests move.
type world struct {
	t           *testing.T
	now         time.Time
	live, index map[string]map[string]any // by key; nodes have no slash
	frozen      bool                      // the index does not follow
	due         map[string]time.Time      // the queue: a key and when it is due
	states      map[string][]byte
	retries     map[string]int64
	did         []string
	events      []string
	fail        func(call string) error
	reg         *prometheus.Registry
	rec         *tainteviction.Reconciler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), live: map[string]map[string]any{}, index: map[string]map[string]any{},
		due: map[string]time.Time{}, states: map[string][]byte{}, retries: map[string]int64{}, reg: prometheus.NewRegistry(),
	}
	w.restart()
	return w
}

// restart is a new process: nothing but the queue's store survives.
func (w *world) restart() {
	w.t.Helper()
	w.reg = prometheus.NewRegistry()
	rec, err := tainteviction.New(tainteviction.Config{Now: func() time.Time { return w.now }, Metrics: w.reg}, w, recorder{w}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.rec = rec
}

func (w *world) set(key string, obj map[string]any) {
	if obj == nil {
		delete(w.live, key)
	} else {
		w.live[key] = obj
	}
	if w.frozen {
		return
	}
	w.catchUp(key)
}

// catchUp brings a key to the index, and wakes it as the trigger does.
func (w *world) catchUp(key string) {
	if obj := w.live[key]; obj != nil {
		w.index[key] = obj
	} else {
		delete(w.index, key)
	}
	w.wake(key)
}

func (w *world) wake(key string) { w.due[key] = w.now }

// run lets the queue work for d.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	until := w.now.Add(d)
	for steps := 0; ; steps++ {
		if steps > 10_000 {
			w.t.Fatal("the queue never rests")
		}
		keys := make([]string, 0, len(w.due))
		for key := range w.due {
			keys = append(keys, key)
		}
		sort.Slice(keys, func(i, j int) bool {
			a, b := w.due[keys[i]], w.due[keys[j]]
			return a.Before(b) || a.Equal(b) && keys[i] < keys[j]
		})
		if len(keys) == 0 || w.due[keys[0]].After(until) {
			w.now = until
			return
		}
		key := keys[0]
		if w.due[key].After(w.now) {
			w.now = w.due[key]
		}
		delete(w.due, key)
		w.look(key)
	}
}

func (w *world) look(key string) {
	after, err := w.rec.Reconcile(w.t.Context(), tainteviction.Request{
		Key: key, State: w.states[key], Retries: w.retries[key], Reader: index{w}, Lease: lease{w, key},
	})
	delay := after
	if err != nil {
		w.retries[key]++
		delay = time.Second
	} else {
		w.retries[key] = 0
	}
	if at, ok := w.due[key]; delay > 0 && (!ok || w.now.Add(delay).Before(at)) {
		w.due[key] = w.now.Add(delay)
	}
}

type index struct{ w *world }

func (x index) Pod(_ context.Context, key string) ([]byte, error) { return encode(x.w.index[key]) }

func (x index) Node(_ context.Context, name string) ([]byte, error) { return encode(x.w.index[name]) }

func (x index) PodsOn(_ context.Context, node string) ([]string, error) {
	var keys []string
	for key, obj := range x.w.index {
		if spec, _ := obj["spec"].(map[string]any); strings.Contains(key, "/") && spec["nodeName"] == node {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys, nil
}

type lease struct {
	w   *world
	key string
}

func (l lease) Alive() error { return l.w.call("alive") }

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
		l.w.wake(key)
	}
	return nil
}

func (w *world) call(what string) error {
	if w.fail != nil {
		return w.fail(what)
	}
	return nil
}

// key is that of what ref names: nodes have no namespace.
func key(ref kube.Ref) string {
	if ref.Namespace == "" {
		return ref.Name
	}
	return ref.Namespace + "/" + ref.Name
}

// Get, Patch and Delete are the [tainteviction.API].
func (w *world) Get(_ context.Context, ref kube.Ref) ([]byte, error) { return w.get(key(ref)) }

func (w *world) get(key string) ([]byte, error) {
	if err := w.call("get"); err != nil {
		return nil, err
	}
	if w.live[key] == nil {
		return nil, kube.ErrNotFound
	}
	return encode(w.live[key])
}

func (w *world) Patch(_ context.Context, ref kube.Ref, t kube.PatchType, patch []byte, _ kube.WriteOptions) ([]byte, error) {
	if ref.Subresource != "status" || t != kube.StrategicPatch {
		w.t.Errorf("a %s of %s %s", t, ref.Resource.Name, ref.Subresource)
	}
	if err := w.call("patch"); err != nil {
		return nil, err
	}
	obj := w.live[key(ref)]
	if obj == nil {
		return nil, kube.ErrNotFound
	}
	var p struct {
		Metadata struct{ UID string }
		Status   struct {
			Conditions []struct{ Type, Status, Reason string }
		}
	}
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, err
	}
	if p.Metadata.UID != uid(obj) {
		return nil, kube.ErrConflict
	}
	c := p.Status.Conditions[0]
	w.did = append(w.did, fmt.Sprintf("patch %s %s=%s/%s", ref.Name, c.Type, c.Status, c.Reason))
	return patch, nil
}

func (w *world) Delete(_ context.Context, ref kube.Ref, o kube.DeleteOptions) ([]byte, error) {
	if err := w.call("delete"); err != nil {
		return nil, err
	}
	key, name := key(ref), ref.Name
	switch obj := w.live[key]; {
	case obj == nil:
		return nil, kube.ErrNotFound
	case uid(obj) != o.UID:
		return nil, kube.ErrConflict
	}
	if n := w.live["n"]; n != nil && w.live[key]["spec"].(map[string]any)["nodeName"] == "n" {
		taints, _ := n["spec"].(map[string]any)["taints"].([]taint.Taint)
		list, _ := w.live[key]["spec"].(map[string]any)["tolerations"].([]taint.Toleration)
		if stay, _ := (taint.Rules{}).Stay(w.now, taints, taint.Pod{Tolerations: list}, nil); !stay.Due(w.now) && len(w.states[key]) == 0 {
			w.t.Errorf("%s was evicted and might have stayed", name)
		}
	}
	w.did = append(w.did, "delete "+name)
	w.set(key, nil)
	return nil, nil
}

// recorder is the world's ear for Events.
type recorder struct{ w *world }

func (r recorder) Event(_ kube.Involved, _, reason, message string) {
	r.w.events = append(r.w.events, reason+": "+message)
}

var errDown = errors.New("the API server is down")

func uid(obj map[string]any) string {
	meta, _ := obj["metadata"].(map[string]any)
	id, _ := meta["uid"].(string)
	return id
}

func encode(obj map[string]any) ([]byte, error) {
	if obj == nil {
		return nil, nil
	}
	return json.Marshal(obj)
}

func (w *world) node(name string, taints ...taint.Taint) {
	w.set(name, map[string]any{"metadata": map[string]any{"name": name, "uid": "uid-" + name}, "spec": map[string]any{"taints": taints}})
}

// taint is a NoExecute taint placed now.
func (w *world) taint(key string) taint.Taint {
	return taint.Taint{Key: key, Effect: taint.NoExecute, TimeAdded: new(w.now)}
}

func tolerate(key string, seconds int64) taint.Toleration {
	return taint.Toleration{Key: key, Operator: taint.Exists, Effect: taint.NoExecute, Seconds: &seconds}
}

func always(key string) taint.Toleration {
	return taint.Toleration{Key: key, Operator: taint.Exists, Effect: taint.NoExecute}
}

func (w *world) pod(name, node string, list ...taint.Toleration) { w.podOf(name, "1", node, list...) }

func (w *world) podOf(name, id, node string, list ...taint.Toleration) {
	w.set("default/"+name, map[string]any{
		"metadata": map[string]any{"namespace": "default", "name": name, "uid": "uid-" + name + "-" + id, "creationTimestamp": w.now.Add(-time.Hour)},
		"spec":     map[string]any{"nodeName": node, "tolerations": list},
	})
}

// evicted are the pods deleted, in order; each must have been patched right before.
func (w *world) evicted() string {
	w.t.Helper()
	var names []string
	for i, did := range w.did {
		name, ok := strings.CutPrefix(did, "delete ")
		if !ok {
			continue
		}
		if i == 0 || w.did[i-1] != "patch "+name+" DisruptionTarget=True/DeletionByTaintManager" {
			w.t.Errorf("%s was deleted without its condition: %v", name, w.did)
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func (w *world) want(what, evicted string) {
	w.t.Helper()
	if got := w.evicted(); got != evicted {
		w.t.Errorf("%s: evicted %q, want %q", what, got, evicted)
	}
}

// counted is the value of a counter.
func (w *world) counted(name string) float64 {
	w.t.Helper()
	families, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	return 0
}
