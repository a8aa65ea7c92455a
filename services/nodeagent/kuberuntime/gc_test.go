package kuberuntime_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/internal/cri"
	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func only(uids ...types.UID) func(types.UID) bool {
	return func(uid types.UID) bool { return slices.Contains(uids, uid) }
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestOneDeadInstanceOfANameIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir(), CrashLoop: kuberuntime.Backoff{Max: time.Second}})
		pod := with(newPod("p", corev1.RestartPolicyAlways, "c"), criruntime.RunSecondsAnnotation, "1")
		n.offsets(pod, 4, func(int) {})
		logs := filepath.Join(n.cfg.LogRoot, "ns_p_uid-p", "c")
		if got := n.state(pod); got != "c/0:exited(0) c/1:exited(0) c/2:exited(0) c/3:exited(0)" {
			t.Fatalf("%q", got)
		}
		if err := n.m.CollectGarbage(t.Context(), only(pod.UID), false); err != nil {
			t.Fatal(err)
		}
		if got := n.state(pod); got != "c/3:exited(0)" {
			t.Errorf("%q, want the newest alone", got)
		}
		if exists(t, filepath.Join(logs, "2.log")) || !exists(t, filepath.Join(logs, "3.log")) {
			t.Error("logs do not go with their containers")
		}
		pause(t.Context(), 2*time.Second)
		n.mustSync(pod)
		if err := n.m.CollectGarbage(t.Context(), only(pod.UID), false); err != nil {
			t.Fatal(err)
		}
		if got := n.state(pod); got != "c/3:exited(0) c/4:running" {
			t.Errorf("%q, want one dead beside the running one", got)
		}
		if err := n.m.CollectGarbage(t.Context(), only(pod.UID), true); err != nil {
			t.Fatal(err)
		}
		if got := n.state(pod); got != "c/4:running" {
			t.Errorf("all: %q", got)
		}
		pause(t.Context(), 2*time.Second)
		if err := n.m.CollectGarbage(t.Context(), only(pod.UID), true); err != nil {
			t.Fatal(err)
		}
		if got := n.state(pod); got != "c/4:exited(0)" {
			t.Errorf("all: %q, want the newest kept: it says how the container ended", got)
		}
	})
}

func TestEverythingOfAPodThatIsGoneGoes(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir()})
	gone, lives, runs := newPod("gone", corev1.RestartPolicyAlways, "c"), newPod("lives", corev1.RestartPolicyAlways, "c"), newPod("runs", corev1.RestartPolicyAlways, "c")
	for _, p := range []*corev1.Pod{gone, lives, runs} {
		n.mustSync(p)
	}
	for _, p := range []*corev1.Pod{gone, lives} {
		if err := n.m.KillPod(t.Context(), p, n.pod(p), nil); err != nil {
			t.Fatal(err)
		}
	}
	stranger := filepath.Join(n.cfg.LogRoot, "ns_other_uid-other")
	neighbour := filepath.Join(n.cfg.LogRoot, "ns_neighbour_uid-neighbour")
	volumes := filepath.Join(n.cfg.RootDir, "pods", "uid-gone", "volumes")
	for _, dir := range []string{stranger, neighbour, volumes} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(neighbour, ".deltaplane-node"), []byte("n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing left to do
		if err := n.m.CollectGarbage(t.Context(), only(lives.UID), false); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := n.m.Pods(t.Context(), true)
	if err != nil || len(pods) != 2 || pods[0].UID != lives.UID || pods[1].UID != runs.UID {
		t.Errorf("%v: left are %+v, want what lives and what still runs", err, pods)
	}
	if got := n.state(lives); got != "c/0:exited(143)" {
		t.Errorf("the pod that lives: %q", got)
	}
	for path, want := range map[string]bool{
		filepath.Join(n.cfg.LogRoot, "ns_gone_uid-gone"): false, filepath.Join(n.cfg.LogRoot, "ns_lives_uid-lives"): true,
		filepath.Join(n.cfg.LogRoot, "ns_runs_uid-runs"): true, stranger: true, neighbour: true,
		volumes: true, filepath.Join(n.cfg.RootDir, "pods", "uid-gone", "containers"): false,
		filepath.Join(n.cfg.RootDir, "pods", "uid-lives", "containers"): true,
	} {
		if exists(t, path) != want {
			t.Errorf("%s: there %v, want %v", path, !want, want)
		}
	}
}

func TestOldSandboxesGoWithTheirContainers(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{CrashLoop: kuberuntime.Backoff{Max: time.Nanosecond}})
	pod := newPod("p", corev1.RestartPolicyAlways, "c")
	for range 3 {
		n.mustSync(pod)
		if err := n.m.KillPod(t.Context(), pod, n.pod(pod), nil); err != nil {
			t.Fatal(err)
		}
		if err := n.m.CollectGarbage(t.Context(), only(pod.UID), false); err != nil {
			t.Fatal(err)
		}
	}
	if p := n.pod(pod); len(p.Sandboxes) != 1 || len(p.Containers) != 1 {
		t.Errorf("%+v, want one sandbox and one container", p)
	}
}

func TestCollectionGoesOnPastWhatFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{})
	var ids []string
	pods := []*corev1.Pod{newPod("p1", never, "c"), newPod("p2", never, "c")}
	for _, p := range pods {
		n.mustSync(p)
		if err := n.m.KillPod(t.Context(), p, n.pod(p), nil); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, n.status(p).Latest("c").ID)
	}
	undo := n.rt.Inject("RemoveContainer", criruntime.Fault{Match: func(r any) bool { return idOf(r) == ids[0] }, Err: status.Error(codes.Unknown, "busy")})
	if err := n.m.CollectGarbage(t.Context(), only(), false); err == nil {
		t.Error("no error")
	}
	if got := n.state(pods[0]) + n.state(pods[1]); got != "c/0:exited(143)" {
		t.Errorf("left %q", got)
	}
	undo()
	if err := n.m.CollectGarbage(t.Context(), only(), false); err != nil || n.state(pods[0]) != "" {
		t.Errorf("second try: %v", err)
	}
}

// Two agents share a runtime: neither sees, kills or collects what is the other's.
func TestNodesThatShareARuntimeLeaveEachOtherAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{Node: "n1"})
	other, err := kuberuntime.New(kuberuntime.Config{Node: "n2"}, cri.NewClient(n.rt.Conn()), kuberuntime.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	pod := newPod("p", never, "c")
	pod.Labels = map[string]string{container.LabelNode: "n2", container.LabelPodUID: "another", "app": "x"}
	n.mustSync(pod)
	if pods, err := other.Pods(t.Context(), true); err != nil || len(pods) != 0 {
		t.Errorf("%v: the other node lists %v", err, pods)
	}
	if err := other.KillPod(t.Context(), pod, container.Pod{}, new(int64(0))); err != nil {
		t.Fatal(err)
	}
	if err := other.CollectGarbage(t.Context(), only(), true); err != nil {
		t.Fatal(err)
	}
	n.eventually(pod, "c/0:running")
}
