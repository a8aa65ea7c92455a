package controllers

import (
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "x"}, Finalizers: []string{"batch.kubernetes.io/job-tracking"}},
		Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func TestTheJobWriterSortsTheAnswersOfTheAPIServer(t *testing.T) {
	t.Parallel()
	kc := cluster(t)
	w, ctx := jobWriter{kc}, t.Context()

	pod, err := w.CreatePod(ctx, podNamed("a"))
	if err != nil || pod.UID == "" || pod.ResourceVersion == "" {
		t.Fatalf("create: %v, %v", pod, err)
	}
	wants := func(what string, err error, all ...error) {
		t.Helper()
		for _, want := range all {
			if !errors.Is(err, want) {
				t.Errorf("%s: error %v, want %v", what, err, want)
			}
		}
	}
	_, err = w.CreatePod(ctx, podNamed("a"))
	wants("create again", err, kube.ErrAlreadyExists)
	_, err = w.CreatePod(ctx, podNamed("Not A Name"))
	wants("create invalid", err, kube.ErrInvalid, kube.ErrRefused)
	_, err = w.Pod(ctx, "default", "none")
	wants("get none", err, kube.ErrNotFound)
	_, err = w.PatchPod(ctx, "default", "a", []byte(`{"metadata":{"resourceVersion":"1"}}`))
	wants("patch an old version", err, kube.ErrConflict)
	_, err = w.DeletePod(ctx, "default", "a", "00000000-0000-0000-0000-000000000000")
	wants("delete another uid", err, kube.ErrConflict)

	pods, rv, err := w.ListPods(ctx, "default", "app=x")
	if err != nil || len(pods) != 1 || pods[0].UID != pod.UID || rv == "" {
		t.Errorf("list: %d pods at %q, %v", len(pods), rv, err)
	}
	marked, err := w.DeletePod(ctx, "default", "a", pod.UID)
	if err != nil || marked == "" || marked == pod.ResourceVersion {
		t.Errorf("delete with a finalizer: version %q, %v; want the version of the mark", marked, err)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"$deleteFromPrimitiveList/finalizers":["batch.kubernetes.io/job-tracking"]}}`, pod.UID)
	if _, err := w.PatchPod(ctx, "default", "a", []byte(patch)); err != nil {
		t.Errorf("take off the finalizer: %v", err)
	}
	_, err = w.Pod(ctx, "default", "a")
	wants("get after the last finalizer", err, kube.ErrNotFound)
}

func TestTheJobWriterPatchesOnlyTheStatus(t *testing.T) {
	t.Parallel()
	kc := cluster(t)
	w, ctx := jobWriter{kc}, t.Context()
	body := []byte(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`)
	created, err := answer[batchv1.Job](kc.Create(ctx, kube.Ref{Resource: kube.Jobs, Namespace: "default"}, body, kube.WriteOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"status":{"active":1}}`, created.UID, created.ResourceVersion)
	j, err := w.PatchJobStatus(ctx, "default", "j", []byte(patch))
	if err != nil || j.ResourceVersion == "" || j.ResourceVersion == created.ResourceVersion {
		t.Fatalf("patch status: %+v, %v; want the version of the change", j, err)
	}
	if _, err := w.PatchJobStatus(ctx, "default", "j", []byte(patch)); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("again from the old version: %v, want ErrConflict", err)
	}
	if live, err := w.Job(ctx, "default", "j"); err != nil || live.Status.Active != 1 {
		t.Errorf("read back: %v, %v", live, err)
	}
}
