package criruntime_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/internal/dirlock"
)

// childEnv makes the test binary a runtime in that directory, which goes on until it is killed.
const childEnv = "CRIRUNTIME_TEST_CHILD"

func TestChildRuntime(t *testing.T) { //nolint:paralleltest // it is a process of its own, which does not end
	dir := os.Getenv(childEnv)
	if dir == "" {
		t.Skip("run by TestContainersGoOnAfterKill9")
	}
	n := newNode(t, criruntime.Config{Dir: dir})
	forever := n.run(with(nil, criruntime.RunSecondsAnnotation, "forever"))
	short := n.run(with(nil, criruntime.RunSecondsAnnotation, "200ms", criruntime.ExitCodeAnnotation, "5"))
	over := n.run(with(nil, criruntime.RunSecondsAnnotation, "0"))
	n.ended(over)
	fmt.Printf("ready %s %s %s\n", forever, short, over)
	select {}
}

func TestContainersGoOnAfterKill9(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestChildRuntime$", "-test.v")
	child.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var forever, short, over string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "ready %s %s %s", &forever, &short, &over); n == 3 {
			break
		}
	}
	if _, err := criruntime.New(criruntime.Config{Dir: dir}); !errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("a second runtime in the directory: %v, want ErrTaken", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	<-time.After(300 * time.Millisecond) // so that the short one's end falls into the time in between
	n := newNode(t, criruntime.Config{Dir: dir})
	if got := n.status(forever); got.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the one that runs for ever is %s", got.State)
	}
	if got := n.status(short); got.State != runtimeapi.ContainerState_CONTAINER_EXITED || got.ExitCode != 5 || got.FinishedAt-got.StartedAt != int64(200*time.Millisecond) {
		t.Errorf("the short one is %s with code %d after %s; want exited with 5 after 200ms", got.State, got.ExitCode, time.Duration(got.FinishedAt-got.StartedAt))
	}
	if got := n.status(over); got.State != runtimeapi.ContainerState_CONTAINER_EXITED {
		t.Errorf("the one that was over is %s", got.State)
	}
	if _, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: forever, Timeout: 5}); err != nil {
		t.Fatal(err)
	}
	if got := n.status(forever); got.ExitCode != 143 {
		t.Errorf("stopped with %d, want 143", got.ExitCode)
	}
}

// chore makes one random change.
func (n *node) chore(rng *rand.Rand, boxes, containers *[]string) {
	n.t.Helper()
	pick := func(of []string) string {
		if len(of) == 0 {
			return "none"
		}
		return of[rng.IntN(len(of))]
	}
	ctx := n.t.Context()
	switch rng.IntN(10) {
	case 0, 1:
		*boxes = append(*boxes, n.sandbox(with(nil, criruntime.RunSecondsAnnotation, pick([]string{"forever", "0", "1h"}), criruntime.ExitCodeAnnotation, "3")))
	case 2, 3, 4:
		if id, err := n.create(pick(*boxes), fmt.Sprintf("c%d", rng.IntN(3)), nil); err == nil {
			*containers = append(*containers, id)
		}
	case 5, 6:
		_, _ = n.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: pick(*containers)})
	case 7:
		_, _ = n.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: pick(*containers), Timeout: int64(rng.IntN(2))})
	case 8:
		_, _ = n.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: pick(*containers)})
		_, _ = n.images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: fmt.Sprintf("image-%d", rng.IntN(3))}})
	case 9:
		if rng.IntN(2) == 0 {
			_, _ = n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pick(*boxes)})
		} else {
			_, _ = n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pick(*boxes)})
		}
	}
}

func TestRandomHistoriesSurviveARestart(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			cfg := criruntime.Config{Dir: t.TempDir(), StopDelay: time.Millisecond, CompactAt: 2048 << (2 * seed)}
			n := newNode(t, cfg)
			var boxes, containers []string
			for round := range 4 {
				for range 60 {
					n.chore(rng, &boxes, &containers)
				}
				for _, id := range containers { // what ends at once shall have ended before the picture is taken
					if got, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id}); err == nil && got.Status.StartedAt > 0 && got.Status.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
						box, err := n.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: id}})
						if err != nil || len(box.Containers) != 1 {
							continue
						}
						status, err := n.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: box.Containers[0].PodSandboxId})
						if err == nil && status.Status.Annotations[criruntime.RunSecondsAnnotation] == "0" {
							n.ended(id)
						}
					}
				}
				before := n.picture()
				if err := n.server.Close(); err != nil {
					t.Fatal(err)
				}
				made := n.made.Load()
				n = newNode(t, cfg)
				n.made.Store(made)
				if d := cmp.Diff(before, n.picture()); d != "" {
					t.Fatalf("round %d (-before +after the restart):\n%s", round, d)
				}
			}
		})
	}
}

// journalFormat begins every record of a journal.
const journalFormat = "\xd1Dr1"

func TestAHalfWrittenLastRecordDoesNotCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNode(t, criruntime.Config{Dir: dir})
	first := n.run(nil)
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "journal")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	last := bytes.LastIndex(whole, []byte(journalFormat))
	if err := os.WriteFile(path, whole[:last+20], 0o600); err != nil {
		t.Fatal(err)
	}
	n = newNode(t, criruntime.Config{Dir: dir})
	if got := n.status(first); got.State != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("it is %s: the start was the record that was not complete", got.State)
	}
}

func TestAJournalOfAReleaseBeforeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "journal")
	if err := os.WriteFile(path, []byte("0badcafe {\"op\":\"image\",\"id\":\"a\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := criruntime.New(criruntime.Config{Dir: dir}); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move the file away") {
		t.Errorf("New() = %v, want a refusal that names the file and what to do", err)
	}
}

func TestACorruptJournalIsNamedAndNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNode(t, criruntime.Config{Dir: dir})
	n.run(nil)
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "journal")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	second := bytes.Index(text[1:], []byte(journalFormat)) + 1
	text[second+30] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := criruntime.New(criruntime.Config{Dir: dir}); !errors.Is(err, criruntime.ErrCorrupt) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d of %d", second, len(text))) {
		t.Errorf("New() = %v, want ErrCorrupt with the file and the place of the record", err)
	}
}

func TestTheJournalStaysSmall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNode(t, criruntime.Config{Dir: dir, CompactAt: 16 << 10})
	for range 500 {
		id := n.sandbox(nil)
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 17<<10 {
		t.Errorf("500 pods that are gone take %d bytes", info.Size())
	}
}
