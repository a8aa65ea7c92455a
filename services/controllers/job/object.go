package job

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func decodeJob(raw []byte) (*batchv1.Job, error) {
	var j batchv1.Job
	if err := json.Unmarshal(raw, &j); err != nil {
		return nil, fmt.Errorf("job: decode job: %w", err)
	}
	setDefaults(&j)
	return &j, nil
}

// setDefaults fills what the API server fills, so that a Job from a server
// without defaulting is never a nil pointer.
func setDefaults(j *batchv1.Job) {
	s := &j.Spec
	if s.Parallelism == nil {
		if s.Completions == nil {
			s.Completions = new(int32(1))
		}
		s.Parallelism = new(int32(1))
	}
	if s.BackoffLimit == nil {
		s.BackoffLimit = new(int32(6))
		if s.BackoffLimitPerIndex != nil {
			s.BackoffLimit = new(int32(math.MaxInt32))
		}
	}
	if s.Selector == nil && s.Template.Labels["batch.kubernetes.io/controller-uid"] == string(j.UID) {
		s.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"batch.kubernetes.io/controller-uid": string(j.UID)}}
	}
}

func tracked(p *corev1.Pod) bool { return slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) }

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// active reports whether a pod has not ended and is not being deleted.
func active(p *corev1.Pod) bool { return !terminal(p) && p.DeletionTimestamp == nil }

// terminating reports whether a pod is being deleted and has not ended.
func terminating(p *corev1.Pod) bool { return !terminal(p) && p.DeletionTimestamp != nil }

// failed reports whether a pod counts as failed: a pod being deleted does, unless
// it is to be replaced only once it has failed.
func failed(j *batchv1.Job, p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodFailed {
		return true
	}
	return !replaceFailedOnly(j) && p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded
}

// replaceFailedOnly reports whether a terminating pod is replaced only once it has failed: a
// failure policy judges pods by how they have ended.
func replaceFailedOnly(j *batchv1.Job) bool {
	return j.Spec.PodFailurePolicy != nil || j.Spec.PodReplacementPolicy != nil && *j.Spec.PodReplacementPolicy == batchv1.Failed
}

func suspended(j *batchv1.Job) bool { return j.Spec.Suspend != nil && *j.Spec.Suspend }

func podCondition(p *corev1.Pod, t corev1.PodConditionType) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

func ready(p *corev1.Pod) bool {
	c := podCondition(p, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func countReady(pods []*corev1.Pod) int32 {
	var n int32
	for _, p := range pods {
		if ready(p) {
			n++
		}
	}
	return n
}

func sidecars(p *corev1.Pod) map[string]bool {
	names := map[string]bool{}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			names[c.Name] = true
		}
	}
	return names
}

// finishedAt is when a pod counts as finished, for the pod-failure back-off.
func finishedAt(p *corev1.Pod) time.Time {
	if t := containersFinishedAt(p); !t.IsZero() {
		return t
	}
	if c := podCondition(p, corev1.PodReady); c != nil && c.Status == corev1.ConditionFalse && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime.Time
	}
	if p.DeletionTimestamp != nil {
		var grace int64
		if p.DeletionGracePeriodSeconds != nil {
			grace = *p.DeletionGracePeriodSeconds
		}
		return p.DeletionTimestamp.Add(-time.Duration(grace) * time.Second)
	}
	return p.CreationTimestamp.Time
}

func containersFinishedAt(p *corev1.Pod) time.Time {
	var last time.Time
	side := sidecars(p)
	statuses := slices.Clone(p.Status.ContainerStatuses)
	for _, s := range p.Status.InitContainerStatuses {
		if side[s.Name] { // sidecars end after the main containers
			statuses = append(statuses, s)
		}
	}
	for _, s := range statuses {
		if s.State.Terminated == nil || s.State.Terminated.FinishedAt.IsZero() {
			return time.Time{}
		}
		if t := s.State.Terminated.FinishedAt.Time; t.After(last) {
			last = t
		}
	}
	return last
}

// standing is what decides in which order pods are deleted.
func standing(p *corev1.Pod) replica.Standing {
	s := replica.Standing{Bound: p.Spec.NodeName != "", Ready: ready(p), Created: p.CreationTimestamp.Time}
	switch p.Status.Phase {
	case corev1.PodRunning:
		s.Phase = replica.Running
	case corev1.PodUnknown:
		s.Phase = replica.Unknown
	}
	if s.Ready {
		s.ReadySince = podCondition(p, corev1.PodReady).LastTransitionTime.Time
	}
	for _, c := range p.Status.ContainerStatuses {
		s.Restarts = max(s.Restarts, c.RestartCount)
	}
	side := sidecars(p)
	for _, c := range p.Status.InitContainerStatuses {
		if side[c.Name] {
			s.SidecarRestarts = max(s.SidecarRestarts, c.RestartCount)
		}
	}
	return s
}

// about names a Job for Events.
func about(j *batchv1.Job) kube.Involved {
	involved := kube.Jobs.Involved(j.Namespace, j.Name, string(j.UID))
	involved.RV = j.ResourceVersion
	return involved
}

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
