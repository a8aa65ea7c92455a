package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A witness watches nodes and pods of an API server and keeps what happened to them, by the moments
// at which events came.
type witness struct {
	mu    sync.Mutex // guards what follows
	err   error
	nodes map[string]*corev1.Node
	// changes are the NoExecute taints that came and went, in order.
	changes []taintChange
	pods    map[string]*podLife // by name
}

type taintChange struct {
	at   time.Time
	node string
	key  string
	gone bool
}

// podLife is what became of a pod.
type podLife struct {
	node    string
	deleted time.Time // when its deletion began; zero for never
	doomed  int       // how often DisruptionTarget became true
	target  bool
}

// watch starts a witness; it ends with the test.
func (k *kubeCluster) watch(t *testing.T) *witness {
	t.Helper()
	w := &witness{nodes: map[string]*corev1.Node{}, pods: map[string]*podLife{}}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
	for path, see := range map[string]func(kind string, object json.RawMessage, at time.Time) error{
		"/api/v1/nodes": w.node, podsPath: w.pod,
	} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, k.api.Base+path+"?watch=true", nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := k.api.Client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer answer.Body.Close()
			events := json.NewDecoder(answer.Body)
			for {
				var e struct {
					Type   string
					Object json.RawMessage
				}
				err := events.Decode(&e)
				at := time.Now()
				if ctx.Err() != nil {
					return
				}
				w.mu.Lock()
				if err == nil {
					err = see(e.Type, e.Object, at)
				}
				if err != nil {
					w.err = fmt.Errorf("watch of %s: %w", path, err)
				}
				w.mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	return w
}

func (w *witness) node(kind string, raw json.RawMessage, at time.Time) error {
	n := &corev1.Node{}
	if err := json.Unmarshal(raw, n); err != nil {
		return err
	}
	old := w.nodes[n.Name]
	if old == nil {
		old = &corev1.Node{}
	}
	if kind == "DELETED" {
		n.Spec.Taints = nil
	}
	w.nodes[n.Name] = n
	had, has := executing(old), executing(n)
	for _, key := range had {
		if !slices.Contains(has, key) {
			w.changes = append(w.changes, taintChange{at, n.Name, key, true})
		}
	}
	for _, key := range has {
		if !slices.Contains(had, key) {
			w.changes = append(w.changes, taintChange{at, n.Name, key, false})
		}
	}
	return nil
}

// executing are the keys of a node's NoExecute taints, without the domain; one that is there twice
// is named twice.
func executing(n *corev1.Node) []string {
	var keys []string
	for _, x := range n.Spec.Taints {
		if x.Effect == corev1.TaintEffectNoExecute {
			keys = append(keys, strings.TrimPrefix(x.Key, "node.kubernetes.io/"))
		}
	}
	return keys
}

func (w *witness) pod(kind string, raw json.RawMessage, at time.Time) error {
	p := &corev1.Pod{}
	if err := json.Unmarshal(raw, p); err != nil {
		return err
	}
	life := w.pods[p.Name]
	if life == nil {
		life = &podLife{node: p.Spec.NodeName}
		w.pods[p.Name] = life
	}
	if life.deleted.IsZero() && (kind == "DELETED" || p.DeletionTimestamp != nil) {
		life.deleted = at
	}
	target := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager"
	})
	if target && !life.target {
		life.doomed++
	}
	life.target = target
	return nil
}

// until waits until ask, which is called while nothing changes, has nothing to say.
func (w *witness) until(t *testing.T, limit time.Duration, what string, ask func() string) {
	t.Helper()
	eventually(t, limit, what, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err != nil {
			t.Fatal(w.err)
		}
		if text := ask(); text != "" {
			return fmt.Errorf("%s", text)
		}
		return nil
	})
}

// tainted are the names of nodes with a NoExecute taint, sorted, each as name or, when it is not
// unreachable, name:key.
func (w *witness) tainted() []string {
	names := []string{}
	for name, n := range w.nodes {
		for _, key := range executing(n) {
			if key == "unreachable" {
				names = append(names, name)
			} else {
				names = append(names, name+":"+key)
			}
		}
	}
	slices.Sort(names)
	return names
}

// onlyTainted waits until exactly these nodes carry a NoExecute taint.
func (w *witness) onlyTainted(t *testing.T, limit time.Duration, what string, nodes ...string) {
	t.Helper()
	want := slices.Sorted(slices.Values(nodes))
	w.until(t, limit, what, func() string {
		if got := w.tainted(); !slices.Equal(got, want) {
			return fmt.Sprintf("tainted are %v, want %v", got, want)
		}
		return ""
	})
}

// stays fails when ask has something to say at any moment of the time given.
func (w *witness) stays(t *testing.T, span time.Duration, what string, ask func() string) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(span); time.Now().Before(end); <-tick.C {
		w.mu.Lock()
		text := ask()
		w.mu.Unlock()
		if text != "" {
			t.Fatalf("%s: %s", what, text)
		}
	}
}

// evicted is when the deletion of a pod began; the zero time for a pod that stays.
func (w *witness) evicted(pod string) time.Time {
	if life := w.pods[pod]; life != nil {
		return life.deleted
	}
	return time.Time{}
}
