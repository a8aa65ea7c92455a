package kuberuntime

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Pods lists what the runtime holds of this node's pods, dead containers and sandboxes
// too when all is set; pods are in the order of their UIDs.
func (m *Manager) Pods(ctx context.Context, all bool) ([]container.Pod, error) {
	containers, sandboxes, err := m.list(ctx, "", all)
	if err != nil {
		return nil, err
	}
	pods := map[types.UID]*container.Pod{}
	pod := func(uid types.UID, labels map[string]string) *container.Pod {
		p := pods[uid]
		if p == nil {
			p = &container.Pod{UID: uid, Namespace: labels[container.LabelPodNamespace], Name: labels[container.LabelPodName]}
			pods[uid] = p
		}
		return p
	}
	for _, s := range sandboxes {
		p := pod(types.UID(s.GetLabels()[container.LabelPodUID]), s.GetLabels())
		p.Sandboxes = append(p.Sandboxes, sandboxOf(s))
	}
	for _, c := range containers {
		if out, uid, ok := m.containerOf(c); ok {
			p := pod(uid, c.GetLabels())
			p.Containers = append(p.Containers, out)
		}
	}
	out := make([]container.Pod, 0, len(pods))
	for _, p := range pods {
		slices.SortFunc(p.Sandboxes, newerSandbox)
		slices.SortFunc(p.Containers, newerContainer)
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b container.Pod) int { return cmp.Compare(a.UID, b.UID) })
	return out, nil
}

// list asks for the containers and sandboxes of this node, of one pod when uid is not empty.
// Sandboxes that no agent of this node made are left out, whatever the runtime makes of the filter.
func (m *Manager) list(ctx context.Context, uid types.UID, all bool) ([]*runtimeapi.Container, []*runtimeapi.PodSandbox, error) {
	// Sandboxes first: a container whose sandbox is not listed yet would look like an orphan.
	sf := &runtimeapi.PodSandboxFilter{LabelSelector: m.ours(uid)}
	cf := &runtimeapi.ContainerFilter{LabelSelector: m.ours(uid)}
	if !all {
		sf.State = &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		cf.State = &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
	}
	sandboxes, err := m.rt.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: sf})
	if err != nil {
		return nil, nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	containers, err := m.rt.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: cf})
	if err != nil {
		return nil, nil, fmt.Errorf("list containers: %w", err)
	}
	of := func(labels map[string]string) bool {
		got := labels[container.LabelPodUID]
		return labels[container.LabelNode] == m.cfg.Node && got != "" && (uid == "" || got == string(uid))
	}
	ss := slices.DeleteFunc(sandboxes.GetItems(), func(s *runtimeapi.PodSandbox) bool { return s.GetId() == "" || !of(s.GetLabels()) })
	cs := slices.DeleteFunc(containers.GetContainers(), func(c *runtimeapi.Container) bool { return !of(c.GetLabels()) })
	return cs, ss, nil
}

// PodStatus asks the runtime for one pod in full. A pod of which it knows nothing is
// a status without containers and sandboxes; what is removed while it is asked is left out.
func (m *Manager) PodStatus(ctx context.Context, uid types.UID, namespace, name string) (*container.PodStatus, error) {
	at := m.now()
	containers, sandboxes, err := m.list(ctx, uid, true)
	if err != nil {
		return nil, err
	}
	ss := make([]*container.SandboxStatus, len(sandboxes))
	cs := make([]*container.Status, len(containers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for i, s := range sandboxes {
		g.Go(func() error {
			r, err := m.rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.GetId()})
			switch {
			case cri.IsNotFound(err):
				return nil
			case err != nil:
				return fmt.Errorf("status of sandbox %s: %w", s.GetId(), err)
			case r.GetStatus() == nil:
				return fmt.Errorf("status of sandbox %s: the runtime's answer holds none", s.GetId())
			}
			ss[i] = new(sandboxStatus(r.GetStatus()))
			return nil
		})
	}
	for i, c := range containers {
		g.Go(func() error {
			r, err := m.rt.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
			switch {
			case cri.IsNotFound(err):
				return nil
			case err != nil:
				return fmt.Errorf("status of container %s: %w", c.GetId(), err)
			case r.GetStatus() == nil:
				return fmt.Errorf("status of container %s: the runtime's answer holds none", c.GetId())
			}
			if out, ok := m.containerStatus(uid, r.GetStatus()); ok {
				out.SandboxID = c.GetPodSandboxId()
				cs[i] = &out
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("pod %s/%s (%s): %w", namespace, name, uid, err)
	}
	return podStatus(uid, namespace, name, at, ss, cs), nil
}

// podStatus puts together what was found: newest first, and the addresses of the newest sandbox.
func podStatus(uid types.UID, namespace, name string, at time.Time, ss []*container.SandboxStatus, cs []*container.Status) *container.PodStatus {
	out := &container.PodStatus{UID: uid, Namespace: namespace, Name: name, At: at}
	for _, s := range ss {
		if s != nil {
			out.Sandboxes = append(out.Sandboxes, *s)
		}
	}
	for _, c := range cs {
		if c != nil {
			out.Containers = append(out.Containers, *c)
		}
	}
	slices.SortFunc(out.Sandboxes, func(a, b container.SandboxStatus) int { return newerSandbox(a.Sandbox, b.Sandbox) })
	slices.SortFunc(out.Containers, func(a, b container.Status) int { return newerContainer(a.Container, b.Container) })
	if len(out.Sandboxes) > 0 && out.Sandboxes[0].Ready {
		out.IPs = out.Sandboxes[0].IPs
	}
	return out
}

func sandboxStatus(s *runtimeapi.PodSandboxStatus) container.SandboxStatus {
	out := container.SandboxStatus{
		Sandbox: container.Sandbox{
			ID: s.GetId(), Ready: s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY,
			CreatedAt: when(s.GetCreatedAt()), Attempt: s.GetMetadata().GetAttempt(),
		},
	}
	for _, ip := range append([]*runtimeapi.PodIP{{Ip: s.GetNetwork().GetIp()}}, s.GetNetwork().GetAdditionalIps()...) {
		if ip.GetIp() != "" {
			out.IPs = append(out.IPs, ip.GetIp())
		}
	}
	// A runtime that does not say which network it is gives those on the pod's own an address.
	options := s.GetLinux().GetNamespaces().GetOptions()
	out.HostNetwork = options.GetNetwork() == runtimeapi.NamespaceMode_NODE || options == nil && len(out.IPs) == 0
	if out.HostNetwork {
		out.IPs = nil
	}
	return out
}

// containerStatus reads one container in full, with its termination message. The runtime's status
// does not name the sandbox.
func (m *Manager) containerStatus(uid types.UID, s *runtimeapi.ContainerStatus) (container.Status, bool) {
	c, pod, ok := m.containerOf(&runtimeapi.Container{
		Id: s.GetId(), Metadata: s.GetMetadata(), Image: s.GetImage(), ImageRef: s.GetImageRef(), State: s.GetState(),
		CreatedAt: s.GetCreatedAt(), Labels: s.GetLabels(), Annotations: s.GetAnnotations(),
	})
	if !ok || pod != uid {
		return container.Status{}, false
	}
	out := container.Status{
		Container: c, RestartCount: restartsOf(s.GetAnnotations(), c.Attempt), LogPath: s.GetLogPath(),
	}
	if c.State != container.Created {
		out.StartedAt = when(s.GetStartedAt())
	}
	if c.State == container.Exited {
		out.FinishedAt, out.ExitCode = when(s.GetFinishedAt()), s.GetExitCode()
		out.Reason, out.Message = s.GetReason(), s.GetMessage()
		if t := m.terminationMessage(pod, s); t != "" {
			out.Message = t
		}
	}
	return out, true
}

// newerSandbox and newerContainer sort newest first. Attempts decide, since each is made as one
// more than all that are there (Manager.nextAttempt) and the clock may have been set back in
// between; of equal ones, which nobody of this node made, the creation times.
func newerSandbox(a, b container.Sandbox) int {
	return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func newerContainer(a, b container.Container) int {
	return cmp.Or(cmp.Compare(b.Attempt, a.Attempt), b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.ID, b.ID))
}
