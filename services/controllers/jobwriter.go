package controllers

import (
	"context"
	"encoding/json"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// jobWriter is the API server as the Job controller calls it: each call is
// sent at most once.
type jobWriter struct{ c *kube.Client }

// A write's answer is looked at for its version and marks: the rest of it is not sent.
var metadataOnly = kube.WriteOptions{MetadataOnly: true}

func (w jobWriter) Job(ctx context.Context, namespace, name string) (*batchv1.Job, error) {
	return answer[batchv1.Job](w.c.Get(ctx, kube.Jobs.Ref(namespace, name)))
}

func (w jobWriter) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return answer[corev1.Pod](w.c.Get(ctx, kube.Pods.Ref(namespace, name)))
}

func (w jobWriter) ListPods(ctx context.Context, namespace, selector string) ([]corev1.Pod, delta.RV, error) {
	page, err := w.c.List(ctx, kube.Pods, kube.ListOptions{Scope: kube.Scope{Namespace: namespace, LabelSelector: selector}})
	if err != nil {
		return nil, "", err
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
	return podAnswer(w.c.Create(ctx, kube.Pods.Ref(pod.Namespace, ""), body, metadataOnly))
}

func (w jobWriter) PatchPod(ctx context.Context, namespace, name string, patch []byte) (*corev1.Pod, error) {
	return podAnswer(w.c.Patch(ctx, kube.Pods.Ref(namespace, name), kube.StrategicPatch, patch, metadataOnly))
}

func (w jobWriter) DeletePod(ctx context.Context, namespace, name string, uid types.UID) (string, error) {
	raw, err := w.c.Delete(ctx, kube.Pods.Ref(namespace, name), kube.DeleteOptions{UID: string(uid), Propagation: kube.Background})
	if err != nil {
		return "", err
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
	ref := kube.Jobs.Ref(namespace, name)
	_, err := w.c.Delete(ctx, ref, kube.DeleteOptions{UID: string(uid), Propagation: kube.Foreground})
	return err
}

func (w jobWriter) PatchJobStatus(ctx context.Context, namespace, name string, patch []byte) (*batchv1.Job, error) {
	ref := kube.Jobs.Ref(namespace, name).Status()
	return answer[batchv1.Job](w.c.Patch(ctx, ref, kube.MergePatch, patch, metadataOnly))
}

// marshal writes an object with the type the API server wants to read on it.
func marshal(pod *corev1.Pod, apiVersion, kind string) ([]byte, error) {
	typed := *pod
	typed.APIVersion, typed.Kind = apiVersion, kind
	body, err := json.Marshal(&typed)
	if err != nil {
		return nil, fmt.Errorf("controllers: pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return body, nil
}

// podAnswer reads the metadata of a pod that was written.
func podAnswer(raw []byte, err error) (*corev1.Pod, error) {
	if err != nil {
		return nil, err
	}
	p, err := job.DecodePod(raw)
	if err != nil {
		return nil, fmt.Errorf("controllers: answer of the API server: %w", err)
	}
	return p, nil
}

func answer[T any](raw []byte, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("controllers: answer of the API server: %w", err)
	}
	return v, nil
}
