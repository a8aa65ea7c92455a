package podworker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
)

// history is a syncer that takes a random time for each step, fails at random, and
// holds every step against what must always be true of one pod.
type history struct {
	t    *testing.T
	seed uint64

	mu   sync.Mutex
	rnd  *rand.Rand
	calm bool // nothing fails or ends by chance any more
	pods map[types.UID]*life
}

// life is what is known of one pod's past.
type life struct {
	busy   bool
	state  podsync.State
	grace  int64
	killed bool   // an end was asked for
	label  string // of the newest configuration that was given
	synced string // of the newest that was acted on
}

func (h *history) life(uid types.UID) *life {
	if h.pods[uid] == nil {
		h.pods[uid] = &life{}
	}
	return h.pods[uid]
}

// step is one call of the syncer.
func (h *history) step(ctx context.Context, uid types.UID, state podsync.State, grace int64, label string) (failed bool) {
	h.mu.Lock()
	l := h.life(uid)
	switch {
	case l.busy:
		h.t.Errorf("seed %d: %s: two steps at once", h.seed, uid)
	case state < l.state:
		h.t.Errorf("seed %d: %s: %v after %v", h.seed, uid, state, l.state)
	case state == podsync.Terminating && l.grace > 0 && grace > l.grace:
		h.t.Errorf("seed %d: %s: grace grew from %d to %d", h.seed, uid, l.grace, grace)
	case state == podsync.Terminating && grace < 1:
		h.t.Errorf("seed %d: %s: grace is %d", h.seed, uid, grace)
	}
	l.busy, l.state, l.synced = true, state, label
	if state == podsync.Terminating {
		l.grace = grace
	}
	pause, failed := time.Duration(h.rnd.IntN(3000))*time.Millisecond, h.rnd.IntN(3) == 0 && !h.calm
	h.mu.Unlock()
	select {
	case <-ctx.Done():
		failed = true
	case <-time.After(pause):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l.busy = false
	return failed
}

var errChance = errors.New("by chance")

func chance(failed bool) error {
	if failed {
		return errChance
	}
	return nil
}

func (h *history) SyncPod(ctx context.Context, _ podsync.Kind, pod *corev1.Pod, _ *container.PodStatus) (bool, error) {
	err := chance(h.step(ctx, pod.UID, podsync.Syncing, 0, pod.Labels["version"]))
	h.mu.Lock()
	defer h.mu.Unlock()
	ended := err == nil && !h.calm && h.rnd.IntN(20) == 0
	if ended {
		h.life(pod.UID).killed = true
	}
	return ended, err
}

func (h *history) SyncTerminatingPod(ctx context.Context, pod *corev1.Pod, _ *container.PodStatus, grace *int64, _ podworker.StatusFunc) error {
	return chance(h.step(ctx, pod.UID, podsync.Terminating, *grace, pod.Labels["version"]))
}

func (h *history) SyncTerminatingRuntimePod(ctx context.Context, running container.Pod) error {
	return chance(h.step(ctx, running.UID, podsync.Terminating, 1, ""))
}

func (h *history) SyncTerminatedPod(ctx context.Context, pod *corev1.Pod, _ *container.PodStatus) error {
	return chance(h.step(ctx, pod.UID, podsync.Terminated, 0, pod.Labels["version"]))
}

func TestRandomHistoriesOfPodsKeepTheRules(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) { randomHistory(t, seed) })
	}
}

func randomHistory(t *testing.T, seed uint64) {
	t.Helper()
	h := &history{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 7)), pods: map[types.UID]*life{}}
	rnd := rand.New(rand.NewPCG(seed, 8)) // of the driver alone, so that a seed is a history
	p, err := podworker.New(podworker.Config{Waits: podsync.Waits{Resync: 20 * time.Second, Error: 3 * time.Second}, Random: func() float64 { return 0.5 }},
		h, &cache{running: map[types.UID]bool{}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	defer func() { cancel(); <-done }()

	wanted, serial := map[types.UID]*corev1.Pod{}, 0
	tick := func() {
		time.Sleep(time.Duration(rnd.IntN(1500)) * time.Millisecond) // of the bubble
		for _, uid := range p.Due() {
			if pod := wanted[uid]; pod != nil {
				p.Update(podworker.Update{Kind: podsync.KindSync, Pod: pod})
			} else {
				p.Again(uid)
			}
		}
	}
	for range 300 {
		uid := types.UID("pod-" + strconv.Itoa(rnd.IntN(6)))
		pod := wanted[uid]
		switch action := rnd.IntN(12); {
		case pod == nil:
			if _, known := p.State(uid); known {
				break // of an earlier life: the API server gives no UID twice
			}
			serial++
			pod = podNamed(string(uid))
			pod.UID, wanted[uid] = uid, pod
			h.mu.Lock()
			h.pods[uid] = &life{}
			h.mu.Unlock()
			p.Update(podworker.Update{Kind: podsync.KindCreate, Pod: pod})
		case action < 6:
			serial++
			pod = pod.DeepCopy()
			pod.Labels = map[string]string{"version": strconv.Itoa(serial)}
			wanted[uid] = pod
			if p.Update(podworker.Update{Kind: podsync.KindUpdate, Pod: pod}) == podsync.None {
				h.mu.Lock()
				h.life(uid).label = pod.Labels["version"]
				h.mu.Unlock()
			}
		case action < 8:
			h.kill(p, uid, pod, rnd.Int64N(40))
		case action == 8:
			delete(wanted, uid) // forced deletion: the pod is gone while it runs
			h.mu.Lock()
			h.life(uid).killed = true
			h.mu.Unlock()
		case action == 9:
			p.Update(podworker.Update{Kind: podsync.KindKill, RunningPod: &container.Pod{UID: uid, Name: string(uid)}})
			h.mu.Lock()
			h.life(uid).killed = true
			h.mu.Unlock()
		}
		p.SyncKnown(wanted)
		tick()
	}
	h.mu.Lock()
	h.calm = true
	h.mu.Unlock()
	for range 100 { // the last of what was asked for is done in the end
		p.SyncKnown(wanted)
		tick()
	}
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, l := range h.pods {
		state, known := p.State(uid)
		switch {
		case l.killed && known && state != podsync.Finished:
			t.Errorf("seed %d: %s was to end and is %v", seed, uid, state)
		case !l.killed && state != podsync.Syncing:
			t.Errorf("seed %d: %s is %v and nobody asked for its end", seed, uid, state)
		case !l.killed && l.label != "" && l.synced != l.label:
			t.Errorf("seed %d: %s was last synced as version %s, want the latest, %s", seed, uid, l.synced, l.label)
		}
	}
}

func (h *history) kill(p *podworker.Pool, uid types.UID, pod *corev1.Pod, grace int64) {
	h.mu.Lock()
	h.life(uid).killed = true
	h.mu.Unlock()
	pod = pod.DeepCopy()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(grace)
	p.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod})
}
