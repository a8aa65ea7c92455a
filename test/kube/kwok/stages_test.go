// Package kwok holds tests that read the stage file with KWOK's own code, without a cluster.
package kwok

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kwok/pkg/apis/internalversion"
	"sigs.k8s.io/kwok/pkg/config"
	"sigs.k8s.io/kwok/pkg/utils/lifecycle"
)

// podStages loads the stages that apply to pods.
func podStages(t *testing.T) lifecycle.Lifecycle {
	t.Helper()
	objects, err := config.Load(t.Context(), filepath.Join("..", "cluster", "stages.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var stages []*internalversion.Stage
	for _, o := range objects {
		if s, ok := o.(*internalversion.Stage); ok && s.Spec.ResourceRef.Kind == "Pod" {
			stages = append(stages, s)
		}
	}
	if len(stages) != 5 {
		t.Fatalf("the file has %d stages for pods, want 5", len(stages))
	}
	lc, err := lifecycle.NewLifecycle(stages)
	if err != nil {
		t.Fatal(err)
	}
	return lc
}

// next returns the one stage that a pod comes to and how long it waits before. It fails if the pod
// could come to several.
func next(t *testing.T, lc lifecycle.Lifecycle, p *corev1.Pod) (string, time.Duration) {
	t.Helper()
	event := &lifecycle.Event{Labels: p.Labels, Annotations: p.Annotations, Data: p}
	all, err := lc.ListAllPossible(context.WithoutCancel(t.Context()), event)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		return "", 0
	}
	if len(all) > 1 {
		t.Fatalf("%d stages match, the first two are %s and %s", len(all), all[0].Name(), all[1].Name())
	}
	delay, _, err := all[0].Delay(t.Context(), event, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return all[0].Name(), delay
}

func pod(phase corev1.PodPhase, annotations ...string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main"}}},
		Status:     corev1.PodStatus{Phase: phase},
	}
	for i := 0; i+1 < len(annotations); i += 2 {
		p.Annotations["deltaplane.io/"+annotations[i]] = annotations[i+1]
	}
	if phase == corev1.PodRunning {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()},
		}}}
	}
	return p
}

func TestRunSecondsIsHowLongAPodRuns(t *testing.T) {
	t.Parallel()
	lc := podStages(t)
	for text, want := range map[string]time.Duration{
		"0": 0, "3": 3 * time.Second, "250ms": 250 * time.Millisecond, "1m30s": 90 * time.Second,
		"1.5s": 1500 * time.Millisecond, "2.s": 2 * time.Second, "1h": time.Hour, "1500us": time.Millisecond,
		"999999999999": 1e9 * time.Second,
	} {
		if name, got := next(t, lc, pod(corev1.PodRunning, "run-seconds", text)); name != "pod-finish" || got != want {
			t.Errorf("run-seconds %q: %s after %s, want pod-finish after %s", text, name, got, want)
		}
	}
	if name, got := next(t, lc, pod(corev1.PodRunning)); name != "pod-finish" || got != time.Second {
		t.Errorf("without the annotation: %s after %s, want pod-finish after 1s", name, got)
	}
}

func TestAnUpdateDoesNotBeginTheRunAgain(t *testing.T) {
	t.Parallel()
	lc := podStages(t)
	p := pod(corev1.PodRunning, "run-seconds", "60")
	p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(time.Now().Add(-40 * time.Second))
	if _, got := next(t, lc, p); got < 19*time.Second || got > 22*time.Second {
		t.Errorf("40s into a run of 60s the rest is %s", got)
	}
	p.Status.ContainerStatuses[0].State.Running.StartedAt = metav1.NewTime(time.Now().Add(-4 * time.Hour))
	if _, got := next(t, lc, p); got != 0 {
		t.Errorf("long after the end of a run the rest is %s", got)
	}
}

func TestStageOfEachKindOfPod(t *testing.T) {
	t.Parallel()
	lc := podStages(t)
	deleted := func(p *corev1.Pod) *corev1.Pod {
		p.DeletionTimestamp = new(metav1.Now())
		return p
	}
	always := pod(corev1.PodRunning)
	always.Spec.RestartPolicy = corev1.RestartPolicyAlways
	foreign := pod(corev1.PodRunning)
	foreign.Status.ContainerStatuses = nil
	for _, c := range []struct {
		what string
		pod  *corev1.Pod
		want string
	}{
		{"a new pod", pod(corev1.PodPending), "pod-run"},
		{"a new pod that will run forever and fail", pod(corev1.PodPending, "run-seconds", "forever", "exit-code", "255"), "pod-run"},
		{"a run time that is no duration", pod(corev1.PodPending, "run-seconds", "soon"), "pod-invalid"},
		{"a negative run time", pod(corev1.PodPending, "run-seconds", "-1s"), "pod-invalid"},
		{"an empty run time", pod(corev1.PodPending, "run-seconds", ""), "pod-invalid"},
		{"a fraction without a unit", pod(corev1.PodPending, "run-seconds", "1.5"), "pod-invalid"},
		{"an exit code beyond a byte", pod(corev1.PodPending, "exit-code", "256"), "pod-invalid"},
		{"an exit code that is no number", pod(corev1.PodPending, "exit-code", "x"), "pod-invalid"},
		{"a running pod", pod(corev1.PodRunning), "pod-finish"},
		{"a running pod that runs forever", pod(corev1.PodRunning, "run-seconds", "forever"), ""},
		{"a running pod that is always restarted", always, ""},
		{"a pod that somebody else declared running", foreign, ""},
		{"a succeeded pod", pod(corev1.PodSucceeded), ""},
		{"a failed pod", pod(corev1.PodFailed), ""},
		{"a deleted pod that waits", deleted(pod(corev1.PodPending)), "pod-stop"},
		{"a deleted pod that runs", deleted(pod(corev1.PodRunning, "run-seconds", "forever")), "pod-stop"},
		{"a deleted pod that has succeeded", deleted(pod(corev1.PodSucceeded)), "pod-delete"},
		{"a deleted pod that has failed", deleted(pod(corev1.PodFailed)), "pod-delete"},
	} {
		if got, _ := next(t, lc, c.pod); got != c.want {
			t.Errorf("%s comes to stage %q, want %q", c.what, got, c.want)
		}
	}
}
