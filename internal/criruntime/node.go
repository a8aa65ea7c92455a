package criruntime

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What Version answers.
const (
	RuntimeName    = "deltaplane-simulated"
	RuntimeVersion = "1.0.0"
)

// Version says what this runtime is and which CRI it speaks.
func (s *Server) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: RuntimeName, RuntimeVersion: RuntimeVersion, RuntimeApiVersion: "v1"}, nil
}

func goodConditions() map[string]*runtimeapi.RuntimeCondition {
	return map[string]*runtimeapi.RuntimeCondition{
		runtimeapi.RuntimeReady: {Type: runtimeapi.RuntimeReady, Status: true},
		runtimeapi.NetworkReady: {Type: runtimeapi.NetworkReady, Status: true},
	}
}

// SetCondition changes RuntimeReady or NetworkReady; reason and message are for a false one.
func (s *Server) SetCondition(name string, ready bool, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conditions[name] = &runtimeapi.RuntimeCondition{Type: name, Status: ready, Reason: reason, Message: message}
}

// Status says that the runtime and its network are ready, or what SetCondition said.
func (s *Server) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &runtimeapi.StatusResponse{
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			s.conditions[runtimeapi.RuntimeReady], s.conditions[runtimeapi.NetworkReady],
		}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{}}},
	}, nil
}

// RuntimeConfig names the cgroup driver.
func (s *Server) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

// UpdateRuntimeConfig takes the pod CIDR and has no use for it.
func (s *Server) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

// ReopenContainerLog does nothing: each line opens the log. Errors: NotFound, FailedPrecondition.
func (s *Server) ReopenContainerLog(_ context.Context, r *runtimeapi.ReopenContainerLogRequest) (*runtimeapi.ReopenContainerLogResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.state.containers[r.GetContainerId()]
	if c == nil {
		return nil, notFound("container", r.GetContainerId())
	}
	if !c.running() {
		return nil, precondition("container %q is in state %s", r.GetContainerId(), c.item.State)
	}
	return &runtimeapi.ReopenContainerLogResponse{}, nil
}

// ExecSync refuses: there is no process. Exec, Attach and other missing calls are Unimplemented.
func (s *Server) ExecSync(_ context.Context, r *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	return nil, status.Errorf(codes.Unimplemented, "method ExecSync not implemented: container %q is simulated and runs no process", r.GetContainerId())
}
