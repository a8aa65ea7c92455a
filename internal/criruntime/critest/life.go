package critest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s answers %s (%v), want %s", what, got, err, want)
	}
}

func wantNoError(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

var nodeChecks = []check{
	{"it names itself and speaks CRI v1", func(t *testing.T, s *suite) {
		v, err := s.Version(t.Context(), &runtimeapi.VersionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if v.RuntimeName == "" || v.RuntimeVersion == "" || v.RuntimeApiVersion != "v1" {
			t.Errorf("Version() = %v, want a name, a version, and API version v1", v)
		}
	}},
	{"it says whether runtime and network are ready", func(t *testing.T, s *suite) {
		answer, err := s.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, c := range answer.GetStatus().GetConditions() {
			seen[c.Type] = true
			if c.Type == runtimeapi.RuntimeReady && !c.Status {
				t.Errorf("the runtime is not ready: %v", c)
			}
		}
		if !seen[runtimeapi.RuntimeReady] || !seen[runtimeapi.NetworkReady] {
			t.Errorf("conditions %v, want RuntimeReady and NetworkReady", seen)
		}
	}},
}

var sandboxChecks = []check{
	{"a sandbox is ready, then not ready, then gone", func(t *testing.T, s *suite) {
		before := time.Now().UnixNano()
		p := s.pod(t)
		got := p.sandbox()
		if got.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("a new sandbox is %s", got.State)
		}
		if got.CreatedAt < before || got.CreatedAt > time.Now().UnixNano() {
			t.Errorf("created at %d, which is not during the test", got.CreatedAt)
		}
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		if got := p.sandbox(); got.State != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("a stopped sandbox is %s", got.State)
		}
		if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		_, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.id})
		wantCode(t, "PodSandboxStatus of a removed sandbox", err, codes.NotFound)
	}},
	{"a sandbox keeps its metadata, labels and annotations", func(t *testing.T, s *suite) {
		p := s.pod(t)
		got := p.sandbox()
		if m := got.Metadata; m.GetName() != "pod" || m.GetNamespace() != "critest" || m.GetUid() != p.config.Metadata.Uid || m.GetAttempt() != 0 {
			t.Errorf("metadata %v, want %v", m, p.config.Metadata)
		}
		if d := cmp.Diff(got.Labels, p.config.Labels); d != "" {
			t.Errorf("labels (-got +want):\n%s", d)
		}
		if d := cmp.Diff(got.Annotations, p.config.Annotations); d != "" {
			t.Errorf("annotations (-got +want):\n%s", d)
		}
	}},
	{"a sandbox on the node's network says so and has no address of its own", func(t *testing.T, s *suite) {
		got := s.pod(t).sandbox()
		if mode := got.GetLinux().GetNamespaces().GetOptions().GetNetwork(); mode != runtimeapi.NamespaceMode_NODE {
			t.Errorf("network namespace is %s", mode)
		}
		if ip := got.GetNetwork().GetIp(); ip != "" {
			t.Errorf("its address is %s", ip)
		}
	}},
	{"stopping and removing a sandbox twice is fine", func(t *testing.T, s *suite) {
		p := s.pod(t)
		for range 2 {
			_, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id})
			wantNoError(t, "StopPodSandbox", err)
		}
		for range 2 {
			_, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id})
			wantNoError(t, "RemovePodSandbox", err)
		}
	}},
	{"stopping a sandbox that never was is fine", func(t *testing.T, s *suite) {
		_, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: "critest-never-was"})
		wantNoError(t, "StopPodSandbox", err)
	}},
	{"stopping a sandbox kills its containers", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", ignoresTerm())
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		if got := p.exited(id); got.ExitCode != 137 {
			t.Errorf("exit code %d, want 137", got.ExitCode)
		}
	}},
	{"removing a sandbox removes its containers, running ones too", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", forever())
		if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		_, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		wantCode(t, "ContainerStatus after its sandbox was removed", err, codes.NotFound)
	}},
	{"one pod has one sandbox per attempt", func(t *testing.T, s *suite) {
		p := s.pod(t)
		if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: p.config}); err == nil {
			t.Error("a second sandbox of the same attempt was run")
		}
		first := p.id
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: first}); err != nil {
			t.Fatal(err)
		}
		p.config.Metadata.Attempt = 1
		p.run()
		if got := p.sandbox(); got.Metadata.Attempt != 1 || p.id == first {
			t.Errorf("attempt %d, ID %s after %s", got.Metadata.Attempt, p.id, first)
		}
	}},
}

var containerChecks = []check{
	{"a container is created, running, exited, gone", func(t *testing.T, s *suite) {
		p := s.pod(t)
		before := time.Now().UnixNano()
		// It must run until a busy machine has answered the start and what comes after it.
		id := p.create("main", exits(3, 3*time.Second))
		got := p.status(id)
		if got.State != runtimeapi.ContainerState_CONTAINER_CREATED || got.StartedAt != 0 || got.FinishedAt != 0 {
			t.Errorf("after CreateContainer: %s, started %d, finished %d", got.State, got.StartedAt, got.FinishedAt)
		}
		p.start(id)
		if got = p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING || got.StartedAt == 0 || got.FinishedAt != 0 {
			t.Errorf("after StartContainer: %s, started %d, finished %d", got.State, got.StartedAt, got.FinishedAt)
		}
		got = p.exited(id)
		if got.ExitCode != 3 || got.Reason != "Error" {
			t.Errorf("exit code %d, reason %q, want 3 and Error", got.ExitCode, got.Reason)
		}
		if !(before <= got.CreatedAt && got.CreatedAt <= got.StartedAt && got.StartedAt < got.FinishedAt && got.FinishedAt <= time.Now().UnixNano()) {
			t.Errorf("created %d, started %d, finished %d are not in order after %d", got.CreatedAt, got.StartedAt, got.FinishedAt, before)
		}
		if _, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		_, err := s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		wantCode(t, "ContainerStatus of a removed container", err, codes.NotFound)
	}},
	{"exit codes arrive as they are, and 0 is Completed", func(t *testing.T, s *suite) {
		p := s.pod(t)
		for name, want := range map[string]int32{"zero": 0, "one": 1, "most": 255} {
			got := p.exited(p.running(name, exits(int(want), 0)))
			reason := "Error"
			if want == 0 {
				reason = "Completed"
			}
			if got.ExitCode != want || got.Reason != reason {
				t.Errorf("%s: exit code %d, reason %q, want %d and %q", name, got.ExitCode, got.Reason, want, reason)
			}
		}
	}},
	{"a container keeps its metadata, labels, annotations and image", func(t *testing.T, s *suite) {
		p := s.pod(t)
		config := p.container("main", forever())
		config.Metadata.Attempt = 7
		id, err := p.tryCreate(config)
		if err != nil {
			t.Fatal(err)
		}
		got := p.status(id)
		if got.Metadata.GetName() != "main" || got.Metadata.GetAttempt() != 7 {
			t.Errorf("metadata %v", got.Metadata)
		}
		if d := cmp.Diff(got.Labels, config.Labels); d != "" {
			t.Errorf("labels (-got +want):\n%s", d)
		}
		if d := cmp.Diff(got.Annotations, config.Annotations); d != "" {
			t.Errorf("annotations (-got +want):\n%s", d)
		}
		if got.Image.GetImage() == "" || got.ImageRef == "" {
			t.Errorf("image %q, reference %q", got.Image.GetImage(), got.ImageRef)
		}
		if want := p.config.LogDirectory + "/main.log"; got.LogPath != want {
			t.Errorf("log path %q, want %q", got.LogPath, want)
		}
	}},
	{"a container starts once", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", exits(0, 0))
		p.exited(id)
		if _, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
			t.Error("an exited container was started again")
		}
	}},
	{"a name has one container per attempt", func(t *testing.T, s *suite) {
		p := s.pod(t)
		first := p.create("main", forever())
		if id, err := p.tryCreate(p.container("main", forever())); err == nil {
			t.Errorf("a second container %s of the same attempt beside %s", id, first)
		}
		next := p.container("main", forever())
		next.Metadata.Attempt = 1
		if _, err := p.tryCreate(next); err != nil {
			t.Errorf("the next attempt: %v", err)
		}
	}},
	{"removing kills a running container, and twice is fine", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", ignoresTerm())
		for range 2 {
			_, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id})
			wantNoError(t, "RemoveContainer", err)
		}
	}},
	{"a command that is not there fails the start and leaves an exited container that says why", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.create("main", noSuchCommand())
		_, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		if err == nil || !strings.Contains(err.Error(), "/nothing") {
			t.Errorf("StartContainer: %v, want an error that names /nothing", err)
		}
		got := p.status(id)
		if got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 128 || got.Reason != "StartError" || !strings.Contains(got.Message, "/nothing") {
			t.Errorf("%s, code %d, reason %q, message %q; want exited, 128, StartError, and the command in the message", got.State, got.ExitCode, got.Reason, got.Message)
		}
	}},
	{"containers of one sandbox end independently", func(t *testing.T, s *suite) {
		p := s.pod(t)
		stays, goes := p.running("stays", forever()), p.running("goes", exits(0, 0))
		p.exited(goes)
		if got := p.status(stays); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the other container is %s", got.State)
		}
		if got := p.sandbox(); got.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("the sandbox is %s", got.State)
		}
	}},
}

var stopChecks = []check{
	{"stop sends TERM and waits", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", forever())
		p.settled("main")
		begin := time.Now()
		if err := p.stop(id, 30); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > p.timeout() {
			t.Errorf("took %s, although TERM was enough", took)
		}
		if got := p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 143 {
			t.Errorf("%s with exit code %d, want exited with 143", got.State, got.ExitCode)
		}
	}},
	{"stop sends KILL at the end of the grace period", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", ignoresTerm())
		p.settled("main")
		begin := time.Now()
		if err := p.stop(id, 1); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took < time.Second {
			t.Errorf("took %s, want the whole second", took)
		}
		if got := p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 137 {
			t.Errorf("%s with exit code %d, want exited with 137", got.State, got.ExitCode)
		}
	}},
	{"stop without grace kills at once", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", forever())
		p.settled("main")
		if err := p.stop(id, 0); err != nil {
			t.Fatal(err)
		}
		if got := p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 137 {
			t.Errorf("%s with exit code %d, want exited with 137", got.State, got.ExitCode)
		}
	}},
	{"stopping again keeps the first end", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", exits(5, 0))
		first := p.exited(id)
		for range 2 {
			wantNoError(t, "StopContainer", p.stop(id, 1))
		}
		if got := p.status(id); got.ExitCode != 5 || got.FinishedAt != first.FinishedAt {
			t.Errorf("exit code %d at %d, was 5 at %d", got.ExitCode, got.FinishedAt, first.FinishedAt)
		}
	}},
	{"stopping a container that never started does nothing", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.create("main", forever())
		wantNoError(t, "StopContainer", p.stop(id, 1))
		if got := p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Errorf("it is %s", got.State)
		}
	}},
	{"stopping a container that never was is fine", func(t *testing.T, s *suite) {
		_, err := s.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: "critest-never-was", Timeout: 1})
		wantNoError(t, "StopContainer", err)
	}},
}
