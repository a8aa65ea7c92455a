package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
)

// syncer does the work of one pod; it implements [podworker.Syncer].
type syncer struct{ *Agent }

var _ podworker.Syncer = (*syncer)(nil)

// SyncPod tells the pod's status, and brings it nearer to its spec.
func (s *syncer) SyncPod(ctx context.Context, _ podsync.Kind, pod *corev1.Pod, seen *container.PodStatus) (terminal bool, err error) {
	failed := s.refusal(pod)
	status := s.tell(pod, seen, telling{failed: failed})
	if status.Phase == corev1.PodRunning {
		s.started(pod)
	}
	if status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed {
		return true, nil
	}
	s.tellIgnored(pod)
	if why := s.health.network(); why != nil && s.cfg.WaitForNetwork && !pod.Spec.HostNetwork {
		s.warn(pod, reasonNetworkNotReady, why.Error())
		return false, fmt.Errorf("%w: %w", podsync.ErrNetworkNotReady, why)
	}
	mounts, err := s.volumes.Setup(ctx, pod, s.facts(seen))
	if err != nil {
		if ctx.Err() == nil {
			s.warn(pod, reasonFailedMount, err.Error())
		}
		return false, fmt.Errorf("nodeagent: volumes: %w", err)
	}
	s.prober.Add(pod)
	in := s.inputs(pod, mounts)
	in.Probes = s.probesOf(pod.UID, &status)
	result := s.runtime.SyncPod(ctx, pod, withEnded(pod, seen, &status), in)
	if result.Changed || errors.Is(result.Err, kuberuntime.ErrStale) {
		s.pleg.RequestRelist(pod.UID)
	}
	if len(result.Waiting) > 0 && ctx.Err() == nil {
		// Why containers wait is known now: the next sync may be minutes away.
		s.tell(pod, seen, telling{})
	}
	if errors.Is(result.Err, kuberuntime.ErrStale) {
		return false, again{result.Err}
	}
	return false, result.Err
}

// again is an error after which another try may succeed at once.
type again struct{ error }

// BackoffUntil implements [podsync.Backoff].
func (again) BackoffUntil() time.Time { return time.Time{} }

func (e again) Unwrap() error { return e.error }

// SyncTerminatingPod ends what runs of the pod, and tells how it ended.
func (s *syncer) SyncTerminatingPod(ctx context.Context, pod *corev1.Pod, seen *container.PodStatus, grace *int64, change podworker.StatusFunc) error {
	s.tell(pod, seen, telling{change: change})
	s.prober.Terminating(pod.UID)
	if err := s.runtime.KillPod(ctx, pod, podOf(seen), grace); err != nil {
		if ctx.Err() == nil {
			s.warn(pod, reasonFailedKill, err.Error())
		}
		return fmt.Errorf("nodeagent: kill: %w", err)
	}
	s.prober.Remove(pod.UID)
	// The exit codes are told from a look of its own: a dead container may be
	// collected before the next list shows it.
	ended, err := s.runtime.PodStatus(ctx, pod.UID, pod.Namespace, pod.Name)
	if err != nil {
		return fmt.Errorf("nodeagent: status after the end: %w", err)
	}
	if ended.Running() {
		return fmt.Errorf("nodeagent: pod %s/%s still runs after it was killed", pod.Namespace, pod.Name)
	}
	s.tell(pod, ended, telling{terminal: true, change: change})
	s.statuses.Stopped(pod)
	return nil
}

// SyncTerminatingRuntimePod ends a pod of which only the runtime knows.
func (s *syncer) SyncTerminatingRuntimePod(ctx context.Context, running container.Pod) error {
	if err := s.runtime.KillPod(ctx, nil, running, new(int64(1))); err != nil {
		return fmt.Errorf("nodeagent: kill of an orphan: %w", err)
	}
	return nil
}

// SyncTerminatedPod frees what the pod had besides containers. After it the
// pod's last status may be written, and a pod that is being deleted removed.
func (s *syncer) SyncTerminatedPod(_ context.Context, pod *corev1.Pod, seen *container.PodStatus) error {
	s.prober.Remove(pod.UID)
	s.tell(pod, seen, telling{terminal: true})
	if err := s.volumes.Teardown(pod.UID); err != nil {
		return fmt.Errorf("nodeagent: volumes: %w", err)
	}
	s.statuses.Finish(pod)
	s.sweepSoon()
	return nil
}

// telling is what is to be said of a pod besides what was seen of it.
type telling struct {
	failed   *podstatus.Reason
	terminal bool
	change   podworker.StatusFunc
}

// tell makes the pod's status from what was seen of it, and hands it on to be written.
func (a *Agent) tell(pod *corev1.Pod, seen *container.PodStatus, t telling) corev1.PodStatus {
	status := a.noted(pod, seen, t)
	a.prober.Wake(pod.UID)
	return status
}

func (a *Agent) noted(pod *corev1.Pod, seen *container.PodStatus, t telling) corev1.PodStatus {
	a.noting.Lock()
	defer a.noting.Unlock()
	in := podstatus.Input{
		Pod: pod, Runtime: seen, HostIPs: a.node.hostIPs(), Failed: t.failed, Terminal: t.terminal, Now: time.Now(),
		RuntimeName: a.health.runtimeName(), Waiting: map[string]podstatus.Reason{},
		Probed: func(id string, kind probe.Kind) probe.Result { return a.prober.Result(pod.UID, id, kind) },
	}
	if last, ok := a.statuses.Get(pod.UID); ok {
		in.Last = &last
	}
	for name, w := range a.runtime.WaitReasons(pod.UID) {
		in.Waiting[name] = podstatus.Reason(w)
	}
	status := podstatus.Generate(in)
	if t.change != nil {
		t.change(&status)
	}
	a.statuses.Set(pod, status)
	return status
}

// refusal is why a pod is failed rather than run; nil for one that is fine.
func (a *Agent) refusal(pod *corev1.Pod) *podstatus.Reason {
	if a.pastDeadline(pod, time.Now()) {
		r := &podstatus.Reason{Reason: reasonDeadline, Message: "Pod was active on the node longer than the specified deadline"}
		a.event(pod, kube.Normal, r.Reason, r.Message)
		return r
	}
	faults := append(podspec.Unsupported(pod), kuberuntime.Unsupported(pod)...)
	if len(faults) == 0 {
		return nil
	}
	r := &podstatus.Reason{Reason: reasonUnsupported, Message: strings.ReplaceAll(errors.Join(faults...).Error(), "\n", "; ")}
	a.warn(pod, r.Reason, r.Message)
	return r
}

// pastDeadline reports whether a pod has been active for longer than its spec allows.
func (a *Agent) pastDeadline(pod *corev1.Pod, now time.Time) bool {
	limit := pod.Spec.ActiveDeadlineSeconds
	if limit == nil {
		return false
	}
	status := pod.Status
	if told, ok := a.statuses.Get(pod.UID); ok {
		status = told
	}
	return status.StartTime != nil && int64(now.Sub(status.StartTime.Time)/time.Second) >= *limit
}

// tellIgnored says once which fields of a pod it runs without.
func (a *Agent) tellIgnored(pod *corev1.Pod) {
	a.mu.Lock()
	told := a.told[pod.UID] || a.pods[pod.UID] == nil // one that went meanwhile leaves no entry behind
	if !told {
		a.told[pod.UID] = true
	}
	a.mu.Unlock()
	if told {
		return
	}
	if ignored := append(podspec.Ignored(pod), kuberuntime.Ignored(pod)...); len(ignored) > 0 {
		a.warn(pod, reasonIgnored, strings.Join(ignored, "; "))
	}
}

// started notes that a pod runs for the first time.
func (a *Agent) started(pod *corev1.Pod) {
	a.mu.Lock()
	seen, ok := a.starting[pod.UID]
	delete(a.starting, pod.UID)
	a.mu.Unlock()
	if ok {
		a.metrics.start.Observe(time.Since(seen).Seconds())
	}
}

// stepFailed tells of a step that failed; errors that have Events of their own are left to them.
func (a *Agent) stepFailed(pod *corev1.Pod, err error) {
	if _, backoff := podsync.BackoffUntil(err); pod == nil || backoff {
		return
	}
	a.warn(pod, reasonFailedSync, "error syncing pod: "+err.Error())
}

// facts are what the node knows for a pod's environment and volumes.
func (a *Agent) facts(seen *container.PodStatus) environ.Facts {
	f := environ.Facts{HostIPs: a.node.hostIPs(), Allocatable: a.node.allocatable()}
	if seen != nil {
		f.PodIPs = seen.IPs
	}
	return f
}

// podOf is the part of a status that the runtime's list would show.
func podOf(s *container.PodStatus) container.Pod {
	if s == nil {
		return container.Pod{}
	}
	p := container.Pod{UID: s.UID, Namespace: s.Namespace, Name: s.Name}
	for i := range s.Sandboxes {
		p.Sandboxes = append(p.Sandboxes, s.Sandboxes[i].Sandbox)
	}
	for i := range s.Containers {
		p.Containers = append(p.Containers, s.Containers[i].Container)
	}
	return p
}
