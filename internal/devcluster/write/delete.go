package write

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
	"github.com/deltaplane/deltaplane/internal/devcluster/store"
)

// Delete begins or finishes the deletion of an object: it is gone at once, or
// marked and held by its grace period or finalizers. Errors are Status errors.
func (w *Writer) Delete(r *kinds.Resource, key string, o metav1.DeleteOptions) (*store.Object, bool, error) {
	for {
		cur := w.store.Get(r, key)
		if cur == nil {
			return nil, false, apierrors.NewNotFound(r.GroupResource(), key[strings.IndexByte(key, '/')+1:])
		}
		if err := deletePrecondition(r, cur, o.Preconditions); err != nil {
			return nil, false, err
		}
		next, gone := w.markDeleted(r, cur, o)
		var done *store.Object
		var err error
		switch {
		case gone && len(o.DryRun) > 0:
			return cur, true, nil
		case gone:
			done, err = w.remove(r, cur)
			if err == nil && r.ReturnsDeleted {
				done, err = dry(r, key, next, cur.RV)
			}
		case same(next, cur.Decoded):
			return cur, false, nil
		case len(o.DryRun) > 0:
			done, err = dry(r, key, next, cur.RV)
		default:
			done, err = w.store.Commit(r, cur, next)
		}
		if err == nil {
			return done, gone, nil
		}
		if !errors.Is(err, store.ErrRaced) {
			return nil, false, apierrors.NewInternalError(err)
		}
	}
}

// remove takes an object out of the store.
func (w *Writer) remove(r *kinds.Resource, cur *store.Object) (*store.Object, error) {
	done, err := w.store.Commit(r, cur, nil)
	if err == nil && r.ID() == kinds.CRDID {
		w.store.Unserve(w.kinds, cur.Decoded)
	}
	return done, err
}

func deletePrecondition(r *kinds.Resource, cur *store.Object, p *metav1.Preconditions) error {
	if p == nil {
		return nil
	}
	name := cur.Decoded.GetName()
	if p.UID != nil && *p.UID != cur.Decoded.GetUID() {
		return apierrors.NewConflict(r.GroupResource(), name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", *p.UID, cur.Decoded.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != cur.Decoded.GetResourceVersion() {
		return apierrors.NewConflict(r.GroupResource(), name,
			fmt.Errorf("Precondition failed: ResourceVersion in precondition: %v, ResourceVersion in object meta: %v", *p.ResourceVersion, cur.Decoded.GetResourceVersion()))
	}
	return nil
}

// markDeleted returns the object as the deletion leaves it, and whether nothing holds it any more.
func (w *Writer) markDeleted(r *kinds.Resource, cur *store.Object, o metav1.DeleteOptions) (kinds.APIObject, bool) {
	next := cur.Clone()
	setPropagation(r, next, o)
	grace := int64(0)
	pod, isPod := next.(*corev1.Pod)
	if isPod {
		grace = podGrace(pod, o)
	}
	now := w.store.Now().Truncate(time.Second)
	if was := next.GetDeletionTimestamp(); was != nil {
		old := next.GetDeletionGracePeriodSeconds()
		if old != nil && grace < *old {
			next.SetDeletionTimestamp(new(metav1.NewTime(now.Add(time.Duration(grace) * time.Second))))
			next.SetDeletionGracePeriodSeconds(&grace)
		} else if old != nil {
			grace = *old
		}
	} else {
		next.SetDeletionTimestamp(new(metav1.NewTime(now.Add(time.Duration(grace) * time.Second))))
		next.SetDeletionGracePeriodSeconds(&grace)
		if next.GetGeneration() > 0 {
			next.SetGeneration(next.GetGeneration() + 1)
		}
	}
	if ns, ok := next.(*corev1.Namespace); ok {
		ns.Status.Phase = corev1.NamespaceTerminating
		return next, len(ns.Spec.Finalizers) == 0 && len(next.GetFinalizers()) == 0
	}
	return next, grace == 0 && len(next.GetFinalizers()) == 0
}

// podGrace is how long a pod may take to end.
func podGrace(pod *corev1.Pod, o metav1.DeleteOptions) int64 {
	var grace int64
	switch {
	case o.GracePeriodSeconds != nil:
		grace = *o.GracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return 0
	}
	if grace < 0 {
		return 1
	}
	return grace
}

// setPropagation turns the policy into the finalizer that carries it out.
func setPropagation(r *kinds.Resource, obj kinds.APIObject, o metav1.DeleteOptions) {
	finalizers := obj.GetFinalizers()
	orphan := slices.Contains(finalizers, metav1.FinalizerOrphanDependents)
	foreground := slices.Contains(finalizers, metav1.FinalizerDeleteDependents)
	switch {
	case o.OrphanDependents != nil:
		orphan, foreground = *o.OrphanDependents, false
	case o.PropagationPolicy != nil:
		orphan = *o.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *o.PropagationPolicy == metav1.DeletePropagationForeground
	case !orphan && !foreground:
		orphan = r.OrphansByDefault
	}
	kept := slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool {
		return f == metav1.FinalizerOrphanDependents || f == metav1.FinalizerDeleteDependents
	})
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	obj.SetFinalizers(kept)
}
