package prober

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// The reasons of the Events about probes, the kubelet's.
const (
	reasonUnhealthy = "Unhealthy"
	reasonWarning   = "ProbeWarning"
)

// tries is how often a probe that cannot be made is tried at once.
const tries = 3

// worker is one probe of one container of a pod.
type worker struct {
	pod       *corev1.Pod
	container *corev1.Container
	kind      probe.Kind
	spec      *corev1.Probe
	wake      chan struct{}      // one slot: the status may have changed
	cancel    context.CancelFunc // nil before it runs; guarded by the manager's mu
	warned    warnings           // of its goroutine alone

	mu    sync.Mutex
	state *probe.Probe // guarded by mu
}

// workersOf are the probes of a pod. Init containers that end by themselves have none.
func workersOf(pod *corev1.Pod) (workers []*worker) {
	add := func(c *corev1.Container) {
		for kind, spec := range map[probe.Kind]*corev1.Probe{
			probe.Readiness: c.ReadinessProbe, probe.Liveness: c.LivenessProbe, probe.Startup: c.StartupProbe,
		} {
			if spec != nil {
				workers = append(workers, newWorker(pod, c, kind, spec))
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podspec.Sidecar(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return workers
}

func newWorker(pod *corev1.Pod, c *corev1.Container, kind probe.Kind, spec *corev1.Probe) *worker {
	return &worker{
		pod: pod, container: c, kind: kind, spec: spec, wake: make(chan struct{}, 1),
		warned: warnings{limit: rate.NewLimiter(rate.Every(warnEvery), warnBurst)},
		state: probe.New(kind, probe.Spec{
			InitialDelay: time.Duration(spec.InitialDelaySeconds) * time.Second, Period: time.Duration(spec.PeriodSeconds) * time.Second,
			Successes: int(spec.SuccessThreshold), Failures: int(spec.FailureThreshold),
		}),
	}
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *worker) result(id string) probe.Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state.Result(id)
}

// run probes until ctx ends.
func (m *Manager) run(ctx context.Context, w *worker) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return
		}
		if at, ok := m.look(ctx, w); ok {
			timer.Reset(time.Until(at))
		} else {
			timer.Stop()
		}
	}
}

// look observes the container, probes it when that is due, and returns when the next probe is; ok
// is false when that waits for another status.
func (m *Manager) look(ctx context.Context, w *worker) (at time.Time, ok bool) {
	status, _ := m.deps.Status(w.pod.UID)
	c := containerOf(&status, w.container.Name)
	now := time.Now()
	w.mu.Lock()
	w.state.Observe(c, now, rand.Float64()) //nolint:gosec // it spreads probes
	at, ok = w.state.Due()
	w.mu.Unlock()
	if !ok || at.After(now) {
		return at, ok
	}
	answer, err := m.probe(ctx, w, Target{
		Pod: w.pod, Container: w.container, ID: c.ID, IP: status.PodIP, Handler: w.spec.ProbeHandler,
		Timeout: time.Duration(max(w.spec.TimeoutSeconds, 1)) * time.Second,
	})
	if ctx.Err() != nil {
		return at, false // nobody asked for the end of this probe
	}
	w.mu.Lock()
	changed := w.state.Settle(c.ID, answer.Result, now)
	at, ok = w.state.Due()
	w.mu.Unlock()
	m.warn(w, c.ID, answer, err, changed)
	if changed {
		m.deps.Settled(Change{Pod: w.pod, Container: w.container.Name, ID: c.ID, Kind: w.kind, Result: answer.Result})
	}
	return at, ok
}

// probe asks, and counts what came of it. With an error the result is Unknown.
func (m *Manager) probe(ctx context.Context, w *worker, t Target) (answer Answer, err error) {
	begin := time.Now()
	answer, err = m.ask(ctx, t)
	if ctx.Err() != nil {
		return Answer{}, ctx.Err()
	}
	if err != nil {
		answer = Answer{}
	}
	m.metrics.made(w.kind, answer.Result, time.Since(begin))
	return answer, err
}

// ask asks once, and again at once while it cannot.
func (m *Manager) ask(ctx context.Context, t Target) (answer Answer, err error) {
	defer func() {
		// One container's probe must not end the agent of all.
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
			m.deps.Log.Error("probe panicked", slog.String(telemetry.KeyUID, string(t.Pod.UID)),
				slog.Any(telemetry.KeyPanic, r), slog.String(telemetry.KeyStack, string(debug.Stack())))
		}
	}()
	for range tries {
		if answer, err = m.deps.Probe(ctx, t); err == nil || ctx.Err() != nil {
			break
		}
	}
	return answer, err
}

// containerOf is a container as a status has it; without an ID when the status does not.
func containerOf(s *corev1.PodStatus, name string) probe.Container {
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range list {
			if list[i].Name != name {
				continue
			}
			c := probe.Container{ID: container.ID(list[i].ContainerID), Started: list[i].Started != nil && *list[i].Started}
			if r := list[i].State.Running; r != nil {
				c.Running, c.Since = c.ID != "", r.StartedAt.Time
			}
			return c
		}
	}
	return probe.Container{}
}
