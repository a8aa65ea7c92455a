package nodeagent_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/deltaplane/deltaplane/internal/criruntime"
)

func TestAContainerWhoseRemainsVanishedRunsNoSecondTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(nil)
	uid := w.create("trio", map[string]any{"containers": []map[string]any{
		{"name": "a", "image": "app:1"}, {"name": "b", "image": "app:1"}, {"name": "c", "image": "app:1"},
	}}, map[string]string{criruntime.RunSecondsAnnotation: forever})
	w.becomes("trio", corev1.PodRunning)
	id := func(name string) string {
		for _, s := range w.statuses(uid) {
			if s.GetMetadata().GetName() == name {
				return s.GetId()
			}
		}
		return ""
	}
	ends := func(name string) {
		t.Helper()
		w.eventually(name+" runs", func() string {
			if slices.Contains(w.containers(uid), name+"/0 running") {
				return ""
			}
			return strings.Join(w.containers(uid), " ")
		})
		w.ok(w.runtime.Kill(id(name), 0))
		w.eventually(name+" is told to have ended", func() string {
			for _, s := range w.pod("trio").Status.ContainerStatuses {
				if s.Name == name && s.State.Terminated != nil {
					return ""
				}
			}
			return "not yet"
		})
	}
	ends("a")
	_, err := w.cri().RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id("a")})
	w.ok(err)
	ends("b") // makes the pod be looked at again
	ends("c")
	pod := w.becomes("trio", corev1.PodSucceeded)
	if got := w.containers(uid); slices.ContainsFunc(got, func(c string) bool { return strings.HasPrefix(c, "a/") }) {
		t.Errorf("containers are %v, want no second a", got)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Terminated == nil || s.RestartCount != 0 {
			t.Errorf("%s is %+v after %d restarts", s.Name, s.State, s.RestartCount)
		}
	}
}
