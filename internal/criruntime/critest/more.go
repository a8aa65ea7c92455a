package critest

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *suite) containerIDs(t *testing.T, f *runtimeapi.ContainerFilter) []string {
	t.Helper()
	answer, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, c := range answer.Containers {
		ids = append(ids, c.Id)
	}
	slices.Sort(ids)
	return ids
}

func (s *suite) sandboxIDs(t *testing.T, f *runtimeapi.PodSandboxFilter) []string {
	t.Helper()
	answer, err := s.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: f})
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{}
	for _, c := range answer.Items {
		ids = append(ids, c.Id)
	}
	slices.Sort(ids)
	return ids
}

func wantIDs(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func inState(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
	return &runtimeapi.ContainerStateValue{State: s}
}

var listChecks = []check{
	{"containers are found by ID, sandbox, state and labels", func(t *testing.T, s *suite) {
		p, other := s.pod(t), s.pod(t)
		runs, made := p.running("runs", forever()), p.create("made", forever())
		over := p.running("over", exits(0, 0))
		p.exited(over)
		elsewhere := other.create("elsewhere", forever())
		labels := map[string]string{"io.kubernetes.pod.uid": p.config.Metadata.Uid}
		wantIDs(t, "by ID", s.containerIDs(t, &runtimeapi.ContainerFilter{Id: runs}), runs)
		wantIDs(t, "by sandbox", s.containerIDs(t, &runtimeapi.ContainerFilter{PodSandboxId: p.id}), runs, made, over)
		wantIDs(t, "by labels", s.containerIDs(t, &runtimeapi.ContainerFilter{LabelSelector: labels}), runs, made, over)
		wantIDs(t, "running", s.containerIDs(t, &runtimeapi.ContainerFilter{LabelSelector: labels, State: inState(runtimeapi.ContainerState_CONTAINER_RUNNING)}), runs)
		wantIDs(t, "created", s.containerIDs(t, &runtimeapi.ContainerFilter{LabelSelector: labels, State: inState(runtimeapi.ContainerState_CONTAINER_CREATED)}), made)
		wantIDs(t, "exited", s.containerIDs(t, &runtimeapi.ContainerFilter{PodSandboxId: p.id, State: inState(runtimeapi.ContainerState_CONTAINER_EXITED)}), over)
		wantIDs(t, "ID of another sandbox", s.containerIDs(t, &runtimeapi.ContainerFilter{Id: elsewhere, PodSandboxId: p.id}))
		wantIDs(t, "two labels of which one differs", s.containerIDs(t, &runtimeapi.ContainerFilter{LabelSelector: map[string]string{
			"io.kubernetes.pod.uid": p.config.Metadata.Uid, "io.kubernetes.container.name": "nobody",
		}}))
		if all := s.containerIDs(t, nil); !slices.Contains(all, runs) || !slices.Contains(all, elsewhere) {
			t.Errorf("without a filter: %v, want all", all)
		}
	}},
	{"a listed container shows what its status shows", func(t *testing.T, s *suite) {
		p := s.pod(t)
		id := p.running("main", forever())
		answer, err := s.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}})
		if err != nil || len(answer.Containers) != 1 {
			t.Fatalf("%v, %v", answer, err)
		}
		got, want := answer.Containers[0], p.status(id)
		if got.State != want.State || got.CreatedAt != want.CreatedAt || got.PodSandboxId != p.id || got.Metadata.GetName() != "main" || got.ImageRef != want.ImageRef || got.Labels["io.kubernetes.container.name"] != "main" {
			t.Errorf("listed %v, status %v", got, want)
		}
	}},
	{"sandboxes are found by ID, state and labels", func(t *testing.T, s *suite) {
		p, other := s.pod(t), s.pod(t)
		labels := map[string]string{"io.kubernetes.pod.uid": p.config.Metadata.Uid}
		wantIDs(t, "by ID", s.sandboxIDs(t, &runtimeapi.PodSandboxFilter{Id: p.id}), p.id)
		wantIDs(t, "by labels", s.sandboxIDs(t, &runtimeapi.PodSandboxFilter{LabelSelector: labels}), p.id)
		if all := s.sandboxIDs(t, nil); !slices.Contains(all, p.id) || !slices.Contains(all, other.id) {
			t.Errorf("without a filter: %v", all)
		}
		ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		wantIDs(t, "ready", s.sandboxIDs(t, &runtimeapi.PodSandboxFilter{State: ready, LabelSelector: labels}), p.id)
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		wantIDs(t, "ready after the stop", s.sandboxIDs(t, &runtimeapi.PodSandboxFilter{State: ready, LabelSelector: labels}))
	}},
}

var inputChecks = []check{
	{"what never was is NotFound", func(t *testing.T, s *suite) {
		const never = "critest-never-was"
		_, err := s.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: never})
		wantCode(t, "PodSandboxStatus", err, codes.NotFound)
		_, err = s.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: never})
		wantCode(t, "ContainerStatus", err, codes.NotFound)
		_, err = s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: never})
		wantCode(t, "StartContainer", err, codes.NotFound)
		_, err = s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: never})
		wantNoError(t, "RemoveContainer", err)
		_, err = s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: never})
		wantNoError(t, "RemovePodSandbox", err)
	}},
	{"a sandbox without metadata is refused", func(t *testing.T, s *suite) {
		for name, change := range map[string]func(*runtimeapi.PodSandboxConfig){
			"no metadata": func(c *runtimeapi.PodSandboxConfig) { c.Metadata = nil },
		} {
			config := s.config(t)
			change(config)
			if _, err := s.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config}); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}},
	{"a container in a sandbox that is not there or stopped is refused", func(t *testing.T, s *suite) {
		p := s.pod(t)
		if _, err := s.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: "critest-never-was", Config: p.container("main", forever()), SandboxConfig: p.config}); err == nil {
			t.Error("created in a sandbox that never was")
		}
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		// A runtime may notice at the start only.
		id, err := p.tryCreate(p.container("main", forever()))
		if err == nil {
			_, err = s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id})
		}
		if err == nil {
			t.Error("started in a stopped sandbox")
		}
	}},
	{"a container without metadata or image is refused", func(t *testing.T, s *suite) {
		p := s.pod(t)
		for name, change := range map[string]func(*runtimeapi.ContainerConfig){
			"no metadata": func(c *runtimeapi.ContainerConfig) { c.Metadata = nil },
			"no image":    func(c *runtimeapi.ContainerConfig) { c.Image.Image = "" },
		} {
			config := p.container("main", forever())
			change(config)
			if _, err := p.tryCreate(config); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}},
	{"a container of an image that is not there is refused as NotFound", func(t *testing.T, s *suite) {
		p := s.pod(t)
		config := p.container("main", forever())
		config.Image.Image = s.Missing
		_, err := p.tryCreate(config)
		wantCode(t, "CreateContainer", err, codes.NotFound)
	}},
}

var imageChecks = []check{
	{"an image that is there has an ID and a name", func(t *testing.T, s *suite) {
		answer, err := s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: s.Image}})
		if err != nil {
			t.Fatal(err)
		}
		if answer.Image.GetId() == "" || !slices.Contains(answer.Image.GetRepoTags(), s.Image) {
			t.Errorf("image %v, want an ID and the tag %s", answer.Image, s.Image)
		}
		byID, err := s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: answer.Image.GetId()}})
		if err != nil {
			t.Fatal(err)
		}
		_ = byID // an ID is known once the image is used or listed: asked below
		p := s.pod(t)
		p.create("main", forever())
		byID, err = s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: answer.Image.GetId()}})
		if err != nil || byID.Image.GetId() != answer.Image.GetId() {
			t.Errorf("by its ID: %v, %v", byID, err)
		}
	}},
	{"an image that is not there is no error, only no image", func(t *testing.T, s *suite) {
		answer, err := s.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: s.Missing}})
		if err != nil || answer.Image != nil {
			t.Errorf("%v, %v", answer, err)
		}
	}},
	{"pulling what cannot be had fails, removing it is fine", func(t *testing.T, s *suite) {
		if _, err := s.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: s.Missing}}); err == nil {
			t.Error("pulled")
		}
		_, err := s.images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: s.Missing}})
		wantNoError(t, "RemoveImage", err)
	}},
	{"a used image is listed", func(t *testing.T, s *suite) {
		p := s.pod(t)
		p.create("main", forever())
		answer, err := s.images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(answer.Images, func(i *runtimeapi.Image) bool { return slices.Contains(i.RepoTags, s.Image) }) {
			t.Errorf("%v, want %s among them", answer.Images, s.Image)
		}
	}},
}

var logChecks = []check{
	{"logs are lines of time, stream, F and text", func(t *testing.T, s *suite) {
		p := s.pod(t)
		p.exited(p.running("main", prints("hello from the test")))
		var text string
		p.eventually("the line is in the log", func() bool {
			raw, _ := os.ReadFile(filepath.Join(p.config.LogDirectory, "main.log"))
			text = string(raw)
			return strings.Contains(text, " stdout F hello from the test\n")
		})
		for line := range strings.Lines(text) {
			parts := strings.SplitN(line, " ", 4)
			if len(parts) != 4 || (parts[1] != "stdout" && parts[1] != "stderr") || parts[2] != "F" {
				t.Errorf("line %q is not in the CRI's format", line)
				continue
			}
			if _, err := time.Parse(time.RFC3339Nano, parts[0]); err != nil {
				t.Errorf("line %q: %v", line, err)
			}
		}
	}},
	{"a log that cannot be opened fails the start", func(t *testing.T, s *suite) {
		p := s.pod(t)
		config := p.container("main", forever())
		if err := os.WriteFile(filepath.Join(p.config.LogDirectory, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		config.LogPath = "file/main.log"
		id, err := p.tryCreate(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: id}); err == nil {
			t.Error("started")
		}
		if got := p.status(id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.Reason != "StartError" {
			t.Errorf("%s, reason %q; want exited, StartError", got.State, got.Reason)
		}
	}},
}

// stream collects the events of one pod, as far as it can.
func (p *pod) stream() (next func() *runtimeapi.ContainerEventResponse) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	p.t.Cleanup(cancel)
	stream, err := p.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		p.t.Fatal(err)
	}
	events := make(chan *runtimeapi.ContainerEventResponse, 64)
	failed := make(chan error, 1)
	listens := make(chan struct{})
	go func() {
		if head, err := stream.Header(); err == nil && head != nil { // nil is a stream that ended
			close(listens)
		}
	}()
	go func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			if e.GetPodSandboxStatus().GetMetadata().GetUid() == p.config.Metadata.Uid || slices.ContainsFunc(e.ContainersStatuses, func(c *runtimeapi.ContainerStatus) bool {
				return c.Labels["io.kubernetes.pod.uid"] == p.config.Metadata.Uid
			}) {
				events <- e
			}
		}
	}()
	// Not every runtime says when it listens; this much later, it does.
	select {
	case <-listens:
	case err := <-failed:
		if status.Code(err) == codes.Unimplemented {
			p.t.Skipf("no event stream: %v", err)
		}
		if errors.Is(err, io.EOF) {
			p.t.Skip("no event stream: it ends at once")
		}
		p.t.Fatal(err)
	case <-time.After(p.timeout() / 10):
	}
	return func() *runtimeapi.ContainerEventResponse {
		p.t.Helper()
		select {
		case e := <-events:
			return e
		case err := <-failed:
			p.t.Fatalf("the stream ended: %v", err)
		case <-time.After(p.timeout()):
			p.t.Fatal("no event came")
		}
		return nil
	}
}

var eventChecks = []check{
	{"the event stream tells a container's life with statuses", func(t *testing.T, s *suite) {
		config := s.config(t)
		p := &pod{suite: s, t: t, config: config}
		next := p.stream()
		p.run()
		expect := func(id string, kind runtimeapi.ContainerEventType) *runtimeapi.ContainerEventResponse {
			t.Helper()
			e := next()
			if e.ContainerId != id || e.ContainerEventType != kind {
				t.Fatalf("event %s of %s, want %s of %s", e.ContainerEventType, e.ContainerId, kind, id)
			}
			return e
		}
		expect(p.id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		if e := expect(p.id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT); e.PodSandboxStatus.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("the started sandbox is %s", e.PodSandboxStatus.GetState())
		}
		id := p.create("main", exits(4, 100*time.Millisecond))
		expect(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		p.start(id)
		expect(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		e := expect(id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		if e.PodSandboxStatus.GetId() != p.id || len(e.ContainersStatuses) != 1 || e.ContainersStatuses[0].State != runtimeapi.ContainerState_CONTAINER_EXITED || e.ContainersStatuses[0].ExitCode != 4 {
			t.Errorf("the stop event shows %v, %v; want the exit with code 4", e.PodSandboxStatus, e.ContainersStatuses)
		}
		if _, err := s.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if e := expect(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT); len(e.ContainersStatuses) != 0 {
			t.Errorf("the delete event still shows %v", e.ContainersStatuses)
		}
		if _, err := s.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		if e := expect(p.id, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT); e.PodSandboxStatus.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the stopped sandbox is %s", e.PodSandboxStatus.GetState())
		}
		if _, err := s.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
		expect(p.id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}},
}

var restartChecks = []check{
	{"containers go on while the runtime is killed, and their ends are known afterwards", func(t *testing.T, s *suite) {
		if s.Restart == nil {
			t.Skip("this target cannot be restarted")
		}
		p := s.pod(t)
		stays, goes, made := p.running("stays", forever()), p.running("goes", exits(6, 4*time.Second)), p.create("made", forever())
		p.settled("stays")
		before := p.status(stays)
		s.connect(s.Restart(t))
		got := p.status(stays)
		if got.State != runtimeapi.ContainerState_CONTAINER_RUNNING || got.StartedAt != before.StartedAt || got.Metadata.GetName() != "stays" || got.Labels["io.kubernetes.container.name"] != "stays" {
			t.Errorf("the running container is now %v, was %v", got, before)
		}
		if got := p.exited(goes); got.ExitCode != 6 || got.FinishedAt < got.StartedAt+int64(2*time.Second) {
			t.Errorf("exit code %d, %s after the start; want 6 after 4 s, less what its start took", got.ExitCode, time.Duration(got.FinishedAt-got.StartedAt))
		}
		if got := p.sandbox(); got.State != runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Errorf("the sandbox is %s", got.State)
		}
		p.start(made)
		wantNoError(t, "StopContainer", p.stop(stays, 5))
		if got := p.status(stays); got.ExitCode != 143 {
			t.Errorf("stopped after the restart with exit code %d, want 143", got.ExitCode)
		}
		if id, err := p.tryCreate(p.container("made", forever())); err == nil {
			t.Errorf("the name of a container from before the restart was taken by %s", id)
		}
	}},
}
