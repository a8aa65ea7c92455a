package job

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newCondition(t batchv1.JobConditionType, status corev1.ConditionStatus, reason, message string, now time.Time) batchv1.JobCondition {
	return batchv1.JobCondition{
		Type: t, Status: status, Reason: reason, Message: message,
		LastProbeTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
}

func findCondition(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range j.Status.Conditions {
		if j.Status.Conditions[i].Type == t {
			return &j.Status.Conditions[i]
		}
	}
	return nil
}

func conditionTrue(j *batchv1.Job, t batchv1.JobConditionType) *batchv1.JobCondition {
	if c := findCondition(j, t); c != nil && c.Status == corev1.ConditionTrue {
		return c
	}
	return nil
}

// finished reports whether the Job is Complete or Failed; it needs no more work.
func finished(j *batchv1.Job) bool {
	return conditionTrue(j, batchv1.JobComplete) != nil || conditionTrue(j, batchv1.JobFailed) != nil
}

// setCondition changes or adds a condition and reports whether it did. One that
// is not there is never added as false.
func setCondition(j *batchv1.Job, c batchv1.JobCondition) bool {
	if old := findCondition(j, c.Type); old != nil {
		if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			return false
		}
		*old = c
		return true
	}
	if c.Status == corev1.ConditionFalse {
		return false
	}
	j.Status.Conditions = append(j.Status.Conditions, c)
	return true
}
