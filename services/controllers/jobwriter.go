package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

var (
	podResource = kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	jobResource = kube.Resource{Group: "batch", Version: "v1", Name: "jobs", Kind: "Job", Namespaced: true}
)

// jobWriter is the API server as the Job controller calls it: each call is
// sent at most once.
type jobWriter struct{ c *kube.Client }

func (w jobWriter) Job(ctx context.Context, namespace, name string) (*batchv1.Job, error) {
	return answer[batchv1.Job](w.c.Get(ctx, kube.Ref{Resource: jobResource, Namespace: namespace, Name: name}))
}

func (w jobWriter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return answer[corev1.Pod](w.c.Get(ctx, podRef(namespace, name)))
}

func (w jobWriter) ListPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, delta.RV, error) {
	page, err := w.c.List(ctx, podResource, kube.ListOptions{Scope: kube.Scope{Namespace: namespace, LabelSelector: selector}})
	if err != nil {
		return nil, "", refusal(err)
	}
	pods := make([]corev1.Pod, len(page.Items))
	for i, raw := range page.Items {
		if err := json.Unmarshal(raw, &pods[i]); err != nil {
			return nil, "", fmt.Errorf("controllers: pod in a list: %w", err)
		}
	}
	return pods, page.RV, nil
}

func (w jobWriter) CreatePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	body, err := marshal(pod, "v1", "Pod")
	if err != nil {
		return nil, err
	}
	return answer[corev1.Pod](w.c.Create(ctx, podRef(pod.Namespace, ""), body, kube.WriteOptions{}))
}

func (w jobWriter) PatchPod(ctx context.Context, namespace, name string, patch []byte) (*corev1.Pod, error) {
	return answer[corev1.Pod](w.c.Patch(ctx, podRef(namespace, name), kube.StrategicPatch, patch, kube.WriteOptions{}))
}

func (w jobWriter) DeletePod(ctx context.Context, namespace, name string, uid types.UID) (string, error) {
	raw, err := w.c.Delete(ctx, podRef(namespace, name), kube.DeleteOptions{UID: string(uid), Propagation: kube.Background})
	if err != nil {
		return "", refusal(err)
	}
	var meta struct {
		Kind     string `json:"kind"`
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(raw, &meta); err != nil || meta.Kind == "Status" {
		return "", nil //nolint:nilerr // the pod is deleted; only its version is unknown
	}
	return meta.Metadata.ResourceVersion, nil
}

func (w jobWriter) DeleteJob(ctx context.Context, namespace, name string, uid types.UID) error {
	ref := kube.Ref{Resource: jobResource, Namespace: namespace, Name: name}
	_, err := w.c.Delete(ctx, ref, kube.DeleteOptions{UID: string(uid), Propagation: kube.Foreground})
	if err != nil {
		return refusal(err)
	}
	return nil
}

func (w jobWriter) PatchJobStatus(ctx context.Context, namespace, name string, patch []byte) (*batchv1.Job, error) {
	ref := kube.Ref{Resource: jobResource, Namespace: namespace, Name: name, Subresource: "status"}
	return answer[batchv1.Job](w.c.Patch(ctx, ref, kube.MergePatch, patch, kube.WriteOptions{}))
}

func podRef(namespace, name string) kube.Ref {
	return kube.Ref{Resource: podResource, Namespace: namespace, Name: name}
}

// marshal writes an object with the type the API server wants to read on it.
func marshal(pod *corev1.Pod, apiVersion, kind string) ([]byte, error) {
	typed := pod.DeepCopy()
	typed.APIVersion, typed.Kind = apiVersion, kind
	body, err := json.Marshal(typed)
	if err != nil {
		return nil, fmt.Errorf("controllers: pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return body, nil
}

func answer[T any](raw []byte, err error) (*T, error) {
	if err != nil {
		return nil, refusal(err)
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("controllers: answer of the API server: %w", err)
	}
	return v, nil
}

// refusal sorts the API server's errors as the Job controller tells them apart.
// What is left as it is may have been done or not.
func refusal(err error) error {
	se, ok := errors.AsType[*kube.StatusError](err)
	if !ok {
		return err
	}
	switch {
	case kube.IsNotFound(err):
		return fmt.Errorf("%w: %w", job.ErrNotFound, err)
	case kube.IsAlreadyExists(err):
		return fmt.Errorf("%w: %w", job.ErrExists, err)
	case kube.IsConflict(err):
		return fmt.Errorf("%w: %w", job.ErrConflict, err)
	case kube.IsInvalid(err):
		return fmt.Errorf("%w: %w: %w", job.ErrRefused, job.ErrInvalid, err)
	case terminating(se):
		return fmt.Errorf("%w: %w: %w", job.ErrRefused, job.ErrTerminating, err)
	case se.Code >= 400 && se.Code < 500 && !kube.IsTimeout(err):
		return fmt.Errorf("%w: %w", job.ErrRefused, err)
	}
	return err
}

func terminating(e *kube.StatusError) bool {
	for _, c := range e.Causes {
		if c.Reason == "NamespaceTerminating" {
			return true
		}
	}
	return false
}
