package criruntime

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// longest is a century in seconds; more would overflow nanoseconds.
const longest = 100 * 365 * 24 * 3600

// StopContainer sends SIGTERM, waits for the timeout, sends SIGKILL, and returns when
// the container has ended. A call that is given up before leaves the container without
// its SIGKILL, as containerd does. A container that is gone or does not run is fine;
// a timeout of 0 or less kills at once.
func (s *Server) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	ended, err := s.signal(r.GetContainerId(), r.GetTimeout() > 0)
	if err != nil {
		return nil, internal(err)
	}
	if ended == nil {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	grace := time.NewTimer(time.Duration(min(r.GetTimeout(), longest)) * time.Second)
	defer grace.Stop()
	select {
	case <-ended:
		return &runtimeapi.StopContainerResponse{}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	case <-grace.C:
	}
	if _, err := s.signal(r.GetContainerId(), false); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// signal sends SIGTERM, or SIGKILL, which ends a run at once. ended is closed at the
// run's end; it is nil when there is nothing to wait for.
func (s *Server) signal(id string, term bool) (ended <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[id]
	if c == nil || !c.running() {
		return nil, nil
	}
	now := time.Now()
	if !term {
		return nil, s.end(c, now.UnixNano(), exitKill)
	}
	if due := now.Add(s.cfg.StopDelay).UnixNano(); !c.plan.ignoreTerm && (c.due == 0 || due < c.due) {
		if err := s.commit(record{Op: opDue, ID: id, Due: due, Code: exitTerm}); err != nil {
			return nil, err
		}
		s.replan()
	}
	if c.ended == nil {
		c.ended = make(chan struct{})
	}
	return c.ended, nil
}

// Kill ends a running container with a code, as when somebody outside of the runtime
// kills its process. Errors: NotFound, FailedPrecondition when it does not run.
func (s *Server) Kill(containerID string, code int32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[containerID]
	if c == nil {
		return notFound("container", containerID)
	}
	if !c.running() {
		return precondition("container %q is in state %s", containerID, c.item.State)
	}
	if err := s.end(c, time.Now().UnixNano(), code); err != nil {
		return internal(err)
	}
	return nil
}

// Show makes lists and statuses show a container in any state, not journaled; nil ends it.
func (s *Server) Show(containerID string, as *runtimeapi.ContainerState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[containerID]
	if c == nil {
		return notFound("container", containerID)
	}
	c.shown = as
	return nil
}
