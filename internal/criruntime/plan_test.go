package criruntime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestAnnotationsSayHowAContainerEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	for name, c := range map[string]struct {
		annotations map[string]string
		code        int32
		reason      string
		atLeast     time.Duration
	}{
		"a Go duration":                   {with(nil, criruntime.RunSecondsAnnotation, "150ms"), 0, "Completed", 150 * time.Millisecond},
		"whole seconds":                   {with(nil, criruntime.RunSecondsAnnotation, "1"), 0, "Completed", time.Second},
		"an exit code":                    {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.ExitCodeAnnotation, "7"), 7, "Error", 0},
		"always failing":                  {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.FailureRateAnnotation, "1"), 1, "Error", 0},
		"never failing":                   {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.FailureRateAnnotation, "0"), 0, "Completed", 0},
		"a reason":                        {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.ExitCodeAnnotation, "137", criruntime.ExitReasonAnnotation, "OOMKilled"), 137, "OOMKilled", 0},
		"the container's wins":            {with(nil, criruntime.RunSecondsAnnotation, "forever", criruntime.RunSecondsAnnotation+".main", "0"), 0, "Completed", 0},
		"another container's is not its":  {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.ExitCodeAnnotation+".other", "9"), 0, "Completed", 0},
		"the container's code of the pod": {with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.ExitCodeAnnotation, "1", criruntime.ExitCodeAnnotation+".main", "2"), 2, "Error", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := n.ended(n.run(c.annotations))
			if ran := time.Duration(got.FinishedAt - got.StartedAt); got.ExitCode != c.code || got.Reason != c.reason || ran < c.atLeast {
				t.Errorf("code %d, reason %q after %s; want %d, %q after %s at least", got.ExitCode, got.Reason, ran, c.code, c.reason, c.atLeast)
			}
		})
	}
}

func TestWithoutAnnotationsTheKindAndTheRestartPolicyDecide(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	pod := with(nil, criruntime.ExitCodeAnnotation, "3")
	box := n.sandbox(pod)
	begin := func(name string, own map[string]string) string {
		t.Helper()
		id, err := n.create(box, name, own)
		if err != nil {
			t.Fatal(err)
		}
		n.begin(id)
		return id
	}
	always := begin("always", with(nil, criruntime.RestartPolicyAnnotation, "Always"))
	never := begin("never", with(nil, criruntime.RestartPolicyAnnotation, "Never"))
	first := begin("first", with(nil, criruntime.RestartPolicyAnnotation, "Always", criruntime.ContainerKindAnnotation, "init"))
	if got := n.ended(first); got.ExitCode != 0 {
		t.Errorf("an init container ended with %d: the pod's annotation is not its", got.ExitCode)
	}
	if got := n.ended(never); got.FinishedAt-got.StartedAt != int64(time.Second) || got.ExitCode != 3 {
		t.Errorf("restart policy Never: %d after %s, want 3 after 1 s", got.ExitCode, time.Duration(got.FinishedAt-got.StartedAt))
	}
	if got := n.status(always); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("restart policy Always: %s", got.State)
	}
}

func TestAnAnnotationThatCannotBeReadIsRefusedByName(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	for key, value := range map[string]string{
		criruntime.RunSecondsAnnotation:           "soon",
		criruntime.ExitCodeAnnotation:             "256",
		criruntime.FailureRateAnnotation:          "NaN",
		criruntime.IgnoreTermAnnotation:           "maybe",
		criruntime.RunSecondsAnnotation + ".main": "-1s",
	} {
		_, err := n.create(n.sandbox(with(nil, key, value)), "main", nil)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), key+` is "`+value+`"`) {
			t.Errorf("%s=%s: %v, want InvalidArgument that names it", key, value, err)
		}
	}
}

func TestAContainerLeavesItsLogAndItsTerminationMessage(t *testing.T) {
	t.Parallel()
	n := newNode(t, criruntime.Config{})
	dir := t.TempDir()
	message := filepath.Join(dir, "message")
	box, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}, LogDirectory: dir,
		Annotations: with(nil, criruntime.RunSecondsAnnotation, "0", criruntime.ExitCodeAnnotation, "2", criruntime.LogAnnotation, "one\ntwo", criruntime.TerminationMessageAnnotation, "last words"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: box.PodSandboxId, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "app:1"}, LogPath: "main/0.log",
		Mounts:      []*runtimeapi.Mount{{ContainerPath: "/dev/termination-log", HostPath: message}},
		Annotations: with(nil, "io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	n.begin(made.ContainerId)
	n.ended(made.ContainerId)
	text, err := os.ReadFile(filepath.Join(dir, "main", "0.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" stdout F one\n", " stdout F two\n", " stderr F exit code 2\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("log %q, want %q in it", text, want)
		}
	}
	if text, err := os.ReadFile(message); err != nil || string(text) != "last words" {
		t.Errorf("termination message %q, %v", text, err)
	}
}
