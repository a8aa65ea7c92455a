package nodeagent

import (
	"context"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kubeletapi"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

// podLogs finds the logs of the node's containers.
type podLogs struct{ *Agent }

var _ kubeletapi.Sources = podLogs{}

// kubeletAPI opens the port of the kubelet's API; nil when the agent serves none.
func (a *Agent) kubeletAPI(ctx context.Context) (*kubeletapi.Server, net.Listener, error) {
	if a.cfg.KubeletListen == "" {
		return nil, nil, nil
	}
	var hosts []string
	if a.cfg.Address != "" {
		hosts = append(hosts, a.cfg.Address)
	}
	server, err := kubeletapi.New(kubeletapi.Config{
		Node: a.cfg.Node, Listen: a.cfg.KubeletListen, ClientCA: a.cfg.KubeletClientCA, Hosts: hosts,
	}, a.deps.Kube, podLogs{a}, a.log)
	if err != nil {
		return nil, nil, fmt.Errorf("nodeagent: %w", err)
	}
	lis, err := server.Listen(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("nodeagent: %w", err)
	}
	return server, lis, nil
}

// Log implements [kubeletapi.Sources].
func (a podLogs) Log(namespace, name, of string, previous bool) (path string, running func() bool, err error) {
	pod := a.podNamed(namespace, name)
	if pod == nil {
		return "", nil, fmt.Errorf("pod %q does not exist: %w", name, kubeletapi.ErrNotFound)
	}
	status := pod.Status
	if told, ok := a.statuses.Get(pod.UID); ok {
		status = told
	}
	id, err := wanted(pod, &status, of, previous)
	if err != nil {
		return "", nil, err
	}
	c, err := a.instance(pod.UID, id)
	switch {
	case err != nil:
		return "", nil, fmt.Errorf("%w: %w", kubeletapi.ErrRuntime, err)
	case c.LogPath == "":
		return "", nil, fmt.Errorf("container %q in pod %q has no log on the node any more", of, name)
	case !a.runtime.InLogs(c.LogPath):
		return "", nil, fmt.Errorf("container %q in pod %q has a log outside of the log directory: %s", of, name, c.LogPath)
	}
	return c.LogPath, func() bool {
		now, err := a.instance(pod.UID, id)
		return err != nil || now.State == container.Running
	}, nil
}

// instance is an instance of a container as the runtime last had it; one without anything when it
// is there no more.
func (a podLogs) instance(pod types.UID, id string) (container.Status, error) {
	seen, err := a.pleg.Cache().Get(pod)
	if err != nil || seen == nil {
		return container.Status{}, err
	}
	for i := range seen.Containers {
		if seen.Containers[i].ID == id {
			return seen.Containers[i], nil
		}
	}
	return container.Status{}, nil
}

// podNamed is the pod of a name bound to this node; nil when there is none.
func (a *Agent) podNamed(namespace, name string) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, pod := range a.pods {
		if pod.Namespace == namespace && pod.Name == name {
			return pod
		}
	}
	return nil
}

// wanted is the ID, in the runtime, of the instance of a container whose log is wanted. Errors
// have the kubelet's words.
func wanted(pod *corev1.Pod, s *corev1.PodStatus, of string, previous bool) (id string, err error) {
	var c *corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{s.ContainerStatuses, s.InitContainerStatuses} {
		for i := range list {
			if list[i].Name == of {
				c = &list[i]
			}
		}
	}
	last := ""
	if c != nil && c.LastTerminationState.Terminated != nil {
		last = c.LastTerminationState.Terminated.ContainerID
	}
	switch {
	case c == nil && !named(pod, of):
		return "", fmt.Errorf("container %q not found in pod %q: %w", of, pod.Name, kubeletapi.ErrNotFound)
	case c == nil:
		return "", fmt.Errorf("container %q in pod %q is not available", of, pod.Name)
	case previous:
		if id = last; id == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", of, pod.Name)
		}
	case c.State.Running != nil:
		id = c.ContainerID
	case c.State.Terminated != nil && c.State.Terminated.ContainerID != "":
		id = c.State.Terminated.ContainerID
	case last != "":
		id = last
	case c.State.Waiting != nil:
		why := c.State.Waiting.Reason
		switch why {
		case kuberuntime.ReasonErrImagePull:
			why = "image can't be pulled"
		case kuberuntime.ReasonImagePullBackOff:
			why = "trying and failing to pull image"
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", of, pod.Name, why)
	default:
		return "", fmt.Errorf("container %q in pod %q is terminated", of, pod.Name)
	}
	return container.ID(id), nil
}

func named(pod *corev1.Pod, name string) bool {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return true
			}
		}
	}
	return false
}
