package kuberuntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

// syncing is one sync of one pod.
type syncing struct {
	*Manager
	pod    *corev1.Pod
	status *container.PodStatus
	in     Inputs
	// sandbox is where containers are made, config what it was made from.
	sandbox string
	config  *runtimeapi.PodSandboxConfig
	ips     []string
	result  Result
}

// SyncPod brings a pod nearer to its spec, as [Decide] says, and returns as soon as what can be
// done now was done: it does not wait for init containers to end. What it created stays in the
// runtime when it fails in the middle; the next sync goes on from there. Status must have been
// observed after the pod's last sync.
func (m *Manager) SyncPod(ctx context.Context, pod *corev1.Pod, status *container.PodStatus, in Inputs) Result {
	if status == nil {
		status = &container.PodStatus{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}
	}
	s := &syncing{Manager: m, pod: pod, status: status, in: in, ips: status.IPs, result: Result{Waiting: map[string]WaitReason{}}}
	if err := s.run(ctx); err != nil {
		s.result.Err = errors.Join(s.result.Err, err)
	}
	if errors.Is(s.result.Err, ErrStale) {
		return s.result // nothing was looked at: the reasons of before hold
	}
	s.keepReasons()
	m.setWaiting(pod.UID, s.result.Waiting)
	return s.result
}

// keepReasons leaves the reasons of containers that do not run where a sync failed before it came
// to them: what they wait for is no other because the runtime cannot be asked.
func (s *syncing) keepReasons() {
	if s.result.Err == nil || s.sandbox != "" {
		return
	}
	for name, w := range s.WaitReasons(s.pod.UID) {
		if c := s.status.Latest(name); c == nil || c.State != container.Running {
			s.result.Waiting[name] = w
		}
	}
}

func (s *syncing) run(ctx context.Context) error {
	a := Decide(s.pod, s.status, s.in.Probes)
	if a.CreateSandbox || len(a.Start)+len(a.StartInit) > 0 {
		if err := s.fresh(ctx); err != nil {
			return err
		}
	}
	if a.KillPod {
		if s.status.Running() {
			if a.CreateSandbox && a.SandboxID != "" {
				s.event(s.pod, corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
			}
			s.result.Changed = true
			if err := s.KillPod(ctx, s.pod, runningOf(s.status), nil); err != nil {
				return &ContainerError{Reason: ReasonKillPodSandboxError, Message: cri.Message(err), Err: err}
			}
		}
		if !a.CreateSandbox {
			return nil
		}
	}
	for _, k := range a.Kill {
		s.result.Changed = true
		if err := s.stop(ctx, s.pod, stopping{id: k.ID, name: k.Name, why: k.Message, probe: probeGrace(specOf(s.pod, k.Name), k.Probe)}, nil); err != nil {
			return &ContainerError{Container: k.Name, Reason: ReasonKillContainerError, Message: cri.Message(err), Err: err}
		}
	}
	if !a.CreateSandbox && len(a.Start)+len(a.StartInit) == 0 {
		return nil
	}
	if err := s.inSandbox(ctx, a); err != nil {
		return err
	}
	return s.startAll(ctx, a)
}

// startAll starts what is to be started. An init container that does not start holds up all that
// follow but sidecars; of the containers each is tried.
func (s *syncing) startAll(ctx context.Context, a Actions) error {
	var faults []error
	for _, i := range a.StartInit {
		c := &s.pod.Spec.InitContainers[i]
		if err := s.start(ctx, c, "init_container"); err != nil {
			faults = append(faults, err)
			if !podspec.Sidecar(c) {
				return errors.Join(faults...)
			}
		}
	}
	for _, i := range a.Start {
		if err := s.start(ctx, &s.pod.Spec.Containers[i], "container"); err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// fresh asks the runtime whether it holds something of the pod that the status does not, or started
// what the status has as created: the answer of an earlier sync that was lost, or a status that is
// older than that sync. Acting on it would make a second instance.
func (s *syncing) fresh(ctx context.Context) error {
	containers, sandboxes, err := s.list(ctx, s.pod.UID, true)
	if err != nil {
		return err
	}
	known := map[string]container.State{}
	for _, c := range s.status.Containers {
		known[c.ID] = c.State
	}
	for _, b := range s.status.Sandboxes {
		known[b.ID] = container.Unknown
	}
	unknown := ""
	for _, b := range sandboxes {
		if _, ok := known[b.GetId()]; !ok {
			unknown = b.GetId()
		}
	}
	for _, listed := range containers {
		c, _, ok := s.containerOf(listed)
		if !ok {
			continue
		}
		was, ok := known[c.ID]
		began := was == container.Created && (c.State == container.Running || c.State == container.Exited)
		if !ok || began {
			unknown = c.ID
		}
	}
	if unknown == "" {
		return nil
	}
	s.result.Changed = true
	return fmt.Errorf("%w: it does not know %s, or not that it was started", ErrStale, unknown)
}

// inSandbox makes the sandbox when one is needed, and the configuration that containers in it are
// made with.
func (s *syncing) inSandbox(ctx context.Context, a Actions) error {
	hostNetwork := s.pod.Spec.HostNetwork || s.cfg.HostNetworkOnly
	if !a.CreateSandbox && len(s.status.Sandboxes) > 0 {
		hostNetwork = s.status.Sandboxes[0].HostNetwork
	} else if !hostNetwork {
		st, err := s.Status(ctx)
		if err != nil {
			return s.sandboxError(err)
		}
		hostNetwork = !st.NetworkReady
	}
	var err error
	if s.config, err = s.sandboxConfig(a.Attempt, hostNetwork); err != nil {
		return s.sandboxError(err)
	}
	if !a.CreateSandbox {
		s.sandbox = a.SandboxID
		return nil
	}
	if err := s.makeDirs(); err != nil {
		return s.sandboxError(err)
	}
	s.metrics.pods.Inc()
	s.result.Changed = true
	r, err := s.rt.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: s.config})
	if err != nil {
		s.metrics.podErrors.Inc()
		return s.sandboxError(err)
	}
	if r.GetPodSandboxId() == "" {
		return s.sandboxError(errors.New("the runtime gave the sandbox no ID"))
	}
	s.sandbox = r.GetPodSandboxId()
	st, err := s.rt.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: s.sandbox})
	if err != nil {
		return fmt.Errorf("status of the new sandbox: %w", err)
	}
	s.ips = sandboxStatus(st.GetStatus()).IPs
	s.log.Debug("sandbox made", slog.String("namespace", s.pod.Namespace), slog.String("pod", s.pod.Name), slog.String("sandbox", s.sandbox))
	return nil
}

func (s *syncing) sandboxError(err error) error {
	s.event(s.pod, corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+cri.Message(err))
	return &ContainerError{Reason: ReasonCreatePodSandboxError, Message: "Failed to create pod sandbox: " + cri.Message(err), Err: err}
}

// runningOf is what of a status runs, as the runtime's list would say it.
func runningOf(status *container.PodStatus) container.Pod {
	p := container.Pod{UID: status.UID, Namespace: status.Namespace, Name: status.Name}
	for _, c := range status.Containers {
		if c.State != container.Exited {
			p.Containers = append(p.Containers, c.Container)
		}
	}
	for _, b := range status.Sandboxes {
		if b.Ready {
			p.Sandboxes = append(p.Sandboxes, b.Sandbox)
		}
	}
	return p
}
