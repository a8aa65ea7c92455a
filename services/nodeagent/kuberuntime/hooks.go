package kuberuntime

import (
	"bytes"
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
)

// postStartLimit is how long a postStart command may take.
const postStartLimit = 2 * time.Minute

// postStart runs a container's hook; one that fails ends the container.
func (s *syncing) postStart(ctx context.Context, c *corev1.Container, id string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := s.runHook(ctx, c.Lifecycle.PostStart, id, postStartLimit)
	if err == nil {
		return nil
	}
	// The message may hold secrets that the command printed: it goes to the pod's status, not to an
	// Event.
	s.event(s.pod, corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed")
	if e := s.stop(ctx, s.pod, stopping{id: id, name: c.Name, why: "FailedPostStartHook", spec: c}, nil); e != nil {
		err = fmt.Errorf("%w; and it does not stop: %w", err, e)
	}
	return &ContainerError{Container: c.Name, Reason: ReasonPostStartHookError, Message: err.Error(), Err: err}
}

// preStop runs a container's hook for at most its grace. A hook that fails is reported, and the
// container is stopped all the same.
func (m *Manager) preStop(ctx context.Context, pod *corev1.Pod, s stopping, grace time.Duration) {
	if s.spec == nil || s.spec.Lifecycle == nil || s.spec.Lifecycle.PreStop == nil {
		return
	}
	if err := m.runHook(ctx, s.spec.Lifecycle.PreStop, s.id, grace); err != nil {
		m.event(pod, corev1.EventTypeWarning, "FailedPreStopHook", "PreStopHook failed")
	}
}

// runHook runs a command in a container, or waits. Other kinds are refused by [Unsupported].
func (m *Manager) runHook(ctx context.Context, h *corev1.LifecycleHandler, id string, limit time.Duration) error {
	switch {
	case h.Exec != nil:
		r, err := m.rt.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: h.Exec.Command, Timeout: max(int64(limit/time.Second), 1)})
		if err != nil {
			return fmt.Errorf("exec %q: %s", h.Exec.Command, cri.Message(err))
		}
		if r.GetExitCode() != 0 {
			out := bytes.TrimSpace(append(r.GetStderr(), r.GetStdout()...))
			return fmt.Errorf("exec %q: exit code %d, %.512q", h.Exec.Command, r.GetExitCode(), out)
		}
		return nil
	case h.Sleep != nil:
		t := time.NewTimer(min(time.Duration(min(h.Sleep.Seconds, maxGrace))*time.Second, limit))
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
