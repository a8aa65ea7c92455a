package job

import (
	"context"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// sweepGone takes the tracking finalizer off the pods of a Job that does not
// exist any more: those of uid, and those that carry the Job's name
// and have no controller or one of that name. The Job's absence is checked live
// before the first finalizer goes.
func (s *run) sweepGone(ctx context.Context, uid types.UID) error {
	s.action = "sweep"
	pods, _, err := s.indexedPods(ctx, uid, named(s.name))
	if err != nil {
		return err
	}
	var left []*corev1.Pod
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		if tracked(p) && (ref == nil || isJobRef(ref) && ref.Name == s.name) {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return nil
	}
	j, err := s.liveJob(ctx)
	if err != nil {
		return err
	}
	if j != nil && (uid == "" || j.UID == uid) {
		return fmt.Errorf("job %s/%s exists, the index does not show it yet", s.namespace, s.name)
	}
	var orphans []*corev1.Pod
	for _, p := range left {
		if j == nil || !ownedBy(j, p) {
			orphans = append(orphans, p)
		}
	}
	return s.stripAll(ctx, orphans)
}

// sweepOthers takes the tracking finalizer off pods of Jobs that had this Job's name
// before it. A Job that is synced does so when it claims its pods.
func (s *run) sweepOthers(ctx context.Context, j *batchv1.Job) error {
	pods, _, err := s.indexedPods(ctx, "", named(s.name))
	if err != nil {
		return err
	}
	var left []*corev1.Pod
	for _, p := range pods {
		if ref := metav1.GetControllerOfNoCopy(p); tracked(p) && ref != nil && isJobRef(ref) && ref.Name == j.Name && ref.UID != j.UID {
			left = append(left, p)
		}
	}
	if len(left) == 0 {
		return nil
	}
	if _, err := s.sameJob(ctx, j.UID); err != nil {
		return err
	}
	return s.stripAll(ctx, left)
}

// sweepDeleting takes the tracking finalizer off the pods of a Job that is being
// deleted, whose deletion may wait for them.
func (s *run) sweepDeleting(ctx context.Context, j *batchv1.Job) error {
	s.action = "sweep"
	pods, _, err := s.indexedPods(ctx, j.UID, nobody)
	if err != nil {
		return err
	}
	left := slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !ownedBy(j, p) || !tracked(p) })
	if len(left) == 0 {
		return nil
	}
	if j, err = s.sameJob(ctx, j.UID); err != nil {
		return err
	}
	if j.DeletionTimestamp == nil {
		return fmt.Errorf("job %s/%s is not being deleted any more", s.namespace, s.name)
	}
	return s.stripAll(ctx, left)
}

// sweep is all that is left to do for a Job that has ended.
func (s *run) sweep(ctx context.Context, j *batchv1.Job) error {
	s.memory = memory{}
	if err := s.sweepFinished(ctx, j); err != nil {
		return err
	}
	return s.expire(ctx, j)
}

// sweepFinished takes finalizers off the pods of a finished Job,
// and deletes pods that were created for it too late: a Job ends only when no pod
// of it is left running, so whatever runs now came from a holder that had lost
// its lease.
func (s *run) sweepFinished(ctx context.Context, j *batchv1.Job) error {
	s.action = "sweep"
	pods, _, err := s.indexedPods(ctx, j.UID, nobody)
	if err != nil {
		return err
	}
	var left, late []*corev1.Pod
	for _, p := range pods {
		if !ownedBy(j, p) {
			continue
		}
		if tracked(p) {
			left = append(left, p)
		}
		if active(p) && tokenOf(p) != 0 {
			late = append(late, p)
		}
	}
	if len(left)+len(late) == 0 {
		return nil
	}
	if j, err = s.sameJob(ctx, j.UID); err != nil {
		return err
	}
	if !finished(j) {
		return fmt.Errorf("job %s/%s is not finished any more", s.namespace, s.name)
	}
	if err := s.stripAll(ctx, left); err != nil {
		return err
	}
	return s.deleteAll(ctx, late)
}

func (s *run) stripAll(ctx context.Context, pods []*corev1.Pod) error {
	return s.forEach(pods, func(p *corev1.Pod) error {
		_, err := s.strip(ctx, p)
		return err
	})
}

func (s *run) deleteAll(ctx context.Context, pods []*corev1.Pod) error {
	return s.forEach(pods, func(p *corev1.Pod) error { return s.deletePod(ctx, p) })
}

// forEach runs f for all pods and returns the first error.
func (s *run) forEach(pods []*corev1.Pod, f func(*corev1.Pod) error) error {
	var mu sync.Mutex
	var first error
	each(len(pods), s.parallel, func(i int) {
		if err := f(pods[i]); err != nil {
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = err
			}
		}
	})
	return first
}
