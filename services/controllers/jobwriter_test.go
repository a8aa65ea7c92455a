package controllers

import (
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
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
	wants("create again", err, job.ErrExists)
	_, err = w.CreatePod(ctx, podNamed("Not A Name"))
	wants("create invalid", err, job.ErrInvalid, job.ErrRefused)
	_, err = w.Pod(ctx, "default", "none")
	wants("get none", err, job.ErrNotFound)
	_, err = w.PatchPod(ctx, "default", "a", []byte(`{"metadata":{"resourceVersion":"1"}}`))
	wants("patch an old version", err, job.ErrConflict)
	_, err = w.DeletePod(ctx, "default", "a", "00000000-0000-0000-0000-000000000000")
	wants("delete another uid", err, job.ErrConflict)

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
	wants("get after the last finalizer", err, job.ErrNotFound)
}

func TestTheJobWriterPatchesOnlyTheStatus(t *testing.T) {
	t.Parallel()
	kc := cluster(t)
	w, ctx := jobWriter{kc}, t.Context()
	body := []byte(`{"apiVersion":"batch/v1","kind":"Job","metadata":{"name":"j"},"spec":{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}}`)
	created, err := answer[batchv1.Job](kc.Create(ctx, kube.Ref{Resource: jobResource, Namespace: "default"}, body, kube.WriteOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"status":{"active":1}}`, created.UID, created.ResourceVersion)
	j, err := w.PatchJobStatus(ctx, "default", "j", []byte(patch))
	if err != nil || j.Status.Active != 1 || j.ResourceVersion == created.ResourceVersion {
		t.Errorf("patch status: active %d, %v", j.Status.Active, err)
	}
	if _, err := w.PatchJobStatus(ctx, "default", "j", []byte(patch)); !errors.Is(err, job.ErrConflict) {
		t.Errorf("again from the old version: %v, want ErrConflict", err)
	}
	if live, err := w.Job(ctx, "default", "j"); err != nil || live.Status.Active != 1 {
		t.Errorf("read back: %v, %v", live, err)
	}
}

func TestRefusalsAreToldFromUnknownOutcomes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want []error
		not  []error
	}{
		{"terminating namespace", &kube.StatusError{Code: 403, Reason: "Forbidden", Causes: []kube.Cause{{Reason: "NamespaceTerminating"}}}, []error{job.ErrRefused, job.ErrTerminating}, nil},
		{"over quota", &kube.StatusError{Code: 403, Reason: "Forbidden"}, []error{job.ErrRefused}, []error{job.ErrTerminating}},
		{"too many requests", &kube.StatusError{Code: 429, Reason: "TooManyRequests"}, []error{job.ErrRefused}, nil},
		{"server timeout", &kube.StatusError{Code: 504, Reason: "Timeout"}, nil, []error{job.ErrRefused}},
		{"internal", &kube.StatusError{Code: 500, Reason: "InternalError"}, nil, []error{job.ErrRefused}},
		{"connection cut", errors.New("EOF"), nil, []error{job.ErrRefused, job.ErrNotFound}},
	} {
		got := refusal(c.err)
		for _, want := range c.want {
			if !errors.Is(got, want) {
				t.Errorf("%s: %v, want %v", c.name, got, want)
			}
		}
		for _, not := range c.not {
			if errors.Is(got, not) {
				t.Errorf("%s: %v must not be %v", c.name, got, not)
			}
		}
		if !errors.Is(got, c.err) {
			t.Errorf("%s: %v hides its cause", c.name, got)
		}
	}
}
