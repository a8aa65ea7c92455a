package critest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

// Target is a runtime under test. It may be used by others besides.
type Target struct {
	// Conn reaches it.
	Conn grpc.ClientConnInterface
	// Image is there, and its /box is the test program; Missing is an image that cannot be had.
	Image, Missing string
	// Restart kills and restarts the runtime and returns a connection. Nil skips its tests.
	Restart func(t *testing.T) grpc.ClientConnInterface
	// Differs are the tests that this runtime cannot pass, with the reason; they are skipped.
	Differs map[string]string
	// Slow is how much longer things may take than on the simulated runtime; 1 when 0.
	Slow int
}

// suite is a target with its clients.
type suite struct {
	Target
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
}

func newSuite(target Target) *suite {
	s := &suite{Target: target}
	s.connect(target.Conn)
	return s
}

func (s *suite) connect(conn grpc.ClientConnInterface) {
	s.RuntimeServiceClient, s.images = runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
}

// timeout is how long to wait for what must come.
func (s *suite) timeout() time.Duration { return time.Duration(max(1, s.Slow)) * 10 * time.Second }

// program is what a container does, as a command and as annotations.
type program struct {
	command     []string
	annotations map[string]string
}

func forever() program {
	return program{[]string{"/box", "sleep", "1h"}, map[string]string{criruntime.RunSecondsAnnotation: "forever"}}
}

func exits(code int, after time.Duration) program {
	return program{[]string{"/box", "exit", fmt.Sprint(code), after.String()}, map[string]string{
		criruntime.RunSecondsAnnotation: after.String(), criruntime.ExitCodeAnnotation: fmt.Sprint(code),
	}}
}

func ignoresTerm() program {
	return program{[]string{"/box", "ignore-term"}, map[string]string{
		criruntime.RunSecondsAnnotation: "forever", criruntime.IgnoreTermAnnotation: "true",
	}}
}

func prints(text string) program {
	return program{[]string{"/box", "print", text}, map[string]string{criruntime.RunSecondsAnnotation: "0", criruntime.LogAnnotation: text}}
}

func noSuchCommand() program {
	return program{[]string{"/nothing"}, map[string]string{criruntime.StartErrorAnnotation: `exec: "/nothing": stat /nothing: no such file or directory`}}
}

// pod is one sandbox of a test.
type pod struct {
	*suite
	t      *testing.T
	id     string
	config *runtimeapi.PodSandboxConfig
}

// config is a pod on the node's network, where no CNI is needed, with its own log directory.
func (s *suite) config(t *testing.T) *runtimeapi.PodSandboxConfig {
	t.Helper()
	uid := fmt.Sprintf("critest-%s-%d", filepath.Base(t.TempDir()), time.Now().UnixNano())
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "critest", Uid: uid},
		LogDirectory: t.TempDir(), // and no host name: that is the node's on its network
		Labels:       map[string]string{"io.kubernetes.pod.uid": uid, "critest": "yes"},
		Annotations:  map[string]string{"example.org/note": "a pod of the conformance suite"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
		}},
	}
}

// pod runs a sandbox that is removed at the end of the test.
func (s *suite) pod(t *testing.T) *pod {
	t.Helper()
	config := s.config(t)
	p := &pod{suite: s, t: t, config: config}
	p.run()
	return p
}

func (p *pod) run() {
	p.t.Helper()
	answer, err := p.RunPodSandbox(p.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p.config})
	if err != nil {
		p.t.Fatalf("RunPodSandbox: %v", err)
	}
	p.id = answer.PodSandboxId
	id := p.id
	p.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), p.timeout())
		defer cancel()
		if _, err := p.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			p.t.Errorf("removing the sandbox after the test: %v", err)
		}
	})
}

func (p *pod) container(name string, does program) *runtimeapi.ContainerConfig {
	annotations := map[string]string{"example.org/container": name}
	maps.Copy(annotations, does.annotations)
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: p.Image}, Command: does.command,
		Labels:      map[string]string{"io.kubernetes.pod.uid": p.config.Metadata.Uid, "io.kubernetes.container.name": name},
		Annotations: annotations, LogPath: name + ".log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: p.config.Linux.SecurityContext.NamespaceOptions,
		}},
	}
}

func (p *pod) tryCreate(config *runtimeapi.ContainerConfig) (string, error) {
	answer, err := p.CreateContainer(p.t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.id, Config: config, SandboxConfig: p.config})
	return answer.GetContainerId(), err
}

func (p *pod) create(name string, does program) string {
	p.t.Helper()
	id, err := p.tryCreate(p.container(name, does))
	if err != nil {
		p.t.Fatalf("CreateContainer %s: %v", name, err)
	}
	return id
}

func (p *pod) start(id string) {
	p.t.Helper()
	if _, err := p.StartContainer(p.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		p.t.Fatalf("StartContainer: %v", err)
	}
}

// running creates and starts a container.
func (p *pod) running(name string, does program) string {
	p.t.Helper()
	id := p.create(name, does)
	p.start(id)
	return id
}

// settled waits until a container said something: from then on it takes signals as it should.
func (p *pod) settled(name string) {
	p.t.Helper()
	p.eventually("the container writes its first line", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.config.LogDirectory, name+".log"))
		return len(text) > 0
	})
}

func (p *pod) stop(id string, grace int64) error {
	_, err := p.StopContainer(p.t.Context(), &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: grace})
	return err
}

func (p *pod) status(id string) *runtimeapi.ContainerStatus {
	p.t.Helper()
	answer, err := p.ContainerStatus(p.t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		p.t.Fatalf("ContainerStatus: %v", err)
	}
	return answer.Status
}

func (p *pod) sandbox() *runtimeapi.PodSandboxStatus {
	p.t.Helper()
	answer, err := p.PodSandboxStatus(p.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
	if err != nil {
		p.t.Fatalf("PodSandboxStatus: %v", err)
	}
	return answer.Status
}

// exited waits for a container's end.
func (p *pod) exited(id string) *runtimeapi.ContainerStatus {
	p.t.Helper()
	var last *runtimeapi.ContainerStatus
	p.eventually("the container exits", func() bool {
		last = p.status(id)
		return last.State == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	return last
}

// eventually asks until the answer is yes.
func (p *pod) eventually(what string, ask func() bool) {
	p.t.Helper()
	limit := time.NewTimer(p.timeout())
	defer limit.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ask() {
		select {
		case <-tick.C:
		case <-limit.C:
			p.t.Fatalf("not within %s: %s", p.timeout(), what)
		}
	}
}
