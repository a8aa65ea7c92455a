package kuberuntime_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func TestStatesThatTheCRIDoesNotDefineAreUnknown(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", always, "c")
	n.mustSync(pod)
	id := n.status(pod).Latest("c").ID
	for _, s := range []runtimeapi.ContainerState{runtimeapi.ContainerState_CONTAINER_UNKNOWN, 42, -1} {
		if err := n.rt.Show(id, &s); err != nil {
			t.Fatal(err)
		}
		if got := n.state(pod); got != "c/0:unknown" {
			t.Errorf("state %d is %q", s, got)
		}
		if p := n.pod(pod); len(p.Containers) != 1 || p.Containers[0].State != container.Unknown || !p.Running() {
			t.Errorf("state %d is listed as %+v", s, p)
		}
	}
	if err := n.rt.Show(id, nil); err != nil {
		t.Fatal(err)
	}
}

func TestListingWithoutTheDeadShowsWhatRuns(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod, dead := newPod("p", always, "c"), newPod("q", always, "c")
	n.mustSync(pod)
	n.mustSync(dead)
	if err := n.m.KillPod(t.Context(), dead, n.pod(dead), nil); err != nil {
		t.Fatal(err)
	}
	pods, err := n.m.Pods(t.Context(), false)
	if err != nil || len(pods) != 1 || pods[0].UID != pod.UID || len(pods[0].Containers) != 1 || len(pods[0].Sandboxes) != 1 {
		t.Fatalf("%v: %+v", err, pods)
	}
	c := pods[0].Containers[0]
	if c.Name != "c" || c.Image != "app:1" || c.Hash != kuberuntime.Hash(&pod.Spec.Containers[0]) || c.SandboxID != pods[0].Sandboxes[0].ID {
		t.Errorf("container %+v", c)
	}
}

func TestAPodNobodyKnowsHasAnEmptyStatus(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	s, err := n.m.PodStatus(t.Context(), "nobody", "ns", "p")
	if err != nil || s == nil || len(s.Containers)+len(s.Sandboxes) != 0 || s.At.IsZero() || s.Name != "p" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestWhatIsRemovedWhileItIsAskedForIsLeftOut(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	pod := newPod("p", always, "a", "b")
	n.mustSync(pod)
	gone := n.status(pod).Latest("a").ID
	undo := n.rt.Inject("ContainerStatus", criruntime.Fault{Match: func(r any) bool { return idOf(r) == gone }, Err: status.Error(codes.NotFound, "gone")})
	if got := n.state(pod); got != "b/0:running" {
		t.Errorf("%q", got)
	}
	undo()
	defer n.rt.Inject("ContainerStatus", criruntime.Fault{Match: func(r any) bool { return idOf(r) == gone }, Err: status.Error(codes.Unknown, "broken")})()
	if s, err := n.m.PodStatus(t.Context(), pod.UID, "ns", "p"); err == nil {
		t.Errorf("half a status passes for a whole one: %+v", s)
	}
}

func TestEventsOfThisNodesContainers(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	stranger, err := kuberuntime.New(kuberuntime.Config{Node: "n2"}, cri.NewClient(n.rt.Conn()), kuberuntime.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan container.Event, 100)
	done := make(chan error, 1)
	go func() { done <- n.m.Events(ctx, func(e container.Event) { got <- e }) }()
	pod, others := newPod("p", never, "c"), newPod("q", never, "c")
	// Until an event comes the stream may not be open yet.
	for i := 0; len(got) == 0; i++ {
		p := newPod("warm", never, "c")
		p.UID += "x"
		n.mustSync(p)
		if err := n.m.KillPod(t.Context(), p, n.pod(p), new(int64(0))); err != nil {
			t.Fatal(err)
		}
		if err := n.m.CollectGarbage(t.Context(), only(), false); err != nil {
			t.Fatal(err)
		}
	}
	if r := stranger.SyncPod(t.Context(), others, nil, kuberuntime.Inputs{}); r.Err != nil {
		t.Fatal(r.Err)
	}
	n.mustSync(pod)
	c := n.status(pod).Latest("c")
	if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil {
		t.Fatal(err)
	}
	if err := n.m.CollectGarbage(t.Context(), only(), false); err != nil {
		t.Fatal(err)
	}
	var kinds []container.EventKind
	for len(kinds) == 0 || kinds[len(kinds)-1] != container.EventDeleted {
		e := <-got
		if e.PodUID == others.UID {
			t.Errorf("an event of the other node: %+v", e)
		}
		if e.ContainerID != c.ID {
			continue
		}
		kinds = append(kinds, e.Kind)
		if e.Kind == container.EventStopped && (e.PodUID != pod.UID || e.Status.Latest("c") == nil || e.Status.Latest("c").ExitCode != 143) {
			t.Errorf("stopped: %+v with status %+v", e, e.Status)
		}
	}
	if len(kinds) != 4 || kinds[0] != container.EventCreated || kinds[1] != container.EventStarted || kinds[2] != container.EventStopped {
		t.Errorf("events %v", kinds)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Events() = %v", err)
	}
}

func TestARuntimeWithoutEventsSaysSo(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	defer n.rt.Inject("GetContainerEvents", criruntime.Fault{Err: status.Error(codes.Unimplemented, "not here")})()
	if err := n.m.Events(t.Context(), func(container.Event) {}); !errors.Is(err, container.ErrNoEvents) {
		t.Errorf("%v, want ErrNoEvents", err)
	}
}

func TestConditionsOfTheRuntimeDecideOnTheNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	bridge := newPod("bridge", always, "c")
	n.mustSync(bridge)
	n.rt.SetCondition(runtimeapi.NetworkReady, false, "NetworkPluginNotReady", "no CNI configured")
	c, err := n.m.Status(t.Context())
	if err != nil || !c.Ready || c.NetworkReady || c.NetworkReadyMessage != "NetworkPluginNotReady: no CNI configured" {
		t.Errorf("%+v, %v", c, err)
	}
	host := newPod("host", always, "c")
	n.mustSync(host)
	if s := n.status(host); !s.Sandboxes[0].HostNetwork || len(s.IPs) != 0 {
		t.Errorf("without a network: %+v, want the node's", s.Sandboxes[0])
	}
	n.rt.SetCondition(runtimeapi.NetworkReady, true, "", "")
	for _, p := range []*corev1.Pod{bridge, host} {
		if r := n.sync(p); r.Changed {
			t.Errorf("pod %s: the coming of a network replaced its sandbox", p.Name)
		}
	}
	if s := n.status(bridge); s.Sandboxes[0].HostNetwork || len(s.IPs) == 0 {
		t.Errorf("with a network: %+v, want an address", s.Sandboxes[0])
	}
}
