package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/node"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
	"github.com/deltaplane/deltaplane/services/nodeagent/volume"
)

// Deps are what the agent is built on. The caller closes them after Run.
type Deps struct {
	// Kube is the API server that is written to, and that volumes and environments are read from.
	Kube *kube.Client
	// Index is a connection to the index service.
	Index grpc.ClientConnInterface
	// Runtime is a connection to a CRI server in this process; nil dials [Config.CRI].
	Runtime grpc.ClientConnInterface
	// Probe makes the probes of containers; nil goes over the network and into the containers. With
	// simulated ones, of which none answers, it is [prober.Passes].
	Probe prober.Func
	// Telemetry is reported through. Agents that share a process need one each.
	Telemetry *telemetry.Telemetry
}

// Agent is the agent of one node. Make it with New, run it once.
type Agent struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	admin   *telemetry.Admin

	cri      *cri.Client
	runtime  *kuberuntime.Manager
	pleg     *pleg.PLEG
	pool     *podworker.Pool
	source   *source
	statuses *podstatus.Manager
	objects  *volume.Objects
	volumes  *volume.Manager
	prober   *prober.Manager
	recorder *kube.Recorder
	health   *health
	node     nodeView
	first    sync.Once     // the first look at the runtime, which the first report waits for
	sweep    chan struct{} // one slot: a container died, look for what may be removed
	probes   chan struct{} // one slot: there are pods in probed
	noting   sync.Mutex    // held from a look at what probes came to until the status made of it is noted

	mu       sync.Mutex // guards what follows
	pods     map[types.UID]*corev1.Pod
	synced   bool
	gone     map[types.UID]bool          // confirmed not to be pods of this node, while the runtime has something of them
	orphans  map[types.UID]container.Pod // of those, what runs, to be ended by the loop
	starting map[types.UID]time.Time     // when pods that have not run yet were first seen
	told     map[types.UID]bool          // pods whose ignored fields were reported
	probed   map[types.UID]bool          // pods to be synced because of their probes
	linked   map[string][]corev1.Service // the services of namespaces as they were last read
}

// New builds the agent; it contacts nobody and writes nothing. The error holds
// every fault of the configuration.
func New(cfg Config, deps Deps) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	a := &Agent{
		cfg: cfg.withDefaults(), deps: deps, sweep: make(chan struct{}, 1), probes: make(chan struct{}, 1),
		pods: map[types.UID]*corev1.Pod{}, gone: map[types.UID]bool{}, starting: map[types.UID]time.Time{}, told: map[types.UID]bool{}, probed: map[types.UID]bool{}, linked: map[string][]corev1.Service{},
	}
	a.log = deps.Telemetry.Log.With(slog.String(telemetry.KeyNode, a.cfg.Node))
	reg := deps.Telemetry.Registry
	var err error
	if a.metrics, err = newMetrics(reg); err != nil {
		return nil, fmt.Errorf("nodeagent: metrics: %w", err)
	}
	if a.admin, err = telemetry.NewAdmin(a.cfg.Admin, reg, a.log); err != nil {
		return nil, err
	}
	a.recorder = kube.NewRecorder(deps.Kube, "kubelet", a.cfg.Node, a.log)
	a.objects = volume.NewObjects(deps.Kube, 0, nil)
	if a.volumes, err = volume.New(volume.Config{Root: a.podsDir(), Mount: deps.Runtime == nil}, a.objects, a.log); err != nil {
		return nil, err
	}
	if a.statuses, err = podstatus.New(podstatus.Config{QPS: a.cfg.StatusQPS, Burst: a.cfg.StatusBurst, Metrics: reg}, deps.Kube, a.log); err != nil {
		return nil, err
	}
	if err := a.buildRuntime(); err != nil {
		return nil, err
	}
	if err := a.buildProber(); err != nil {
		return nil, err
	}
	a.source = newSource(client.NewIndex(deps.Index), deps.Kube, a.cfg.Cluster, a.cfg.Node, a.settled, a.log)
	a.admin.Ready("pods", func(context.Context) error { return a.source.ready() })
	a.admin.Ready("runtime", func(context.Context) error { return a.runtimeError() })
	a.admin.Ready("node", func(context.Context) error {
		if a.node.object() == nil {
			return fmt.Errorf("node %s is not registered yet", a.cfg.Node)
		}
		return nil
	})
	return a, nil
}

// buildRuntime makes what looks at the runtime and acts on it.
func (a *Agent) buildRuntime() error {
	reg := a.deps.Telemetry.Registry
	if a.deps.Runtime != nil {
		a.cri = cri.Observed(a.deps.Runtime, a.metrics.operation)
	} else {
		var err error
		if a.cri, err = cri.DialObserved(a.cfg.CRI, a.metrics.operation); err != nil {
			return err
		}
	}
	var err error
	a.runtime, err = kuberuntime.New(kuberuntime.Config{
		Node: a.cfg.Node, RootDir: a.cfg.RootDir, PodsDir: a.podsDir(), LogRoot: a.cfg.LogRoot,
		CrashLoop: a.cfg.CrashLoop, ImagePull: a.cfg.ImagePull, HostNetworkOnly: a.cfg.HostNetworkOnly,
		DNS: a.cfg.ClusterDNS, ClusterDomain: a.cfg.ClusterDomain, ResolvConf: a.cfg.ResolvConf,
	}, a.cri, kuberuntime.Deps{Recorder: a.recorder, Log: a.log, Metrics: reg})
	if err != nil {
		return err
	}
	if a.pleg, err = pleg.New(pleg.Config{Period: a.cfg.Relist, NoStream: a.cfg.NoEvents}, a.runtime, a.log, reg); err != nil {
		return err
	}
	a.health = newHealth(a.runtime, a.cri.Check, a.log)
	a.pool, err = podworker.New(podworker.Config{
		Waits: podsync.Waits{Resync: a.cfg.Resync, Error: a.cfg.ErrorWait, Transient: a.cfg.TransientWait},
		Grace: a.cfg.Grace, Refresh: a.pleg.RequestRelist, Failed: a.stepFailed, Metrics: reg, Log: a.log,
	}, &syncer{a}, a.pleg.Cache())
	return err
}

// Ready reports the readiness that the admin page shows.
func (a *Agent) Ready(ctx context.Context) telemetry.Readiness { return a.admin.Readiness(ctx) }

// podsDir holds a directory per pod UID: its volumes and what its containers are given as files.
func (a *Agent) podsDir() string { return filepath.Join(a.cfg.RootDir, "pods") }

// settled reports whether a pod needs nothing more of this node, so that its removal can be
// believed.
func (a *Agent) settled(uid types.UID) bool {
	state, known := a.pool.State(uid)
	return known && state == podsync.Finished
}

// pod is what is known of a pod bound to this node; nil for any other.
func (a *Agent) pod(uid types.UID) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.pods[uid]
}

// wanted are the pods bound to this node, and whether all are known.
func (a *Agent) wanted() (pods map[types.UID]*corev1.Pod, synced bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.pods), a.synced
}

// runtimeError is nil while pods can be worked on: the runtime answers, and is listed often enough.
func (a *Agent) runtimeError() error {
	return errors.Join(a.health.err(), a.pleg.Healthy())
}

// capacity is what the node says it has: what this machine has, and as many pods as it takes.
func (a *Agent) capacity() corev1.ResourceList {
	c := node.Capacity(a.cfg.RootDir)
	c[corev1.ResourcePods] = *resource.NewQuantity(int64(a.cfg.MaxPods), resource.DecimalSI)
	return c
}
