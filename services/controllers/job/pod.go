package job

import (
	"maps"
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/replica"
)

// TokenAnnotation on a pod is the token of the lease under which it was created.
// With the ordinal in its name it identifies the creation (package
// core/replica).
const TokenAnnotation = "deltaplane.io/lease-token"

func controllerRef(j *batchv1.Job) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Name: j.Name, UID: j.UID,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}
}

// newPod is one child of a Job. It always carries the tracking finalizer, without
// which it would not be counted.
func newPod(j *batchv1.Job, c replica.Child, token uint64) *corev1.Pod {
	t := j.Spec.Template.DeepCopy()
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: j.Namespace, Name: nameOf(j, c),
			Labels: t.Labels, Annotations: maps.Clone(t.Annotations), Finalizers: slices.Clone(t.Finalizers),
			OwnerReferences: []metav1.OwnerReference{controllerRef(j)},
		},
		Spec: t.Spec,
	}
	if !slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
		p.Finalizers = append(p.Finalizers, batchv1.JobTrackingFinalizer)
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[TokenAnnotation] = strconv.FormatUint(token, 10)
	if c.Index != replica.NoIndex {
		mark(p, j, c.Index)
	}
	return p
}

// tokenOf is the token a pod was created under; zero for a pod that was not
// created by this controller.
func tokenOf(p *corev1.Pod) uint64 {
	n, err := strconv.ParseUint(p.Annotations[TokenAnnotation], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// childOf is which child of a Job a pod is by its name, and whether this controller gave the name.
func childOf(j *batchv1.Job, p *corev1.Pod) (replica.Child, bool) {
	return replica.Parse(j.Name, string(j.UID), p.Name, indexed(j))
}

func nameOf(j *batchv1.Job, c replica.Child) string {
	return replica.Name(j.Name, string(j.UID), c)
}

func ownedBy(j *batchv1.Job, p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && ref.UID == j.UID
}
