package criruntime

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Exit codes of a container ended from outside.
const (
	exitTerm       = 143
	exitKill       = 137
	exitStartError = 128
)

// Reasons as containerd gives them.
const (
	reasonCompleted  = "Completed"
	reasonError      = "Error"
	reasonStartError = "StartError"
)

// CreateContainer makes a container in a ready sandbox. Errors: InvalidArgument (bad
// configuration, or an annotation that cannot be read, by name), NotFound (sandbox,
// image), FailedPrecondition (sandbox stopped), AlreadyExists (same name and attempt).
func (s *Server) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	config := r.GetConfig()
	if config.GetMetadata().GetName() == "" {
		return nil, invalid("config.metadata.name must not be empty")
	}
	if config.GetImage().GetImage() == "" {
		return nil, invalid("config.image.image must not be empty")
	}
	kept, err := proto.Marshal(&runtimeapi.ContainerConfig{
		Metadata: config.Metadata, Image: config.Image, Labels: config.Labels, Annotations: config.Annotations, Mounts: config.Mounts, LogPath: config.LogPath,
	})
	if err != nil {
		return nil, invalid("config: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.state.sandboxes[r.GetPodSandboxId()]
	if box == nil {
		return nil, notFound("sandbox", r.GetPodSandboxId())
	}
	if !box.ready() {
		return nil, precondition("sandbox %q is not running", r.GetPodSandboxId())
	}
	if !s.state.present(config.Image.Image) {
		return nil, notFound("image", config.Image.Image)
	}
	if _, err := readPlan(config.Metadata.Name, config.Annotations, box.item.Annotations); err != nil {
		return nil, invalid("container %q: %v", config.Metadata.Name, err)
	}
	name := containerName(box.item.Metadata, config.Metadata)
	if other := s.state.names[name]; other != "" {
		return nil, status.Errorf(codes.AlreadyExists, "container name %q is reserved for %q", name, other)
	}
	id := newID()
	rec := record{Op: opContainer, ID: id, Sandbox: box.item.Id, At: time.Now().UnixNano(), Config: kept}
	if err := s.commit(rec, event{id, box.item.Id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT}); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// StartContainer starts a created container. Errors: NotFound, FailedPrecondition (not
// in state created, or its sandbox stopped), Unknown when it could not be started:
// then it has exited with 128 and reason StartError.
func (s *Server) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	if s.cfg.StartDelay > 0 {
		if err := sleep(ctx, s.cfg.StartDelay); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := r.GetContainerId()
	c := s.state.containers[id]
	switch {
	case c == nil:
		return nil, notFound("container", id)
	case c.item.State != runtimeapi.ContainerState_CONTAINER_CREATED:
		return nil, precondition("container %q is in state %s", id, c.item.State)
	case !c.sandbox.ready():
		return nil, precondition("sandbox %q is not running", c.sandbox.item.Id)
	}
	now := time.Now()
	if err := c.startFault(now); err != nil {
		rec := record{Op: opExited, ID: id, At: now.UnixNano(), Code: exitStartError, Reason: reasonStartError, Message: err.Error()}
		if err := s.commit(rec); err != nil {
			return nil, internal(err)
		}
		return nil, status.Errorf(codes.Unknown, "container %q: %v", c.item.Metadata.Name, err)
	}
	rec := record{Op: opStarted, ID: id, At: now.UnixNano()}
	if !c.plan.forever {
		rec.Due, rec.Code = now.Add(c.plan.run).UnixNano(), c.plan.draw()
	}
	if err := s.commit(rec, event{id, c.sandbox.item.Id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT}); err != nil {
		return nil, internal(err)
	}
	s.replan()
	return &runtimeapi.StartContainerResponse{}, nil
}

// startFault is why a container cannot be started; the log is opened to see.
func (c *container) startFault(now time.Time) error {
	if c.plan.extra != nil && c.plan.extra.startError != "" {
		return fmt.Errorf("failed to create containerd task: %s", c.plan.extra.startError)
	}
	lines := []string{"started " + c.item.Metadata.Name}
	if c.plan.extra != nil && c.plan.extra.log != "" {
		lines = append(lines, strings.Split(c.plan.extra.log, "\n")...)
	}
	return c.writeLog(now, "stdout", lines...)
}

// end ends a run at a time with a code. The mutex is held.
func (s *Server) end(c *container, at int64, code int32) error {
	rec := record{Op: opExited, ID: c.item.Id, At: at, Code: code, Reason: reasonCompleted}
	if code != 0 {
		rec.Reason = reasonError
		if x := c.plan.extra; x != nil && x.reason != "" && code == c.plan.code {
			rec.Reason = x.reason
		}
	}
	if err := c.leave(time.Unix(0, at), code); err != nil {
		s.cfg.Log.Warn("a container's last words cannot be written", slog.String("container", c.item.Id), slog.Any("error", err))
	}
	return s.commit(rec, event{c.item.Id, c.sandbox.item.Id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT})
}

// RemoveContainer removes a container, after killing it if it runs. One that is gone is fine.
func (s *Server) RemoveContainer(_ context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[r.GetContainerId()]
	if c == nil {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if c.running() {
		if err := s.end(c, time.Now().UnixNano(), exitKill); err != nil {
			return nil, internal(err)
		}
	}
	if err := s.remove(c); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (s *Server) remove(c *container) error {
	return s.commit(record{Op: opRemoved, ID: c.item.Id}, event{c.item.Id, c.sandbox.item.Id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT})
}

// ContainerStatus describes a container; NotFound.
func (s *Server) ContainerStatus(_ context.Context, r *runtimeapi.ContainerStatusRequest) (*runtimeapi.ContainerStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	return &runtimeapi.ContainerStatusResponse{Status: c.status()}, nil
}

func (c *container) status() *runtimeapi.ContainerStatus {
	return &runtimeapi.ContainerStatus{
		Id: c.item.Id, Metadata: c.item.Metadata, State: c.shownState(), CreatedAt: c.item.CreatedAt, StartedAt: c.startedAt, FinishedAt: c.finishedAt,
		ExitCode: c.exitCode, Image: c.item.Image, ImageRef: c.item.ImageRef, ImageId: c.item.ImageId, Reason: c.reason, Message: c.message,
		Labels: c.item.Labels, Annotations: c.item.Annotations, Mounts: c.mounts, LogPath: c.logPath,
	}
}

func (c *container) shownState() runtimeapi.ContainerState {
	if c.shown != nil {
		return *c.shown
	}
	return c.item.State
}

// ListContainers lists containers by ID (a beginning is enough), sandbox, state and labels.
func (s *Server) ListContainers(_ context.Context, r *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := r.GetFilter()
	out := &runtimeapi.ListContainersResponse{}
	take := func(c *container) {
		if matchID(c.item.Id, f.GetId()) && matchID(c.item.PodSandboxId, f.GetPodSandboxId()) &&
			(f.GetState() == nil || f.GetState().State == c.shownState()) && matchLabels(c.item.Labels, f.GetLabelSelector()) {
			item := c.item
			if c.shown != nil {
				item = c.copyItem()
				item.State = *c.shown
			}
			out.Containers = append(out.Containers, item)
		}
	}
	if box := s.state.sandboxes[f.GetPodSandboxId()]; box != nil {
		for _, c := range box.containers {
			take(c)
		}
		return out, nil
	}
	if set, ok := s.state.byContainer.candidates(f.GetLabelSelector()); ok {
		for c := range set {
			take(c)
		}
		return out, nil
	}
	for _, c := range s.state.containers {
		take(c)
	}
	return out, nil
}

func matchID(id, filter string) bool { return strings.HasPrefix(id, filter) }

func matchLabels(labels, selector map[string]string) bool {
	for k, v := range selector {
		if got, set := labels[k]; !set || got != v {
			return false
		}
	}
	return true
}

// sleep waits, or answers as gRPC does when the call ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
