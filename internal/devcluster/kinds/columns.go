package kinds

import (
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// col makes a column of one type's values; a priority above 0 shows only with -o wide.
func col[P APIObject](name, kind string, priority int32, value func(P) any) Column {
	return Column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: name, Type: kind, Priority: priority},
		Value:                 func(o APIObject) any { return value(o.(P)) },
	}
}

// The columns that tables of most kinds begin and end with.
var (
	NameColumn = Column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name"},
		Value:                 func(o APIObject) any { return o.GetName() },
	}
	AgeColumn = Column{
		TableColumnDefinition: metav1.TableColumnDefinition{Name: "Age", Type: "string"},
		Value:                 func(o APIObject) any { return age(o.GetCreationTimestamp()) },
	}
)

func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}

func podColumns() []Column {
	return []Column{
		NameColumn,
		col("Ready", "string", 0, func(p *corev1.Pod) any {
			ready := 0
			for _, c := range p.Status.ContainerStatuses {
				if c.Ready {
					ready++
				}
			}
			return fmt.Sprintf("%d/%d", ready, len(p.Spec.Containers))
		}),
		col("Status", "string", 0, func(p *corev1.Pod) any { return podStatusText(p) }),
		col("Restarts", "string", 0, func(p *corev1.Pod) any {
			n := int32(0)
			for _, c := range p.Status.ContainerStatuses {
				n += c.RestartCount
			}
			return fmt.Sprint(n)
		}),
		AgeColumn,
		col("IP", "string", 1, func(p *corev1.Pod) any { return or(p.Status.PodIP, "<none>") }),
		col("Node", "string", 1, func(p *corev1.Pod) any { return or(p.Spec.NodeName, "<none>") }),
		col("Nominated Node", "string", 1, func(p *corev1.Pod) any { return or(p.Status.NominatedNodeName, "<none>") }),
		col("Readiness Gates", "string", 1, func(*corev1.Pod) any { return "<none>" }),
	}
}

// podStatusText is the word kubectl shows for a pod.
func podStatusText(p *corev1.Pod) string {
	text := or(p.Status.Reason, string(p.Status.Phase))
	for _, c := range p.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			text = c.State.Waiting.Reason
		case c.State.Terminated != nil && c.State.Terminated.Reason != "":
			text = c.State.Terminated.Reason
		}
	}
	if p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return "Terminating"
	}
	return text
}

func nodeColumns() []Column {
	return []Column{
		NameColumn,
		col("Status", "string", 0, func(n *corev1.Node) any {
			text := "Unknown"
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady {
					text = map[corev1.ConditionStatus]string{corev1.ConditionTrue: "Ready", corev1.ConditionFalse: "NotReady"}[c.Status]
					text = or(text, "NotReady")
				}
			}
			if n.Spec.Unschedulable {
				text += ",SchedulingDisabled"
			}
			return text
		}),
		col("Roles", "string", 0, func(n *corev1.Node) any {
			var roles []string
			for k := range n.Labels {
				if role, ok := strings.CutPrefix(k, "node-role.kubernetes.io/"); ok {
					roles = append(roles, role)
				}
			}
			return or(strings.Join(roles, ","), "<none>")
		}),
		AgeColumn,
		col("Version", "string", 0, func(n *corev1.Node) any { return n.Status.NodeInfo.KubeletVersion }),
		col("Internal-IP", "string", 1, func(n *corev1.Node) any {
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					return a.Address
				}
			}
			return "<none>"
		}),
	}
}

func namespaceColumns() []Column {
	return []Column{NameColumn, col("Status", "string", 0, func(n *corev1.Namespace) any { return string(n.Status.Phase) }), AgeColumn}
}

func eventColumns() []Column {
	return []Column{
		col("Last Seen", "string", 0, func(e *corev1.Event) any {
			switch {
			case e.Series != nil:
				return age(metav1.NewTime(e.Series.LastObservedTime.Time))
			case !e.LastTimestamp.IsZero():
				return age(e.LastTimestamp)
			case !e.EventTime.IsZero():
				return age(metav1.NewTime(e.EventTime.Time))
			}
			return age(e.CreationTimestamp)
		}),
		col("Type", "string", 0, func(e *corev1.Event) any { return e.Type }),
		col("Reason", "string", 0, func(e *corev1.Event) any { return e.Reason }),
		col("Object", "string", 0, func(e *corev1.Event) any {
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		}),
		col("Message", "string", 0, func(e *corev1.Event) any { return strings.TrimSpace(e.Message) }),
		col("Source", "string", 1, func(e *corev1.Event) any { return or(e.Source.Component, e.ReportingController) }),
		col("Count", "string", 1, func(e *corev1.Event) any { return max(e.Count, 1) }),
		{TableColumnDefinition: metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Priority: 1}, Value: NameColumn.Value},
	}
}

func jobColumns() []Column {
	return []Column{
		NameColumn,
		col("Status", "string", 0, func(j *batchv1.Job) any { return jobStatusText(j) }),
		col("Completions", "string", 0, func(j *batchv1.Job) any {
			switch {
			case j.Spec.Completions != nil:
				return fmt.Sprintf("%d/%d", j.Status.Succeeded, *j.Spec.Completions)
			case j.Spec.Parallelism != nil && *j.Spec.Parallelism > 1:
				return fmt.Sprintf("%d/1 of %d", j.Status.Succeeded, *j.Spec.Parallelism)
			}
			return fmt.Sprintf("%d/1", j.Status.Succeeded)
		}),
		col("Duration", "string", 0, func(j *batchv1.Job) any {
			switch {
			case j.Status.StartTime == nil:
				return ""
			case j.Status.CompletionTime == nil:
				return age(*j.Status.StartTime)
			}
			return duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
		}),
		AgeColumn,
		col("Containers", "string", 1, func(j *batchv1.Job) any {
			var names []string
			for _, c := range j.Spec.Template.Spec.Containers {
				names = append(names, c.Name)
			}
			return strings.Join(names, ",")
		}),
	}
}

func jobStatusText(j *batchv1.Job) string {
	is := func(want batchv1.JobConditionType) bool { return jobCondition(j, want) }
	switch {
	case is(batchv1.JobComplete):
		return "Complete"
	case is(batchv1.JobFailed):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case is(batchv1.JobSuspended):
		return "Suspended"
	case is(batchv1.JobFailureTarget):
		return "FailureTarget"
	case is(batchv1.JobSuccessCriteriaMet):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func leaseColumns() []Column {
	return []Column{
		NameColumn,
		col("Holder", "string", 0, func(l *coordinationv1.Lease) any {
			if l.Spec.HolderIdentity == nil {
				return ""
			}
			return *l.Spec.HolderIdentity
		}),
		AgeColumn,
	}
}

func serviceColumns() []Column {
	return []Column{
		NameColumn,
		col("Type", "string", 0, func(s *corev1.Service) any { return string(s.Spec.Type) }),
		col("Cluster-IP", "string", 0, func(s *corev1.Service) any { return or(s.Spec.ClusterIP, "<none>") }),
		col("External-IP", "string", 0, func(*corev1.Service) any { return "<none>" }),
		col("Port(s)", "string", 0, func(s *corev1.Service) any {
			var ports []string
			for _, p := range s.Spec.Ports {
				ports = append(ports, fmt.Sprintf("%d/%s", p.Port, p.Protocol))
			}
			return or(strings.Join(ports, ","), "<none>")
		}),
		AgeColumn,
	}
}
