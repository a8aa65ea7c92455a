package criruntime_test

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

// node is a runtime with its clients.
type node struct {
	server *criruntime.Server
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	t      *testing.T
	made   atomic.Int64
}

func newNode(t *testing.T, cfg criruntime.Config) *node {
	t.Helper()
	s := open(t, cfg)
	return &node{server: s, RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(s.Conn()), images: runtimeapi.NewImageServiceClient(s.Conn()), t: t}
}

func (n *node) sandbox(annotations map[string]string) string {
	n.t.Helper()
	made := n.made.Add(1)
	uid := fmt.Sprintf("uid-%d", made)
	answer, err := n.RunPodSandbox(n.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: uid},
		Labels:   map[string]string{"io.kubernetes.pod.uid": uid, "deltaplane.io/node": fmt.Sprintf("node-%d", made%2)}, Annotations: annotations,
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	return answer.PodSandboxId
}

func (n *node) create(sandbox, name string, annotations map[string]string) (string, error) {
	answer, err := n.CreateContainer(n.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "app:1"}, Annotations: annotations,
	}})
	return answer.GetContainerId(), err
}

func (n *node) begin(id string) {
	n.t.Helper()
	if _, err := n.StartContainer(n.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		n.t.Fatal(err)
	}
}

// run starts one container in a sandbox of its own.
func (n *node) run(annotations map[string]string) string {
	n.t.Helper()
	id, err := n.create(n.sandbox(annotations), "main", nil)
	if err != nil {
		n.t.Fatal(err)
	}
	n.begin(id)
	return id
}

func (n *node) status(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	answer, err := n.ContainerStatus(n.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	return answer.Status
}

// ended waits for a container's end by asking.
func (n *node) ended(id string) *runtimeapi.ContainerStatus {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if got := n.status(id); got.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			return got
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			n.t.Fatalf("container %s does not end", id)
		}
	}
}

// picture is all that a runtime shows, for comparing two.
func (n *node) picture() map[string]string {
	n.t.Helper()
	out := map[string]string{}
	boxes, err := n.ListPodSandbox(n.t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, b := range boxes.Items {
		status, err := n.PodSandboxStatus(n.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: b.Id})
		if err != nil {
			n.t.Fatal(err)
		}
		out[b.Id] = fmt.Sprintf("%s %s %d %s %v", b.Metadata.Uid, b.State, b.CreatedAt, status.Status.Network.GetIp(), b.Labels)
		for _, c := range status.ContainersStatuses {
			out[c.Id] = fmt.Sprintf("in %s: %s %s %d %d %d %d %s %q %v", b.Id, c.Metadata.Name, c.State, c.CreatedAt, c.StartedAt, c.FinishedAt, c.ExitCode, c.Reason, c.Message, c.Annotations)
		}
	}
	images, err := n.images.ListImages(n.t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	for _, i := range images.Images {
		out[i.Id] = i.RepoTags[0]
	}
	return out
}

func with(base map[string]string, pairs ...string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = pairs[i+1]
	}
	return out
}
