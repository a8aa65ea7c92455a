package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/controllers/nodeagent/container"
)

// Manager drives one runtime for one node. Its methods may be called at the same time for different pods;
// SyncPod and KillPod of one pod are called one after the other.
type Manager struct {
	cfg Config
	rt  *cri.Client
	now func() time.Time
	log *slog.Logger
	rec Recorder

	mu sync.Mutex
	// waiting are the reasons of each pod's last sync. Guarded by mu; the inner maps are never changed.
	waiting map[types.UID]map[string]WaitReason
}

// New builds a manager and reads the state of restarts. It does not contact the runtime. The error holds
// every fault of the configuration.
func New(cfg Config, rt *cri.Client, deps Deps) (*Manager, error) {
	err := cfg.validate()
	if rt == nil {
		err = errors.Join(err, errors.New("runtime: it is required"))
	}
	if err != nil {
		return nil, fmt.Errorf("runtime manager config: %w", err)
	}
	m := &Manager{cfg: cfg.withDefaults(), rt: rt, now: deps.Now, log: deps.Log, rec: deps.Recorder, waiting: map[types.UID]map[string]WaitReason{}}
	if m.now == nil {
		m.now = time.Now
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	return m, nil
}

// Volumes are where a pod's volumes lie on the node, by their names in its spec.
type Volumes map[string]string

// EnvVar is one variable of a container's environment.
type EnvVar struct{ Name, Value string }

// Inputs are what a pod's containers need beyond its spec.
type Inputs struct {
	Volumes Volumes
	// Environment makes a container's environment, once the pod's addresses are known. Its error makes the
	// container wait as CreateContainerConfigError. Nil takes the names and values in the spec, expanded.
	Environment func(ctx context.Context, c *corev1.Container, podIPs []string) ([]EnvVar, error)
}

// SyncPod brings a pod nearer to its spec, as [Decide] says, and returns as soon as what can be done now was
// done: it does not wait for init containers to end. What it created is in the runtime even when it fails in the
// middle; the next sync goes on from there. Status must have been observed after the pod's last sync.
func (m *Manager) SyncPod(ctx context.Context, pod *corev1.Pod, status *container.PodStatus, in Inputs) Result {
	return Result{Err: errors.New("kuberuntime: not there yet")}
}

// KillPod stops a pod: its containers at once, sidecars after the others and in reverse, each with its grace, then its
// sandboxes. Pod may be nil when only the runtime still knows it; grace, in seconds, replaces the pod's. What
// runs is asked of the runtime again, running only adds to it. Nil says that nothing of the pod runs any more.
func (m *Manager) KillPod(ctx context.Context, pod *corev1.Pod, running container.Pod, grace *int64) error {
	return errors.New("kuberuntime: not there yet")
}

// CollectGarbage removes dead containers beyond [Config.KeepDead] for pods that keep says are wanted, and everything dead of the
// others: containers, sandboxes, logs, files, back-off entries. With all, the dead containers of wanted pods go too.
func (m *Manager) CollectGarbage(ctx context.Context, keep func(types.UID) bool, all bool) error {
	return errors.New("kuberuntime: not there yet")
}

// WaitReasons are why containers of a pod did not start at its last sync, by name; the map must not be changed.
func (m *Manager) WaitReasons(uid types.UID) map[string]WaitReason {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting[uid]
}

func (m *Manager) setWaiting(uid types.UID, reasons map[string]WaitReason) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(reasons) == 0 {
		delete(m.waiting, uid)
		return
	}
	m.waiting[uid] = maps.Clone(reasons)
}

func (m *Manager) event(pod *corev1.Pod, eventType, reason, message string) {
	if m.rec != nil && pod != nil {
		m.rec.Event(pod, eventType, reason, message)
	}
}
