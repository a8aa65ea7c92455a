package podgc_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Nodes and pods come and go while the index stalls, calls fail and the process restarts: no pod is
// written to whose node lives, or before that was missing for the quarantine, and in the end none
// is left that nobody else will end.
func TestRandomHistoriesDeleteNothingWronglyAndLeaveNothing(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		w := newWorld(t)
		h := &history{w: w, what: fmt.Sprint("seed ", seed), rng: rand.New(rand.NewPCG(seed, 1)), left: map[string]time.Time{}}
		w.fail = h.fails
		for range 60 {
			h.step()
			w.run(0)
			w.run(time.Duration(h.rng.IntN(20_000)) * time.Millisecond)
		}
		h.calm = true
		w.thaw()
		w.sweep()
		w.run(2*quarantine + time.Minute)
		for key, p := range w.live.pods {
			held := p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
			if due := h.due(p); due != "" && !held {
				t.Errorf("%s: %s on %q is left: %s", h.what, key, p.Spec.NodeName, due)
			}
		}
		if t.Failed() {
			return
		}
	}
}

type history struct {
	w    *world
	what string
	calm bool // nothing fails any more
	pods int
	left map[string]time.Time // since when the index lacks a node

	mu  sync.Mutex // guards rng, which several writers use
	rng *rand.Rand
}

func (h *history) one(list ...string) string { return list[h.rng.IntN(len(list))] }

// step changes the world in one way.
func (h *history) step() {
	w := h.w
	nodes := []string{"a", "b", "c"}
	switch h.rng.IntN(10) {
	case 0, 1:
		taints := [][]string{nil, {taint.OutOfService}}[h.rng.IntN(2)]
		w.node(h.one(nodes...), corev1.ConditionStatus(h.one("True", "False")), taints...)
	case 2, 3:
		w.gone(h.one(nodes...))
	case 4, 5:
		var change []func(*corev1.Pod)
		if h.rng.IntN(3) == 0 {
			change = append(change, finalizer)
		}
		h.pods++
		w.pod(fmt.Sprint("p", h.pods), h.one(append(nodes, "")...), corev1.PodPhase(h.one("Pending", "Running", "Succeeded")), change...)
	case 6:
		key := fmt.Sprint("default/p", h.rng.IntN(h.pods+1))
		if p := w.live.pods[key]; p != nil && p.DeletionTimestamp == nil {
			w.ending(30)(p)
			w.version(p)
			w.changed(key)
		}
	case 7:
		w.frozen = true
	case 8:
		w.thaw()
	case 9:
		w.restart()
		w.sweep()
	}
	for _, name := range nodes {
		if w.index.nodes[name] != nil {
			delete(h.left, name)
		} else if _, ok := h.left[name]; !ok {
			h.left[name] = w.now
		}
	}
}

// fails judges a write, and lets some calls fail.
func (h *history) fails(call, key string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	write := call == "patch" || call == "delete"
	if p := h.w.live.pods[key]; write && p != nil {
		missing := h.w.now.Sub(h.left[p.Spec.NodeName])
		if due := h.due(p); due == "" || due == "orphaned" && missing < quarantine {
			h.w.t.Errorf("%s: a %s of %s on %q, due as %q, which left %v ago", h.what, call, key, p.Spec.NodeName, due, missing)
		}
	}
	n := h.rng.IntN(20)
	switch {
	case h.calm:
		return nil
	case n == 0:
		return errDown
	case n == 1 && write:
		return kube.ErrConflict
	default:
		return nil
	}
}

// due is why a pod is to be collected as the API server has it; empty when it is not.
func (h *history) due(p *corev1.Pod) string {
	n := h.w.live.nodes[p.Spec.NodeName]
	switch {
	case p.Spec.NodeName != "" && n == nil:
		return "orphaned"
	case p.DeletionTimestamp == nil:
		return ""
	case n == nil:
		return "unscheduled"
	case len(n.Spec.Taints) > 0 && !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Status == corev1.ConditionTrue }):
		return "out-of-service"
	default:
		return ""
	}
}
