package kinds

import (
	"fmt"
	"maps"
	"math"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Labels that tie pods to their Job; the old pair is still written.
const (
	oldControllerUID = "controller-uid"
	oldJobName       = "job-name"
)

// Limits of Indexed Jobs.
const (
	maxIndexedParallelism   = 100_000
	softCompletions         = 100_000
	maxParallelismAboveSoft = 10_000
	maxFailedAboveSoft      = 10_000
)

func defaultJob(j *batchv1.Job) {
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = new(int32(1))
	}
	if s.Parallelism == nil {
		s.Parallelism = new(int32(1))
	}
	if s.BackoffLimit == nil {
		s.BackoffLimit = new(int32(6))
		if s.BackoffLimitPerIndex != nil {
			s.BackoffLimit = new(int32(math.MaxInt32))
		}
	}
	if len(j.Labels) == 0 && s.Template.Labels != nil {
		j.Labels = maps.Clone(s.Template.Labels)
	}
	if s.CompletionMode == nil {
		s.CompletionMode = new(batchv1.NonIndexedCompletion)
	}
	if s.Suspend == nil {
		s.Suspend = new(false)
	}
	if s.PodReplacementPolicy == nil {
		s.PodReplacementPolicy = new(batchv1.TerminatingOrFailed)
		if s.PodFailurePolicy != nil {
			s.PodReplacementPolicy = new(batchv1.Failed)
		}
	}
	if s.ManualSelector == nil {
		s.ManualSelector = new(false)
	}
	defaultPodSpec(&s.Template.Spec)
}

// prepareJob writes the selector that makes a Job's pods its own.
func prepareJob(j *batchv1.Job) {
	j.Status = batchv1.JobStatus{}
	if *j.Spec.ManualSelector {
		return
	}
	if j.Spec.Template.Labels == nil {
		j.Spec.Template.Labels = map[string]string{}
	}
	for k, v := range map[string]string{
		oldJobName: j.Name, batchv1.JobNameLabel: j.Name,
		oldControllerUID: string(j.UID), batchv1.ControllerUidLabel: string(j.UID),
	} {
		if _, set := j.Spec.Template.Labels[k]; !set {
			j.Spec.Template.Labels[k] = v
		}
	}
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	if _, set := j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel]; !set {
		j.Spec.Selector.MatchLabels[batchv1.ControllerUidLabel] = string(j.UID)
	}
	if len(j.Labels) == 0 {
		j.Labels = maps.Clone(j.Spec.Template.Labels)
	}
}

func validateJob(j *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	errs := validateGeneratedSelector(j)
	errs = append(errs, validateJobSpec(&j.Spec, path)...)
	if j.Spec.Selector == nil {
		return append(errs, field.Required(path.Child("selector"), ""))
	}
	sel, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return append(errs, field.Invalid(path.Child("selector"), j.Spec.Selector, err.Error()))
	}
	if !sel.Matches(labels.Set(j.Spec.Template.Labels)) {
		errs = append(errs, field.Invalid(path.Child("template", "metadata", "labels"), j.Spec.Template.Labels, "`selector` does not match template `labels`"))
	}
	return errs
}

// validateGeneratedSelector refuses labels by which one Job would take another's pods.
func validateGeneratedSelector(j *batchv1.Job) field.ErrorList {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return nil
	}
	var errs field.ErrorList
	path := field.NewPath("spec", "template", "metadata", "labels")
	for _, l := range [][2]string{
		{oldControllerUID, string(j.UID)},
		{oldJobName, j.Name},
		{batchv1.ControllerUidLabel, string(j.UID)},
		{batchv1.JobNameLabel, j.Name},
	} {
		if got := j.Spec.Template.Labels[l[0]]; got != l[1] {
			errs = append(errs, field.Invalid(path.Key(l[0]), j.Spec.Template.Labels, fmt.Sprintf("must be '%s'", l[1])))
		}
	}
	return errs
}

func validateJobSpec(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, n := range []struct {
		name  string
		value *int32
	}{
		{"parallelism", s.Parallelism},
		{"completions", s.Completions},
		{"backoffLimit", s.BackoffLimit},
		{"ttlSecondsAfterFinished", s.TTLSecondsAfterFinished},
		{"backoffLimitPerIndex", s.BackoffLimitPerIndex},
		{"maxFailedIndexes", s.MaxFailedIndexes},
	} {
		if n.value != nil {
			errs = append(errs, validation.ValidateNonnegativeField(int64(*n.value), path.Child(n.name))...)
		}
	}
	if s.ActiveDeadlineSeconds != nil {
		errs = append(errs, validation.ValidateNonnegativeField(*s.ActiveDeadlineSeconds, path.Child("activeDeadlineSeconds"))...)
	}
	if s.MaxFailedIndexes != nil && s.BackoffLimitPerIndex == nil {
		errs = append(errs, field.Required(path.Child("backoffLimitPerIndex"), "when maxFailedIndexes is specified"))
	}
	switch mode := s.CompletionMode; {
	case mode == nil || *mode == batchv1.NonIndexedCompletion:
		if s.BackoffLimitPerIndex != nil {
			errs = append(errs, field.Invalid(path.Child("backoffLimitPerIndex"), *s.BackoffLimitPerIndex, "requires indexed completion mode"))
		}
		if s.MaxFailedIndexes != nil {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "requires indexed completion mode"))
		}
		if s.SuccessPolicy != nil {
			errs = append(errs, field.Invalid(path.Child("successPolicy"), *s.SuccessPolicy, "requires indexed completion mode"))
		}
	case *mode == batchv1.IndexedCompletion:
		errs = append(errs, validateIndexed(s, path)...)
	default:
		errs = append(errs, field.NotSupported(path.Child("completionMode"), *mode, []batchv1.CompletionMode{batchv1.NonIndexedCompletion, batchv1.IndexedCompletion}))
	}
	if p := s.PodFailurePolicy; p != nil && len(p.Rules) > 20 {
		errs = append(errs, field.TooMany(path.Child("podFailurePolicy", "rules"), len(p.Rules), 20))
	}
	if p := s.PodReplacementPolicy; p != nil {
		switch {
		case *p != batchv1.Failed && *p != batchv1.TerminatingOrFailed:
			errs = append(errs, field.NotSupported(path.Child("podReplacementPolicy"), *p, []batchv1.PodReplacementPolicy{batchv1.Failed, batchv1.TerminatingOrFailed}))
		case s.PodFailurePolicy != nil && *p != batchv1.Failed:
			errs = append(errs, field.NotSupported(path.Child("podReplacementPolicy"), *p, []batchv1.PodReplacementPolicy{batchv1.Failed}))
		}
	}
	errs = append(errs, validatePodTemplate(&s.Template, path.Child("template"))...)
	return append(errs, validateJobRestartPolicy(s, path.Child("template", "spec", "restartPolicy"))...)
}

func validateJobRestartPolicy(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	switch policy := s.Template.Spec.RestartPolicy; {
	case policy == "" || policy == corev1.RestartPolicyAlways:
		return field.ErrorList{field.Required(path, fmt.Sprintf("valid values: %q, %q", corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever))}
	case policy != corev1.RestartPolicyOnFailure && policy != corev1.RestartPolicyNever:
		return field.ErrorList{field.NotSupported(path, policy, []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever})}
	case s.PodFailurePolicy != nil && policy != corev1.RestartPolicyNever:
		return field.ErrorList{field.Invalid(path, policy, fmt.Sprintf("only %q is supported when podFailurePolicy is specified", corev1.RestartPolicyNever))}
	}
	return nil
}

func validateIndexed(s *batchv1.JobSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Completions == nil {
		errs = append(errs, field.Required(path.Child("completions"), "when completion mode is Indexed"))
	}
	if s.Parallelism != nil && *s.Parallelism > maxIndexedParallelism {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *s.Parallelism, fmt.Sprintf("must be less than or equal to %d when completion mode is Indexed", maxIndexedParallelism)))
	}
	if s.MaxFailedIndexes != nil {
		if s.Completions != nil && *s.MaxFailedIndexes > *s.Completions {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, "must be less than or equal to completions"))
		}
		if *s.MaxFailedIndexes > maxIndexedParallelism {
			errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, fmt.Sprintf("must be less than or equal to %d", maxIndexedParallelism)))
		}
	}
	if s.Completions == nil || *s.Completions <= softCompletions || s.BackoffLimitPerIndex == nil {
		return errs
	}
	const above = "must be less than or equal to %d when completions are above %d and used with backoff limit per index"
	if s.MaxFailedIndexes == nil {
		errs = append(errs, field.Required(path.Child("maxFailedIndexes"), fmt.Sprintf("must be specified when completions is above %d", softCompletions)))
	} else if *s.MaxFailedIndexes > maxFailedAboveSoft {
		errs = append(errs, field.Invalid(path.Child("maxFailedIndexes"), *s.MaxFailedIndexes, fmt.Sprintf(above, maxFailedAboveSoft, softCompletions)))
	}
	if s.Parallelism != nil && *s.Parallelism > maxParallelismAboveSoft {
		errs = append(errs, field.Invalid(path.Child("parallelism"), *s.Parallelism, fmt.Sprintf(above, maxParallelismAboveSoft, softCompletions)))
	}
	return errs
}

// validateJobUpdate keeps what a Job's controller relies on: its selector, its
// template, and the number of completions of a NonIndexed Job.
func validateJobUpdate(j, old *batchv1.Job) field.ErrorList {
	path := field.NewPath("spec")
	var errs field.ErrorList
	immutable := func(name string, now, was any) {
		errs = append(errs, validation.ValidateImmutableField(now, was, path.Child(name))...)
	}
	indexed := *j.Spec.CompletionMode == batchv1.IndexedCompletion
	if !indexed {
		immutable("completions", j.Spec.Completions, old.Spec.Completions)
	} else if j.Spec.Completions != nil && (old.Spec.Completions == nil || *j.Spec.Completions != *old.Spec.Completions) && *j.Spec.Completions != *j.Spec.Parallelism {
		errs = append(errs, field.Invalid(path.Child("completions"), *j.Spec.Completions, "can only be modified in tandem with spec.parallelism"))
	}
	immutable("selector", j.Spec.Selector, old.Spec.Selector)
	immutable("template", &j.Spec.Template, mutableTemplate(j, old))
	immutable("completionMode", j.Spec.CompletionMode, old.Spec.CompletionMode)
	immutable("podFailurePolicy", j.Spec.PodFailurePolicy, old.Spec.PodFailurePolicy)
	immutable("backoffLimitPerIndex", j.Spec.BackoffLimitPerIndex, old.Spec.BackoffLimitPerIndex)
	immutable("managedBy", j.Spec.ManagedBy, old.Spec.ManagedBy)
	immutable("successPolicy", j.Spec.SuccessPolicy, old.Spec.SuccessPolicy)
	return errs
}

// mutableTemplate is the old template with the scheduling directives of the new one,
// when the Job is suspended and runs nothing, which is when they may change.
func mutableTemplate(j, old *batchv1.Job) *corev1.PodTemplateSpec {
	t := &old.Spec.Template
	idle := old.Status.Active == 0 && (old.Status.StartTime == nil || jobCondition(old, batchv1.JobSuspended))
	if old.Spec.Suspend == nil || !*old.Spec.Suspend || !idle {
		return t
	}
	t = t.DeepCopy()
	now := j.Spec.Template
	t.Labels, t.Annotations = now.Labels, now.Annotations
	t.Spec.NodeSelector, t.Spec.Tolerations, t.Spec.SchedulingGates = now.Spec.NodeSelector, now.Spec.Tolerations, now.Spec.SchedulingGates
	for i := range t.Spec.Containers {
		if i < len(now.Spec.Containers) {
			t.Spec.Containers[i].Resources = now.Spec.Containers[i].Resources
		}
	}
	return t
}

// jobCondition reports whether a condition is True.
func jobCondition(j *batchv1.Job, kind batchv1.JobConditionType) bool {
	for _, c := range j.Status.Conditions {
		if c.Type == kind {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
