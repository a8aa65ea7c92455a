package job

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// expire deletes a finished Job whose ttlSecondsAfterFinished has passed, or
// wakes its key when it will have. The Job is read live first: the
// user may have changed its mind.
func (s *run) expire(ctx context.Context, j *batchv1.Job) error {
	left, ok := timeLeft(j, s.now())
	if !ok {
		return nil
	}
	if left > 0 {
		s.wake = left
		return nil
	}
	j, err := s.liveJob(ctx)
	if err != nil || j == nil {
		return err
	}
	if left, ok = timeLeft(j, s.now()); !ok || left > 0 {
		s.wake = max(0, left)
		return nil
	}
	if err := s.req.Lease.Alive(); err != nil {
		return err
	}
	err = s.api.DeleteJob(ctx, s.namespace, s.name, j.UID)
	if kube.IsNotFound(err) || kube.IsConflict(err) { // gone, or another Job by now
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete finished job: %w", err)
	}
	return nil
}

// timeLeft is how long a finished Job is kept from now on; ok is false when it
// is not to be deleted by us.
func timeLeft(j *batchv1.Job, now time.Time) (left time.Duration, ok bool) {
	ttl := j.Spec.TTLSecondsAfterFinished
	if ttl == nil || j.DeletionTimestamp != nil {
		return 0, false
	}
	for _, t := range []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed} {
		if c := conditionTrue(j, t); c != nil && !c.LastTransitionTime.IsZero() {
			return c.LastTransitionTime.Add(time.Duration(*ttl) * time.Second).Sub(now), true
		}
	}
	return 0, false
}
