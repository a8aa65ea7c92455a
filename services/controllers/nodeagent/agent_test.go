package nodeagent_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestAPodRunsAndEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	w.create("once", nil, map[string]string{criruntime.RunSecondsAnnotation: "1"})
	w.becomes("once", corev1.PodRunning)
	pod := w.becomes("once", corev1.PodSucceeded)
	if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Terminated == nil || s[0].State.Terminated.ExitCode != 0 || s[0].RestartCount != 0 {
		t.Errorf("container statuses are %+v", s)
	}
}
