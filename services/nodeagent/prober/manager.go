package prober

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/probe"
)

// Change is a probe whose answers came to something else than before.
type Change struct {
	Pod *corev1.Pod
	// ID is the container's in the runtime.
	Container, ID string
	Kind          probe.Kind
	Result        probe.Result
}

// Deps are what a manager works with. All but Metrics are needed; none may block for long but
// Probe, which ends when its context does.
type Deps struct {
	// Status is a pod's status as it was last generated; false when there is none yet.
	Status func(types.UID) (corev1.PodStatus, bool)
	// Probe makes one probe. One that panics could not be made.
	Probe Func
	// Warn writes a Warning Event about a pod.
	Warn func(pod *corev1.Pod, reason, message string)
	// Settled is notified of every change, one at a time for each probe.
	Settled func(Change)
	// Log gets panics.
	Log *slog.Logger
	// Metrics, if set, gets prober_probe_total and prober_probe_duration_seconds.
	Metrics prometheus.Registerer
}

// Manager has a worker for every probe of the pods that were added. Its methods may be called at
// any time, Run once; nothing is probed before.
type Manager struct {
	deps    Deps
	metrics *metrics

	mu    sync.Mutex // guards what follows
	pods  map[types.UID][]*worker
	spawn func(*worker) // nil unless Run runs
}

// New returns a manager without pods. The error says which metrics exist already.
func New(deps Deps) (*Manager, error) {
	m, err := newMetrics(deps.Metrics)
	if err != nil {
		return nil, fmt.Errorf("prober: metrics: %w", err)
	}
	return &Manager{deps: deps, metrics: m, pods: map[types.UID][]*worker{}}, nil
}

// Run probes until ctx ends and every worker has. It returns nil.
func (m *Manager) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	m.mu.Lock()
	m.spawn = func(w *worker) {
		ctx, cancel := context.WithCancel(ctx)
		w.cancel = cancel
		wg.Go(func() { m.run(ctx, w) })
	}
	for _, workers := range m.pods {
		for _, w := range workers {
			m.spawn(w)
		}
	}
	m.mu.Unlock()

	<-ctx.Done()
	m.mu.Lock()
	m.spawn = nil
	m.mu.Unlock()
	wg.Wait()
	return nil
}

// Add takes in a pod that is to run. One that was added is left as it is: probes do not change.
// Pod must not be changed afterwards.
func (m *Manager) Add(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[pod.UID] != nil {
		return
	}
	workers := workersOf(pod)
	if len(workers) == 0 {
		return
	}
	m.pods[pod.UID] = workers
	if m.spawn != nil {
		for _, w := range workers {
			m.spawn(w)
		}
	}
}

// Wake makes a pod's workers look at its status again.
func (m *Manager) Wake(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.pods[uid] {
		w.signal()
	}
}

// Result is what the probes of a kind come to for the container id of a pod; Unknown when it has
// no such probe, or too few answers.
func (m *Manager) Result(uid types.UID, id string, kind probe.Kind) probe.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.pods[uid] {
		if w.kind != kind {
			continue
		}
		if r := w.result(id); r != probe.Unknown {
			return r
		}
	}
	return probe.Unknown
}

// Terminating ends a pod's liveness and startup probes: it is being ended anyway, and its
// readiness still counts.
func (m *Manager) Terminating(uid types.UID) {
	m.remove(uid, func(w *worker) bool { return w.kind != probe.Readiness })
}

// Remove ends all of a pod's probes and forgets what they came to.
func (m *Manager) Remove(uid types.UID) {
	m.remove(uid, func(*worker) bool { return true })
}

// Retain removes every pod that keep does not know.
func (m *Manager) Retain(keep func(types.UID) bool) {
	m.mu.Lock()
	var gone []types.UID
	for uid := range m.pods {
		if !keep(uid) {
			gone = append(gone, uid)
		}
	}
	m.mu.Unlock()
	for _, uid := range gone {
		m.Remove(uid)
	}
}

func (m *Manager) remove(uid types.UID, which func(*worker) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := slices.DeleteFunc(m.pods[uid], func(w *worker) bool {
		if !which(w) {
			return false
		}
		if w.cancel != nil {
			w.cancel()
		}
		return true
	})
	if len(left) == 0 {
		delete(m.pods, uid)
		return
	}
	m.pods[uid] = left
}
