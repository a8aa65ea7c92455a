package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// Manager drives one runtime for one node. Its methods may be called at the same time for different
// pods; SyncPod and KillPod of one pod are called one after the other.
type Manager struct {
	cfg Config
	rt  *cri.Client
	now func() time.Time
	log *slog.Logger
	rec kube.EventRecorder

	crash *backoffs
	pulls *backoffs
	// pulling holds a token for every image that is being pulled.
	pulling chan struct{}
	metrics *metrics

	mu sync.Mutex
	// waiting are the reasons of each pod's last sync. Guarded by mu; the inner maps are never
	// changed.
	waiting map[types.UID]map[string]WaitReason
}

// New builds a manager and reads the state of restarts. It does not contact the runtime. The error
// holds every fault of the configuration.
func New(cfg Config, rt *cri.Client, deps Deps) (*Manager, error) {
	err := cfg.validate()
	if rt == nil {
		err = errors.Join(err, errors.New("runtime: it is required"))
	}
	if err != nil {
		return nil, fmt.Errorf("runtime manager config: %w", err)
	}
	cfg = cfg.withDefaults()
	m := &Manager{
		cfg: cfg, rt: rt, now: deps.Now, log: deps.Log, rec: deps.Recorder,
		pulling: make(chan struct{}, cfg.ParallelPulls), waiting: map[types.UID]map[string]WaitReason{},
	}
	if m.now == nil {
		m.now = time.Now
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.metrics, err = newMetrics(deps.Metrics); err != nil {
		return nil, fmt.Errorf("runtime manager: %w", err)
	}
	m.pulls = newBackoffs(cfg.ImagePull, "", m.now(), m.log)
	state := ""
	if cfg.RootDir != "" {
		state = filepath.Join(cfg.RootDir, "crashloop.json")
	}
	m.crash = newBackoffs(cfg.CrashLoop, state, m.now(), m.log)
	return m, nil
}

// Volumes are where a pod's volumes lie on the node, by their names in its spec.
type Volumes map[string]string

// EnvVar is one variable of a container's environment.
type EnvVar = environ.Var

// Verdict is what probes found of a container that runs.
type Verdict struct {
	// Started says that it needs no startup probe any more.
	Started bool
	// Failed is the kind of probe that it failed, Liveness or Startup; zero for none.
	Failed probe.Kind
}

// Probes are the verdicts by container ID.
type Probes map[string]Verdict

// Inputs are what a pod's containers need beyond its spec.
type Inputs struct {
	Volumes Volumes
	// SubPath is the path on the node of the part of a volume that the i-th mount of a container
	// names. Its error makes the container wait as CreateContainerConfigError. Nil looks the part up
	// in the volume, where a container that can write there could exchange it.
	SubPath func(c *corev1.Container, i int, env []EnvVar) (string, error)
	// Environment makes a container's environment, once the pod's addresses are known. Its error makes
	// the container wait as CreateContainerConfigError. Nil takes the names and values in the spec,
	// expanded.
	Environment func(ctx context.Context, c *corev1.Container, podIPs []string) ([]EnvVar, error)
	// Probes are what was found of the pod's containers that run. One that is not there failed
	// nothing, and has started unless it has a startup probe.
	Probes Probes
}

// WaitReasons are why containers of a pod did not start at its last sync, by name; the map must not
// be changed.
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
		m.rec.Event(kube.Pods.Involved(pod.Namespace, pod.Name, string(pod.UID)), eventType, reason, message)
	}
}

// metrics carry the kubelet's names.
type metrics struct {
	pods, podErrors             prometheus.Counter
	containers, containerErrors *prometheus.CounterVec
	backoff                     prometheus.Counter
	stateErrors                 prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		pods:      prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_total", Help: "Sandboxes that were asked for."}),
		podErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "kubelet_started_pods_errors_total", Help: "Sandboxes that could not be made."}),
		containers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_total", Help: "Starts that were tried. container_type is container or init_container.",
		}, []string{"container_type"}),
		containerErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelet_started_containers_errors_total",
			Help: "Starts that failed. container_type is container or init_container; code is the reason in the pod's status, such as ErrImagePull.",
		}, []string{"container_type", "code"}),
		backoff: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_nodeagent_restarts_delayed_total", Help: "Syncs that found a container in CrashLoopBackOff.",
		}),
		stateErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltaplane_nodeagent_backoff_state_errors_total", Help: "Writes of the file of restart delays that failed.",
		}),
	}
	if reg == nil {
		return m, nil
	}
	var faults []error
	for _, c := range []prometheus.Collector{m.pods, m.podErrors, m.containers, m.containerErrors, m.backoff, m.stateErrors} {
		faults = append(faults, reg.Register(c))
	}
	return m, errors.Join(faults...)
}
