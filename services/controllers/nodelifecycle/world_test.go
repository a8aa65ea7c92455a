package nodelifecycle_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

// world is an API server of nodes, leases and pods, an index that tests may
// freeze, zone queues, and a clock.
type world struct {
	t         *testing.T
	now       time.Time
	live      map[string]*rules.Node
	index     map[string]*rules.Node
	leases    map[string]string // renewals
	shown     map[string]string // as the index shows them
	pods      map[string]string // Ready by name; "p@x" is on node x, others on "n"
	bound     map[string]time.Time
	frozen    bool // the index does not follow writes
	stale     bool // the collections are not followed
	fresh     func() (rules.Fresh, error)
	known     time.Time
	states    map[string][]byte
	queues    map[string][]string // by zone
	rates     map[string]float64
	mu        sync.Mutex // guards events, podCalls and pods while a node is looked at
	events    []string
	marks     map[string]int // versions of pods
	shownPods string         // where the index is behind: what it shows of every pod
	podCalls  int
	fail      func(call string) error
	versions  int
	reg       *prometheus.Registry
	rec       *nodelifecycle.Reconciler
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), live: map[string]*rules.Node{}, index: map[string]*rules.Node{},
		leases: map[string]string{}, shown: map[string]string{}, pods: map[string]string{}, bound: map[string]time.Time{}, states: map[string][]byte{}, queues: map[string][]string{}, rates: map[string]float64{},
	}
	w.known = w.now
	w.restart()
	return w
}

// restart is a new process.
func (w *world) restart() {
	w.t.Helper()
	w.reg = prometheus.NewRegistry()
	rec, err := nodelifecycle.New(nodelifecycle.Config{Now: func() time.Time { return w.now }, Metrics: w.reg}, w, queues{w}, recorder{w}, slog.New(slog.DiscardHandler))
	if err != nil {
		w.t.Fatal(err)
	}
	w.rec = rec
}

// node makes or changes a node; its index copy follows unless frozen.
func (w *world) node(name string, change func(*rules.Node)) {
	n := w.live[name]
	if n == nil {
		n = &rules.Node{}
		n.Metadata.Name, n.Metadata.UID, n.Metadata.CreationTimestamp = name, fmt.Sprint("uid-", w.versions), w.now
		n.Status.Conditions = []rules.Condition{{Type: rules.Ready, Status: rules.True, LastHeartbeatTime: "h0"}}
	}
	n = clone(n)
	if change != nil {
		change(n)
	}
	w.versions++
	n.Metadata.ResourceVersion = fmt.Sprint(w.versions)
	w.live[name] = n
	w.catchUp()
}

func (w *world) renew(name string) {
	w.versions++
	w.leases[name] = fmt.Sprint("l", w.versions)
	w.catchUp()
}

func (w *world) catchUp() {
	if !w.frozen {
		w.index, w.shown = maps.Clone(w.live), maps.Clone(w.leases)
	}
}

func clone(n *rules.Node) *rules.Node {
	c := *n
	c.Status.Conditions = slices.Clone(n.Status.Conditions)
	c.Spec.Taints = slices.Clone(n.Spec.Taints)
	c.Metadata.Labels = maps.Clone(n.Metadata.Labels)
	return &c
}

// look looks at a node once.
func (w *world) look(name string) error {
	_, err := w.rec.Node(w.t.Context(), nodelifecycle.Request{Name: name, State: w.states[name], Reader: index{w}, Lease: lease{w, name}})
	return err
}

// run lets time pass in steps of 5 s, judging the zones and looking at every node;
// alive nodes renew their leases before. It returns the last error of a look.
func (w *world) run(d time.Duration, alive ...string) (err error) {
	w.t.Helper()
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(5 * time.Second)
		if !w.stale {
			w.known = w.now
		}
		for _, name := range alive {
			w.renew(name)
		}
		w.refresh()
		for _, name := range slices.Sorted(maps.Keys(w.live)) {
			err = w.look(name)
		}
	}
	return err
}

// refresh judges the zones, if the collections are followed.
func (w *world) refresh() {
	w.t.Helper()
	err := w.rec.Zones().Refresh(w.t.Context(), func(ctx context.Context) ([][]byte, error) { return w.nodes(ctx, "") })
	if err != nil && !errors.Is(err, nodelifecycle.ErrStale) {
		w.t.Fatal(err)
	}
}

// nodes are those of the index; one that does not follow writes has no later versions.
func (w *world) nodes(ctx context.Context, least string) ([][]byte, error) {
	if _, err := (index{w}).Fresh(ctx); err != nil {
		return nil, err
	}
	if w.frozen && least != "" {
		return nil, errDown
	}
	var raws [][]byte
	for _, n := range w.index {
		raws = append(raws, must(json.Marshal(n)))
	}
	return raws, nil
}

// turn is a node's turn in its zone's queue.
func (w *world) turn(zone rules.Zone, name string) nodelifecycle.Turn {
	return nodelifecycle.Turn{Zone: zone, Name: name, Nodes: w.nodes, Alive: func() error { return nil }}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// hand hands out the nodes that wait in a zone, as its queue does.
func (w *world) hand(zone rules.Zone) {
	w.t.Helper()
	list := w.queues[zone.String()]
	w.queues[zone.String()] = nil
	for _, name := range list {
		after, err := w.rec.Taint(w.t.Context(), w.turn(zone, name))
		if err != nil || after > 0 {
			w.queues[zone.String()] = append(w.queues[zone.String()], name)
		}
	}
}

func (w *world) taints(name string) string {
	var out []string
	for _, x := range w.live[name].Spec.Taints {
		out = append(out, strings.TrimPrefix(x.Key, "node.kubernetes.io/")+":"+x.Effect)
	}
	return strings.Join(out, " ")
}

type index struct{ w *world }

func (x index) Fresh(context.Context) (rules.Fresh, error) {
	if x.w.fresh != nil {
		return x.w.fresh()
	}
	if x.w.stale {
		return rules.Fresh{}, nodelifecycle.ErrStale
	}
	return rules.Fresh{Known: x.w.known, Heard: x.w.known}, nil
}

func (x index) Node(_ context.Context, name string) ([]byte, error) {
	if x.w.index[name] == nil {
		return nil, nil
	}
	return json.Marshal(x.w.index[name])
}

func (x index) Lease(_ context.Context, name string) ([]byte, error) {
	if x.w.shown[name] == "" {
		return nil, nil
	}
	return leaseJSON(x.w.shown[name])
}

func leaseJSON(renewed string) ([]byte, error) {
	var l rules.Lease
	l.Spec.RenewTime = renewed
	return json.Marshal(l)
}

func (x index) PodsOn(_ context.Context, node string) ([][]byte, error) {
	if err := x.w.call("list pods"); err != nil {
		return nil, err
	}
	var out [][]byte
	for _, name := range slices.Sorted(maps.Keys(x.w.pods)) {
		if _, on, named := strings.Cut(name, "@"); on != node && (named || node != "n") {
			continue
		}
		out = append(out, must(json.Marshal(map[string]any{
			"metadata": map[string]any{"namespace": "default", "name": name, "uid": "uid-" + name, "resourceVersion": strconv.Itoa(x.w.podVersion(name))},
			"status": map[string]any{"conditions": []any{
				map[string]any{"type": "PodScheduled", "status": "True", "lastTransitionTime": x.w.bound[name].Format(time.RFC3339)},
				map[string]any{"type": "Ready", "status": cmp.Or(x.w.shownPods, x.w.pods[name])},
			}},
		})))
	}
	return out, nil
}

type lease struct {
	w    *world
	name string
}

func (l lease) Alive() error { return nil }

func (l lease) Save(_ context.Context, state []byte) error {
	if state == nil {
		delete(l.w.states, l.name)
		return nil
	}
	l.w.states[l.name] = state
	return nil
}

type queues struct{ w *world }

func (q queues) Add(_ context.Context, zone rules.Zone, node string) error {
	if list := q.w.queues[zone.String()]; !slices.Contains(list, node) {
		q.w.queues[zone.String()] = append(list, node)
	}
	return nil
}

func (q queues) Remove(_ context.Context, zone rules.Zone, node string) error {
	q.w.queues[zone.String()] = slices.DeleteFunc(q.w.queues[zone.String()], func(s string) bool { return s == node })
	return nil
}

func (q queues) Limit(_ context.Context, zone rules.Zone, rate float64) error {
	q.w.rates[zone.String()] = rate
	return q.w.call("limit")
}

type recorder struct{ w *world }

func (r recorder) Event(about kube.Involved, _, reason, message string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	r.w.events = append(r.w.events, about.Name+" "+reason+" "+message)
}

var errConflict = fmt.Errorf("%w: changed meanwhile", kube.ErrConflict)

func (w *world) call(what string) error {
	if w.fail != nil {
		return w.fail(what)
	}
	return nil
}

// Get and Patch are the [nodelifecycle.API].
func (w *world) Get(_ context.Context, ref kube.Ref) ([]byte, error) {
	if ref.Resource.Name == kube.Leases.Name {
		return w.lease(ref.Name)
	}
	return w.get(ref.Name)
}

func (w *world) Patch(_ context.Context, ref kube.Ref, t kube.PatchType, body []byte, _ kube.WriteOptions) ([]byte, error) {
	want := kube.StrategicPatch
	if ref.Subresource == "" {
		want = kube.MergePatch
	}
	if t != want {
		w.t.Errorf("%s of %s has the type %s, want %s", ref.Subresource, ref.Resource.Name, t, want)
	}
	switch {
	case ref.Resource.Name == kube.Pods.Name:
		return nil, w.patchPod(ref.Name, body)
	case ref.Subresource == "status":
		return w.patchNode("patch status", ref.Name, body)
	}
	return w.patchNode("patch node", ref.Name, body)
}

func (w *world) get(name string) ([]byte, error) {
	if err := w.call("get"); err != nil {
		return nil, err
	}
	if w.live[name] == nil {
		return nil, kube.ErrNotFound
	}
	return json.Marshal(w.live[name])
}

func (w *world) lease(name string) ([]byte, error) {
	if w.leases[name] == "" {
		return nil, kube.ErrNotFound
	}
	return leaseJSON(w.leases[name])
}

// patch is what patches of nodes hold.
type patch struct {
	Metadata struct {
		UID, ResourceVersion string
		Labels               map[string]string
	}
	Spec   struct{ Taints *[]taint.Taint }
	Status struct{ Conditions []rules.Condition }
}

func (w *world) change(name string, body []byte) ([]byte, error) {
	var p patch
	if err := json.Unmarshal(body, &p); err != nil {
		return nil, err
	}
	n := w.live[name]
	if n == nil {
		return nil, kube.ErrNotFound
	}
	if p.Metadata.UID != n.Metadata.UID || p.Metadata.ResourceVersion != n.Metadata.ResourceVersion {
		return nil, errConflict
	}
	w.node(name, func(n *rules.Node) {
		if p.Spec.Taints != nil {
			n.Spec.Taints = *p.Spec.Taints
		}
		for _, c := range p.Status.Conditions {
			n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(x rules.Condition) bool { return x.Type == c.Type }), c)
		}
	})
	return json.Marshal(w.live[name])
}

func (w *world) patchNode(call, name string, body []byte) ([]byte, error) {
	if err := w.call(call); err != nil {
		return nil, err
	}
	return w.change(name, body)
}

// podVersion is what the index shows of a pod: before its mark when it is behind.
func (w *world) podVersion(name string) int {
	if w.shownPods != "" {
		return 0
	}
	return w.marks[name]
}

func (w *world) patchPod(name string, body []byte) error {
	w.mu.Lock() // the pods of a node are written by several at once
	defer w.mu.Unlock()
	w.podCalls++
	if err := w.call("patch pod"); err != nil {
		return err
	}
	if w.pods[name] == "" {
		return kube.ErrNotFound
	}
	var p patch
	if err := json.Unmarshal(body, &p); err != nil {
		return err
	}
	if p.Metadata.ResourceVersion != strconv.Itoa(w.marks[name]) {
		return errConflict
	}
	if w.marks == nil {
		w.marks = map[string]int{}
	}
	w.marks[name]++
	w.pods[name] = rules.False
	return nil
}

var errDown = errors.New("the API server is down")
