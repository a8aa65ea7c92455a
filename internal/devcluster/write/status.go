package write

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// Bind gives a pod its node. Errors are Status errors.
func (w *Writer) Bind(key, node string, dryRun bool) error {
	r := w.kinds.Get("pods")
	for {
		cur := w.store.Get(r, key)
		if cur == nil {
			return apierrors.NewNotFound(r.GroupResource(), key)
		}
		pod := cur.Clone().(*corev1.Pod)
		switch {
		case pod.DeletionTimestamp != nil:
			return apierrors.NewConflict(r.GroupResource(), pod.Name, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name))
		case pod.Spec.NodeName != "":
			return apierrors.NewConflict(r.GroupResource(), pod.Name, fmt.Errorf("pod %s is already assigned to node %q", pod.Name, pod.Spec.NodeName))
		case dryRun:
			return nil
		}
		pod.Spec.NodeName = node
		SetPodCondition(pod, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, metav1.NewTime(w.store.Now()))
		if _, err := w.store.Commit(r, cur, pod); err == nil {
			return nil
		} else if !errors.Is(err, store.ErrRaced) {
			return apierrors.NewInternalError(err)
		}
	}
}

// Finalize sets a namespace's finalizers; one that is being deleted goes with the last.
func (w *Writer) Finalize(name string, finalizers []corev1.FinalizerName) (*store.Object, error) {
	r := w.kinds.Get("namespaces")
	for {
		cur := w.store.Get(r, name)
		if cur == nil {
			return nil, apierrors.NewNotFound(r.GroupResource(), name)
		}
		ns := cur.Clone().(*corev1.Namespace)
		ns.Spec.Finalizers = finalizers
		var done *store.Object
		var err error
		if len(finalizers) == 0 && ns.DeletionTimestamp != nil && len(ns.Finalizers) == 0 {
			done, err = w.remove(r, cur)
		} else {
			done, err = w.store.Commit(r, cur, ns)
		}
		if err == nil {
			return done, nil
		}
		if !errors.Is(err, store.ErrRaced) {
			return nil, apierrors.NewInternalError(err)
		}
	}
}

// SetPodCondition adds or replaces a condition, moving its time only when its status changes.
func SetPodCondition(p *corev1.Pod, c corev1.PodCondition, now metav1.Time) {
	c.LastTransitionTime = metav1.NewTime(now.Rfc3339Copy().Time)
	for i, was := range p.Status.Conditions {
		if was.Type == c.Type {
			if was.Status == c.Status {
				c.LastTransitionTime = was.LastTransitionTime
			}
			p.Status.Conditions[i] = c
			return
		}
	}
	p.Status.Conditions = append(p.Status.Conditions, c)
}
