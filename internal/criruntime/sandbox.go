package criruntime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox makes a ready sandbox. A second one of a pod and attempt is AlreadyExists.
func (s *Server) RunPodSandbox(_ context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	config := r.GetConfig()
	if m := config.GetMetadata(); m.GetName() == "" || m.GetNamespace() == "" || m.GetUid() == "" {
		return nil, invalid("config.metadata needs name, namespace and uid, has %v", m)
	}
	if r.GetRuntimeHandler() != "" {
		return nil, invalid("runtime_handler %q: there is only the default one", r.GetRuntimeHandler())
	}
	kept, err := proto.Marshal(&runtimeapi.PodSandboxConfig{
		Metadata: config.Metadata, LogDirectory: config.LogDirectory, Labels: config.Labels, Annotations: config.Annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	})
	if err != nil {
		return nil, invalid("config: %v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	name := sandboxName(config.Metadata)
	if other := s.state.names[name]; other != "" {
		return nil, status.Errorf(codes.AlreadyExists, "sandbox name %q is reserved for %q", name, other)
	}
	id := newID()
	rec := record{Op: opSandbox, ID: id, At: time.Now().UnixNano(), Config: kept}
	if config.GetLinux().GetSecurityContext().GetNamespaceOptions().GetNetwork() != runtimeapi.NamespaceMode_NODE {
		rec.IP = s.state.freeIP()
	}
	if err := s.commit(rec, event{id, id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT}, event{id, id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT}); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// StopPodSandbox kills what runs in a sandbox and frees its address. One that is gone is fine.
func (s *Server) StopPodSandbox(_ context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.state.sandboxes[r.GetPodSandboxId()]
	if box == nil {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err := s.stopBox(box); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (s *Server) stopBox(box *sandbox) error {
	now := time.Now().UnixNano()
	for _, c := range box.sorted() {
		if c.running() {
			if err := s.end(c, now, exitKill); err != nil {
				return err
			}
		}
	}
	if !box.ready() {
		return nil
	}
	id := box.item.Id
	return s.commit(record{Op: opSandboxStopped, ID: id}, event{id, id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT})
}

// RemovePodSandbox stops a sandbox and removes it with its containers. One that is gone is fine.
func (s *Server) RemovePodSandbox(_ context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.state.sandboxes[r.GetPodSandboxId()]
	if box == nil {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err := s.removeBox(box); err != nil {
		return nil, internal(err)
	}
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func (s *Server) removeBox(box *sandbox) error {
	if err := s.stopBox(box); err != nil {
		return err
	}
	for _, c := range box.sorted() {
		if err := s.remove(c); err != nil {
			return err
		}
	}
	id := box.item.Id
	// As containerd does, the event is sent while the sandbox can still be described.
	s.publish(event{id, id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT})
	return s.commit(record{Op: opSandboxRemoved, ID: id})
}

// PodSandboxStatus describes a sandbox and, beyond containerd, its containers; NotFound.
func (s *Server) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	box := s.state.sandboxes[r.GetPodSandboxId()]
	if box == nil {
		return nil, notFound("sandbox", r.GetPodSandboxId())
	}
	return &runtimeapi.PodSandboxStatusResponse{
		Status: box.status(), ContainersStatuses: box.containerStatuses(), Timestamp: time.Now().UnixNano(),
	}, nil
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	out := &runtimeapi.PodSandboxStatus{
		Id: s.item.Id, Metadata: s.item.Metadata, State: s.item.State, CreatedAt: s.item.CreatedAt,
		Labels: s.item.Labels, Annotations: s.item.Annotations, Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{Options: s.options}},
	}
	if s.ip != 0 {
		out.Network.Ip = address(s.ip)
	}
	return out
}

func (s *sandbox) containerStatuses() []*runtimeapi.ContainerStatus {
	out := make([]*runtimeapi.ContainerStatus, 0, len(s.containers))
	for _, c := range s.sorted() {
		out = append(out, c.status())
	}
	return out
}

// ListPodSandbox lists sandboxes by ID (a beginning is enough), state and labels.
func (s *Server) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := r.GetFilter()
	out := &runtimeapi.ListPodSandboxResponse{}
	take := func(box *sandbox) {
		if matchID(box.item.Id, f.GetId()) && (f.GetState() == nil || f.GetState().State == box.item.State) && matchLabels(box.item.Labels, f.GetLabelSelector()) {
			out.Items = append(out.Items, box.item)
		}
	}
	if set, ok := s.state.bySandbox.candidates(f.GetLabelSelector()); ok {
		for box := range set {
			take(box)
		}
		return out, nil
	}
	for _, box := range s.state.sandboxes {
		take(box)
	}
	return out, nil
}

// Addresses are 10.128.0.0/10, in turn, so that one is not used again at once.
const (
	firstIP = 10<<24 | 128<<16
	countIP = 1 << 22
)

func (s *state) freeIP() uint32 {
	for i := range uint32(countIP) {
		ip := firstIP + (s.lastIP+1+i-firstIP)%countIP
		if last := ip & 0xff; last == 0 || last == 0xff || s.usedIPs[ip] {
			continue
		}
		return ip
	}
	return 0
}

func address(ip uint32) string {
	return netip.AddrFrom4([4]byte{byte(ip >> 24), byte(ip >> 16), byte(ip >> 8), byte(ip)}).String()
}

func newID() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}
