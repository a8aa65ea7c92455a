package criruntime_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestFaultsBefallCallsByName(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	box := n.sandbox(nil)
	version := func(ctx context.Context) error {
		_, err := n.Version(ctx, &runtimeapi.VersionRequest{})
		return err
	}

	n.server.Inject("Version", criruntime.Fault{Err: status.Error(codes.Internal, "broken"), Times: 1})
	if err := version(t.Context()); status.Code(err) != codes.Internal {
		t.Errorf("the first call: %v, want Internal", err)
	}
	if err := version(t.Context()); err != nil {
		t.Errorf("the call after: %v", err)
	}

	remove := n.server.Inject("Version", criruntime.Fault{Hang: true})
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := version(short); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a hanging call: %v, want DeadlineExceeded", err)
	}
	done := make(chan error, 1)
	go func() { done <- version(t.Context()) }()
	remove()
	if err := <-done; err != nil {
		t.Errorf("a call that hung, after the fault was taken back: %v", err)
	}

	defer n.server.Inject("CreateContainer", criruntime.Fault{Lost: true, Times: 1})()
	if _, err := n.create(box, "main", nil); status.Code(err) != codes.Unavailable {
		t.Errorf("a lost answer: %v, want Unavailable", err)
	}
	if list, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil || len(list.Containers) != 1 {
		t.Errorf("the call whose answer was lost was made: %v, %v", list, err)
	}

	defer n.server.Inject("PodSandboxStatus", criruntime.Fault{Err: status.Error(codes.Internal, "this one"), Match: func(r any) bool {
		return r.(*runtimeapi.PodSandboxStatusRequest).PodSandboxId == box
	}})()
	for id, want := range map[string]codes.Code{box: codes.Internal, n.sandbox(nil): codes.OK} {
		if _, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}); status.Code(err) != want {
			t.Errorf("status of %s: %v, want %s", id, err, want)
		}
	}
}

func TestARuntimeThatIsDownAnswersNothingAndItsContainersGoOn(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	id := n.run(with(nil, criruntime.RunSecondsAnnotation, "100ms"))
	stream, err := n.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	n.server.SetDown(true)
	for {
		if _, err = stream.Recv(); err != nil {
			break
		}
	}
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ends with %v, want Unavailable", err)
	}
	if _, err := n.Status(t.Context(), &runtimeapi.StatusRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("a call: %v, want Unavailable", err)
	}
	n.server.SetDown(false)
	if got := n.ended(id); got.FinishedAt-got.StartedAt != int64(100*time.Millisecond) {
		t.Errorf("it ran for %s, want 100ms", time.Duration(got.FinishedAt-got.StartedAt))
	}
}

func TestAContainerCanBeKilledAndShownInAnyState(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	id := n.run(with(nil, criruntime.RunSecondsAnnotation, "forever"))
	if err := n.server.Show(id, new(runtimeapi.ContainerState(17))); err != nil {
		t.Fatal(err)
	}
	if got := n.status(id).State; got != 17 {
		t.Errorf("shown as %d, want 17", got)
	}
	if err := n.server.Show(id, nil); err != nil {
		t.Fatal(err)
	}
	if err := n.server.Kill(id, 139); err != nil {
		t.Fatal(err)
	}
	if got := n.status(id); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 139 {
		t.Errorf("%s, code %d", got.State, got.ExitCode)
	}
	if err := n.server.Kill(id, 139); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("killing it again: %v", err)
	}
	if err := n.server.Kill("nobody", 1); status.Code(err) != codes.NotFound {
		t.Errorf("killing nobody: %v", err)
	}
}

func TestCallsThatAreNotHereSayTheirName(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	_, exec := n.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "c"})
	_, attach := n.Attach(t.Context(), &runtimeapi.AttachRequest{})
	_, stats := n.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
	for name, err := range map[string]error{"ExecSync": exec, "Attach": attach, "ListContainerStats": stats} {
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want Unimplemented that names it", name, err)
		}
	}
}

func TestAnEventStreamCanBeHeldToOneNode(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	ctx := metadata.AppendToOutgoingContext(t.Context(), criruntime.EventSelectorHeader, "deltaplane.io/node=node-1")
	stream, err := n.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	mine, _, mineToo := n.sandbox(nil), n.sandbox(nil), n.sandbox(nil)
	for _, want := range []string{mine, mine, mineToo, mineToo} {
		if e, err := stream.Recv(); err != nil || e.ContainerId != want {
			t.Fatalf("event of %s, %v; want one of %s", e.GetContainerId(), err, want)
		}
	}
}

func TestASlowReaderOfEventsIsToldToLookAtEverything(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	// A small window makes the server wait for this reader soon.
	path := filepath.Join(t.TempDir(), "s")
	if err := n.server.Listen(path); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := runtimeapi.NewRuntimeServiceClient(conn).GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		n.sandbox(with(nil, "note", strings.Repeat("x", 200)))
	}
	for count := 0; ; count++ {
		_, err := stream.Recv()
		if err == nil {
			continue
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("after %d events: %v, want ResourceExhausted", count, err)
		}
		return
	}
}

func TestSandboxesHaveAddressesOfTheirOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	seen := map[string]bool{}
	for range 600 {
		id := n.sandbox(nil)
		got, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if err != nil {
			t.Fatal(err)
		}
		ip := got.Status.Network.Ip
		if ip == "" || seen[ip] {
			t.Fatalf("address %q is empty or used twice", ip)
		}
		seen[ip] = true
	}
}

func TestImagesAreThereUnlessTheirNameSaysOtherwise(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	spec := func(name string) *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: name} }
	there := func(name string) bool {
		t.Helper()
		answer, err := n.images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: spec(name)})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Image != nil
	}
	for name, want := range map[string]bool{
		"app": true, "docker.io/library/busybox:1.36": true, "app@sha256:0000000000000000000000000000000000000000000000000000000000000000": true,
		"missing/app:1": false, "registry.example:5000/missing/app": false, "missing": true, "slow/app": false, "pull/app": false,
	} {
		if got := there(name); got != want {
			t.Errorf("%s is there: %t, want %t", name, got, want)
		}
	}
	for name, want := range map[string]codes.Code{"missing/app": codes.NotFound, "pull/app": codes.OK, "": codes.InvalidArgument, "App": codes.InvalidArgument, "a b": codes.InvalidArgument, "app:": codes.InvalidArgument} {
		if _, err := n.images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: spec(name)}); status.Code(err) != want {
			t.Errorf("pulling %q: %v, want %s", name, err, want)
		}
	}
	if !there("pull/app") {
		t.Error("a pulled image is not there")
	}
	if _, err := n.images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec("app")}); err != nil {
		t.Fatal(err)
	}
	if there("app") {
		t.Error("a removed image is there")
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := n.images.PullImage(short, &runtimeapi.PullImageRequest{Image: spec("slow/app")}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a slow pull that is given up: %v", err)
	}
}

func TestAConfigurationsFaultsAreReportedTogether(t *testing.T) {
	t.Parallel()
	_, err := criruntime.New(criruntime.Config{StartDelay: -1, StopDelay: -1, CompactAt: -1})
	for _, want := range []string{"start delay", "stop delay", "compact at"} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("New() = %v, want %q in it", err, want)
		}
	}
}
