package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// stopping is a container that is to stop.
type stopping struct {
	id, name, why string
	// spec is nil for one that no pod's spec names.
	spec *corev1.Container
	// probe is the grace of the probe that it failed, in seconds; nil is none.
	probe *int64
	// noted is the grace that was written down with it, in seconds; nil is none.
	noted *int64
}

// KillPod stops a pod: its containers at once, sidecars after the others and in reverse, each with
// its grace, then its sandboxes. Pod may be nil when only the runtime still knows it; grace, in
// seconds, replaces the pod's. What runs is asked of the runtime again, running only adds to it.
// Nil says that nothing of the pod runs any more.
func (m *Manager) KillPod(ctx context.Context, pod *corev1.Pod, running container.Pod, grace *int64) error {
	uid := running.UID
	if pod != nil {
		uid = pod.UID
	}
	if uid == "" {
		return errors.New("kill a pod: it has no UID")
	}
	containers, sandboxes, err := m.list(ctx, uid, true)
	if err != nil {
		return fmt.Errorf("kill pod %s: %w", uid, err)
	}
	first, sidecars, left := m.toStop(ctx, pod, containers, running)
	start := m.now()
	var g errgroup.Group // no shared context: one that fails must not cut the grace of the others
	for _, s := range first {
		g.Go(func() error { return m.stop(ctx, pod, s, grace) })
	}
	err = g.Wait()
	for _, s := range sidecars {
		rest := m.graceOf(pod, s, grace) - int64(m.now().Sub(start)/time.Second)
		err = errors.Join(err, m.stop(ctx, pod, s, new(max(rest, 0))))
	}
	if err != nil {
		return errors.Join(left, err)
	}
	err = left // what was created and cannot be removed keeps nothing alive
	ids := map[string]bool{}
	for _, s := range sandboxes {
		if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			ids[s.GetId()] = true
		}
	}
	for _, s := range running.Sandboxes {
		if s.Ready {
			ids[s.ID] = true
		}
	}
	for id := range ids {
		if _, e := m.rt.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); e != nil && !cri.IsNotFound(e) {
			err = errors.Join(err, fmt.Errorf("stop sandbox %s: %w", id, e))
		}
	}
	return err
}

// toStop sorts out what of a pod has to be stopped, and removes what was created and never started.
func (m *Manager) toStop(ctx context.Context, pod *corev1.Pod, listed []*runtimeapi.Container, running container.Pod) (first, sidecars []stopping, err error) {
	var out []stopping
	seen := map[string]bool{}
	for _, r := range listed {
		c, _, ok := m.containerOf(r)
		if !ok {
			continue
		}
		seen[c.ID] = true
		switch c.State {
		case container.Exited:
		case container.Created:
			err = errors.Join(err, m.remove(ctx, c.ID, ""))
		default:
			out = append(out, stopping{id: c.ID, name: c.Name, why: "Stopping container " + c.Name, noted: notedGrace(r.GetAnnotations())})
		}
	}
	for _, c := range running.Containers {
		if !seen[c.ID] && (c.State == container.Running || c.State == container.Unknown) {
			out = append(out, stopping{id: c.ID, name: c.Name, why: "Stopping container " + c.Name})
		}
	}
	order := map[string]int{}
	if pod != nil {
		for i := range pod.Spec.InitContainers {
			if c := &pod.Spec.InitContainers[i]; podspec.Sidecar(c) {
				order[c.Name] = i + 1
			}
		}
	}
	for _, s := range out {
		if s.spec = specOf(pod, s.name); order[s.name] > 0 {
			sidecars = append(sidecars, s)
		} else {
			first = append(first, s)
		}
	}
	slices.SortStableFunc(sidecars, func(a, b stopping) int { return order[b.name] - order[a.name] })
	return first, sidecars, err
}

// maxGrace is a year in seconds. Runtimes count in nanoseconds, by which the largest graces that an
// API server takes are below zero.
const maxGrace = 365 * 24 * 3600

// graceOf is how long a container gets, in seconds, before its least is looked at.
func (m *Manager) graceOf(pod *corev1.Pod, s stopping, override *int64) int64 {
	grace := int64(0)
	switch {
	case override != nil:
		grace = *override
	case pod != nil && pod.DeletionGracePeriodSeconds != nil:
		grace = *pod.DeletionGracePeriodSeconds
	case s.probe != nil:
		grace = *s.probe
	case pod != nil && pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	case s.noted != nil:
		grace = *s.noted
	}
	return min(max(grace, 0), maxGrace)
}

// stop stops one container: its preStop hook, TERM, and KILL once its grace is over. Given a grace,
// that holds whatever the hook took; the pod's own is shortened by it, down to
// [Config.MinimumGrace].
func (m *Manager) stop(ctx context.Context, pod *corev1.Pod, s stopping, override *int64) error {
	grace := m.graceOf(pod, s, override)
	if s.spec == nil {
		s.spec = specOf(pod, s.name)
	}
	m.event(pod, corev1.EventTypeNormal, "Killing", s.why)
	start := m.now()
	if grace > 0 {
		m.preStop(ctx, pod, s, time.Duration(grace)*time.Second)
	}
	if override == nil {
		grace -= int64(m.now().Sub(start) / time.Second)
		grace = max(grace, int64(m.cfg.MinimumGrace/time.Second))
	}
	_, err := m.rt.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: s.id, Timeout: grace})
	if err != nil && !cri.IsNotFound(err) {
		return fmt.Errorf("stop container %q (%s): %w", s.name, s.id, err)
	}
	return nil
}

// probeGrace is the grace of a container that failed a probe, in seconds; nil is the pod's.
func probeGrace(c *corev1.Container, failed probe.Kind) *int64 {
	var p *corev1.Probe
	switch {
	case c == nil:
	case failed == probe.Liveness:
		p = c.LivenessProbe
	case failed == probe.Startup:
		p = c.StartupProbe
	}
	if p == nil {
		return nil
	}
	return p.TerminationGracePeriodSeconds
}

func specOf(pod *corev1.Pod, name string) *corev1.Container {
	if pod == nil {
		return nil
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// notedGrace is the grace written down when the container was made.
func notedGrace(annotations map[string]string) *int64 {
	for _, key := range []string{container.AnnotationPodDeletionGrace, container.AnnotationPodTerminateGrace} {
		if n, err := strconv.ParseInt(annotations[key], 10, 64); err == nil && n >= 0 {
			return &n
		}
	}
	return nil
}
