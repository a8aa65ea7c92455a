package table

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/duration"
)

// template is the pods that a workload makes.
type template struct {
	Spec struct {
		Containers   []struct{ Name, Image string }
		NodeSelector map[string]string
	}
}

func (t *template) names() string {
	all := make([]string, len(t.Spec.Containers))
	for i, c := range t.Spec.Containers {
		all[i] = c.Name
	}
	return strings.Join(all, ",")
}

func (t *template) images() string {
	all := make([]string, len(t.Spec.Containers))
	for i, c := range t.Spec.Containers {
		all[i] = c.Image
	}
	return strings.Join(all, ",")
}

// workload is a controller of pods.
type workload struct {
	named
	Spec struct {
		Replicas *int64
		Selector *metav1.LabelSelector
		Template template
	}
	Status struct {
		Replicas, ReadyReplicas, UpdatedReplicas, AvailableReplicas                         int64
		DesiredNumberScheduled, CurrentNumberScheduled, NumberReady, UpdatedNumberScheduled int64
		NumberAvailable                                                                     int64
	}
}

func (w *workload) ready() string {
	return fmt.Sprintf("%d/%d", w.Status.ReadyReplicas, deref(w.Spec.Replicas, 0))
}

func deploymentCells(w *workload, now time.Time) []any {
	selector := "<invalid>"
	if s, err := metav1.LabelSelectorAsSelector(w.Spec.Selector); err == nil {
		selector = s.String()
	}
	return []any{
		w.Metadata.Name, w.ready(), w.Status.UpdatedReplicas, w.Status.AvailableReplicas, w.age(now),
		w.Spec.Template.names(), w.Spec.Template.images(), selector,
	}
}

func replicaSetCells(w *workload, now time.Time) []any {
	return []any{
		w.Metadata.Name, deref(w.Spec.Replicas, 0), w.Status.Replicas, w.Status.ReadyReplicas, w.age(now),
		w.Spec.Template.names(), w.Spec.Template.images(), metav1.FormatLabelSelector(w.Spec.Selector),
	}
}

func statefulSetCells(w *workload, now time.Time) []any {
	return []any{w.Metadata.Name, w.ready(), w.age(now), w.Spec.Template.names(), w.Spec.Template.images()}
}

func daemonSetCells(w *workload, now time.Time) []any {
	s := &w.Status
	return []any{
		w.Metadata.Name, s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable,
		labels.FormatLabels(w.Spec.Template.Spec.NodeSelector), w.age(now),
		w.Spec.Template.names(), w.Spec.Template.images(), metav1.FormatLabelSelector(w.Spec.Selector),
	}
}

type jobSpec struct {
	Completions, Parallelism *int64
	Selector                 *metav1.LabelSelector
	Template                 template
}

type job struct {
	named
	Spec   jobSpec
	Status struct {
		Succeeded                 int64
		StartTime, CompletionTime *metav1.Time
		Conditions                []condition
	}
}

// status is the first of what is true of a job, in the order in which it counts.
func (j *job) status() string {
	is := func(kind string) bool {
		for _, c := range j.Status.Conditions {
			if c.Type == kind {
				return c.Status == "True"
			}
		}
		return false
	}
	switch {
	case is("Complete"):
		return "Complete"
	case is("Failed"):
		return "Failed"
	case j.Metadata.DeletionTimestamp != nil:
		return "Terminating"
	case is("Suspended"):
		return "Suspended"
	case is("FailureTarget"):
		return "FailureTarget"
	case is("SuccessCriteriaMet"):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func (j *job) completions() string {
	parallel := deref(j.Spec.Parallelism, 0)
	switch {
	case j.Spec.Completions != nil:
		return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
	case parallel > 1:
		return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, parallel)
	}
	return fmt.Sprintf("%d/1", j.Status.Succeeded)
}

func jobCells(j *job, now time.Time) []any {
	took := ""
	if begun := j.Status.StartTime; begun != nil {
		end := now
		if j.Status.CompletionTime != nil {
			end = j.Status.CompletionTime.Time
		}
		took = duration.HumanDuration(end.Sub(begun.Time))
	}
	return []any{
		j.Metadata.Name, j.status(), j.completions(), took, j.age(now),
		j.Spec.Template.names(), j.Spec.Template.images(), metav1.FormatLabelSelector(j.Spec.Selector),
	}
}

type cronJob struct {
	named
	Spec struct {
		Schedule    string
		TimeZone    *string
		Suspend     *bool
		JobTemplate struct{ Spec jobSpec }
	}
	Status struct {
		Active           []struct{}
		LastScheduleTime *metav1.Time
	}
}

func cronJobCells(c *cronJob, now time.Time) []any {
	suspended, last := "<unset>", none
	if c.Spec.Suspend != nil {
		suspended = "False"
		if *c.Spec.Suspend {
			suspended = "True"
		}
	}
	if c.Status.LastScheduleTime != nil {
		last = since(c.Status.LastScheduleTime.Time, now)
	}
	made := &c.Spec.JobTemplate.Spec
	return []any{
		c.Metadata.Name, c.Spec.Schedule, deref(c.Spec.TimeZone, none), suspended, len(c.Status.Active), last, c.age(now),
		made.Template.names(), made.Template.images(), metav1.FormatLabelSelector(made.Selector),
	}
}
