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

// Exec runs a command in a container and returns its exit code and what it printed. An error says
// that it could not be run; one that took longer than timeout is [context.DeadlineExceeded].
func (m *Manager) Exec(ctx context.Context, id string, command []string, timeout time.Duration) (code int32, output []byte, err error) {
	r, err := m.rt.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command, Timeout: max(int64(timeout/time.Second), 1)})
	switch {
	case cri.IsTimeout(err):
		return 0, nil, fmt.Errorf("exec %q: %w: %s", command, context.DeadlineExceeded, cri.Message(err))
	case err != nil:
		return 0, nil, fmt.Errorf("exec %q: %s", command, cri.Message(err))
	}
	return r.GetExitCode(), append(r.GetStderr(), r.GetStdout()...), nil
}

// runHook runs a command in a container, or waits. Other kinds are refused by [Unsupported].
func (m *Manager) runHook(ctx context.Context, h *corev1.LifecycleHandler, id string, limit time.Duration) error {
	switch {
	case h.Exec != nil:
		code, out, err := m.Exec(ctx, id, h.Exec.Command, limit)
		if err != nil {
			return err
		}
		if code != 0 {
			return fmt.Errorf("exec %q: exit code %d, %.512q", h.Exec.Command, code, bytes.TrimSpace(out))
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
