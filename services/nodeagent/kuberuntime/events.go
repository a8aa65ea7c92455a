package kuberuntime

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Events calls deliver with every event of this node's containers, in the runtime's order, until
// ctx ends or the stream breaks; the error then is the stream's. A runtime that has no stream is
// [container.ErrNoEvents]. An event whose sandbox the runtime does not describe has no pod UID when
// its container is not known any more.
func (m *Manager) Events(ctx context.Context, deliver func(container.Event)) error {
	stream, err := m.rt.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	for err == nil {
		var e *runtimeapi.ContainerEventResponse
		if e, err = stream.Recv(); err == nil {
			if out, ok := m.streamed(e); ok {
				deliver(out)
			}
		}
	}
	if cri.IsUnimplemented(err) {
		return fmt.Errorf("%w: %s", container.ErrNoEvents, cri.Message(err))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("container events: %w", err)
}

// streamed reads one event; ok is false for one that is another node's or nobody's.
func (m *Manager) streamed(e *runtimeapi.ContainerEventResponse) (container.Event, bool) {
	s := e.GetPodSandboxStatus()
	out := container.Event{ContainerID: e.GetContainerId(), SandboxID: s.GetId(), Kind: eventKind(e.GetContainerEventType()), At: when(e.GetCreatedAt())}
	labels := s.GetLabels()
	if s == nil {
		for _, c := range e.GetContainersStatuses() {
			if c.GetId() == out.ContainerID {
				labels = c.GetLabels()
			}
		}
	}
	if labels == nil {
		// Nothing says whose it is; who listens has seen the ID before, or has not.
		return out, out.ContainerID != ""
	}
	if labels[container.LabelNode] != m.cfg.Node {
		return out, false
	}
	out.PodUID = types.UID(labels[container.LabelPodUID])
	if s == nil {
		return out, out.PodUID != ""
	}
	cs := make([]*container.Status, 0, len(e.GetContainersStatuses()))
	for _, c := range e.GetContainersStatuses() {
		if st, ok := m.containerStatus(out.PodUID, c); ok {
			st.SandboxID = s.GetId()
			cs = append(cs, &st)
		}
	}
	out.Status = podStatus(out.PodUID, labels[container.LabelPodNamespace], labels[container.LabelPodName], out.At,
		[]*container.SandboxStatus{new(sandboxStatus(s))}, cs)
	return out, out.PodUID != ""
}

func eventKind(k runtimeapi.ContainerEventType) container.EventKind {
	switch k {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		return container.EventCreated
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		return container.EventStarted
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		return container.EventStopped
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		return container.EventDeleted
	}
	return container.EventUnknown
}

// Conditions are what the runtime says of itself.
type Conditions struct {
	// Ready and NetworkReady are its conditions of these names; each with its reason and message when
	// it is not.
	Ready, NetworkReady               bool
	ReadyMessage, NetworkReadyMessage string
}

// Status asks the runtime whether it can run containers and has a network for them.
func (m *Manager) Status(ctx context.Context) (Conditions, error) {
	r, err := m.rt.RuntimeServiceClient.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return Conditions{}, fmt.Errorf("status of the runtime: %w", err)
	}
	if r.GetStatus() == nil {
		return Conditions{}, errors.New("status of the runtime: its answer holds none")
	}
	out := Conditions{ReadyMessage: "the runtime does not say", NetworkReadyMessage: "the runtime does not say"}
	for _, c := range r.GetStatus().GetConditions() {
		text := ""
		if !c.GetStatus() {
			text = c.GetReason() + ": " + c.GetMessage()
		}
		switch c.GetType() {
		case runtimeapi.RuntimeReady:
			out.Ready, out.ReadyMessage = c.GetStatus(), text
		case runtimeapi.NetworkReady:
			out.NetworkReady, out.NetworkReadyMessage = c.GetStatus(), text
		}
	}
	return out, nil
}
