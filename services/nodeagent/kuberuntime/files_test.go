package kuberuntime_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
)

func TestTerminationMessages(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		policy         corev1.TerminationMessagePolicy
		path           string
		message, code  string
		noFiles        bool
		want, contains string
	}{
		{name: "what it wrote", path: "/dev/termination-log", message: "last words", code: "3", want: "last words"},
		{name: "what it wrote goes before the log", path: "/dev/termination-log", policy: corev1.TerminationMessageFallbackToLogsOnError, message: "last words", code: "3", want: "last words"},
		{name: "the log of one that failed", path: "/dev/termination-log", policy: corev1.TerminationMessageFallbackToLogsOnError, code: "3", contains: "exit code 3\n"},
		{name: "not of one that did not fail", path: "/dev/termination-log", policy: corev1.TerminationMessageFallbackToLogsOnError, code: "0"},
		{name: "not without being asked", path: "/dev/termination-log", policy: corev1.TerminationMessageReadFile, code: "3"},
		{name: "the first 4 KB", path: "/dev/termination-log", message: strings.Repeat("x", 5000), code: "1", want: strings.Repeat("x", 4096)},
		{name: "without files the log is all there is", path: "/dev/termination-log", policy: corev1.TerminationMessageFallbackToLogsOnError, message: "lost", code: "3", noFiles: true, contains: "exit code 3\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			cfg := kuberuntime.Config{RootDir: t.TempDir(), LogRoot: t.TempDir()}
			if tc.noFiles {
				cfg.RootDir = ""
			}
			n := newNode(t, cfg)
			pod := with(newPod("p", never, "c"), criruntime.RunSecondsAnnotation, "1ms", criruntime.ExitCodeAnnotation, tc.code)
			if tc.message != "" {
				with(pod, criruntime.TerminationMessageAnnotation, tc.message)
			}
			pod.Spec.Containers[0].TerminationMessagePath, pod.Spec.Containers[0].TerminationMessagePolicy = tc.path, tc.policy
			n.mustSync(pod)
			n.eventually(pod, "c/0:exited("+tc.code+")")
			got := n.status(pod).Latest("c").Message
			if tc.contains == "" && got != tc.want || !strings.Contains(got, tc.contains) {
				t.Errorf("message %.80q, want %.80q", got, tc.want+tc.contains)
			}
		})
	}
}

func TestTheNumberOfAnInstanceIsFoundInItsLogs(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{LogRoot: t.TempDir()})
	pod := newPod("p", always, "c")
	dir := filepath.Join(n.cfg.LogRoot, "ns_p_uid-p", "c")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2.log", "6.log.20261121-100000", "x.log", "99999999999.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.mustSync(pod)
	n.eventually(pod, "c/7:running")
	if c := n.status(pod).Latest("c"); c.RestartCount != 7 || c.LogPath != filepath.Join(dir, "7.log") {
		t.Errorf("restart count %d, log %s", c.RestartCount, c.LogPath)
	}
}

func TestARuntimeThatHasNoRoomForTheContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, kuberuntime.Config{RootDir: t.TempDir()})
	pod := newPod("p", always, "c")
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	r := n.sync(pod)
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonCreateContainerConfigError || w.Message != `volumeMounts[0].name: volume "data" is not mounted on the node` {
		t.Errorf("waiting %+v", w)
	}
	pod = newPod("q", always, "c")
	undo := n.rt.Inject("CreateContainer", criruntime.Fault{Err: status.Error(codes.Unknown, "no space left on device")})
	r = n.sync(pod)
	if w := r.Waiting["c"]; w.Reason != kuberuntime.ReasonCreateContainerError || w.Message != "no space left on device" {
		t.Errorf("waiting %+v", w)
	}
	undo()
	n.mustSync(pod)
	n.eventually(pod, "c/0:running")
}
