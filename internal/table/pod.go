package table

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type pod struct {
	named
	Spec struct {
		NodeName       string
		InitContainers []struct {
			Name          string
			RestartPolicy string
		}
		Containers     []struct{}
		ReadinessGates []struct{ ConditionType string }
	}
	Status struct {
		Phase, Reason, NominatedNodeName string
		PodIPs                           []struct{ IP string }
		Conditions                       []condition
		InitContainerStatuses            []containerStatus
		ContainerStatuses                []containerStatus
	}
}

type condition struct{ Type, Status, Reason string }

type containerStatus struct {
	Name         string
	Ready        bool
	Started      *bool
	RestartCount int
	State        containerState
	LastState    containerState
}

type containerState struct {
	Waiting    *struct{ Reason string }
	Running    *struct{}
	Terminated *terminated
}

type terminated struct {
	ExitCode, Signal int
	Reason           string
	FinishedAt       metav1.Time
}

// why is the reason why a container ended.
func (t *terminated) why() string {
	switch {
	case t.Reason != "":
		return t.Reason
	case t.Signal != 0:
		return fmt.Sprintf("Signal:%d", t.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", t.ExitCode)
}

// restarts are those of some containers, and when the last of them was.
type restarts struct {
	count int
	last  time.Time
}

func (r *restarts) add(s *containerStatus) {
	r.count += s.RestartCount
	if t := s.LastState.Terminated; t != nil && r.last.Before(t.FinishedAt.Time) {
		r.last = t.FinishedAt.Time
	}
}

func (r *restarts) text(now time.Time) string {
	if r.count == 0 || r.last.IsZero() {
		return strconv.Itoa(r.count)
	}
	return fmt.Sprintf("%d (%s ago)", r.count, since(r.last, now))
}

func (p *pod) is(kind string) bool {
	i := slices.IndexFunc(p.Status.Conditions, func(c condition) bool { return c.Type == kind && c.Status == "True" })
	return i >= 0
}

// sidecar reports whether an init container goes on beside the others.
func (p *pod) sidecar(name string) bool {
	for _, c := range p.Spec.InitContainers {
		if c.Name == name {
			return c.RestartPolicy == "Always"
		}
	}
	return false
}

// initial is how far the init containers are: the status while they hold up the others, and else
// nothing; how many sidecars are ready; and the restarts of all and of sidecars.
func (p *pod) initial() (status string, ready int, all, sidecars restarts) {
	for i := range p.Status.InitContainerStatuses {
		s := &p.Status.InitContainerStatuses[i]
		sidecar := p.sidecar(s.Name)
		all.add(s)
		if sidecar {
			sidecars.add(s)
		}
		switch ended := s.State.Terminated; {
		case ended != nil && ended.ExitCode == 0:
			continue
		case sidecar && deref(s.Started, false):
			if s.Ready {
				ready++
			}
			continue
		case ended != nil:
			return "Init:" + ended.why(), ready, all, sidecars
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "PodInitializing":
			return "Init:" + s.State.Waiting.Reason, ready, all, sidecars
		}
		return fmt.Sprintf("Init:%d/%d", i, len(p.Spec.InitContainers)), ready, all, sidecars
	}
	return "", ready, all, sidecars
}

// running looks at the containers: the status by them, and how many are ready.
func (p *pod) running(status string, count *restarts) (string, int) {
	ready, runs, failure := 0, false, ""
	for i := range slices.Backward(p.Status.ContainerStatuses) {
		s := &p.Status.ContainerStatuses[i]
		count.add(s)
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "":
			status = s.State.Waiting.Reason
		case s.State.Terminated != nil:
			if status = s.State.Terminated.why(); s.State.Terminated.ExitCode != 0 {
				failure = status
			}
		case s.Ready && s.State.Running != nil:
			runs = true
			ready++
		}
	}
	switch {
	case status != "Completed":
	case runs && p.is("Ready"):
		status = "Running"
	case failure != "":
		status = failure
	case runs:
		status = "NotReady"
	}
	return status, ready
}

// gates is how many of the readiness gates are open.
func (p *pod) gates() string {
	if len(p.Spec.ReadinessGates) == 0 {
		return none
	}
	open := 0
	for _, g := range p.Spec.ReadinessGates {
		i := slices.IndexFunc(p.Status.Conditions, func(c condition) bool { return c.Type == g.ConditionType })
		if i >= 0 && p.Status.Conditions[i].Status == "True" {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(p.Spec.ReadinessGates))
}

func podRow(object []byte, now time.Time) ([]any, []metav1.TableRowCondition, error) {
	var p pod
	if err := json.Unmarshal(object, &p); err != nil {
		return nil, nil, err
	}
	status := cmp.Or(p.Status.Reason, p.Status.Phase)
	if slices.ContainsFunc(p.Status.Conditions, func(c condition) bool { return c.Type == "PodScheduled" && c.Reason == "SchedulingGated" }) {
		status = "SchedulingGated"
	}
	total := len(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy == "Always" {
			total++
		}
	}
	initial, ready, count, sidecars := p.initial()
	status = cmp.Or(initial, status)
	if initial == "" || p.is("Initialized") {
		var more int
		count = sidecars
		status, more = p.running(status, &count)
		ready += more
	}
	if p.Metadata.DeletionTimestamp != nil {
		switch {
		case p.Status.Reason == "NodeLost":
			status = "Unknown"
		case p.Status.Phase != "Succeeded" && p.Status.Phase != "Failed":
			status = "Terminating"
		}
	}
	ip := ""
	if len(p.Status.PodIPs) > 0 {
		ip = p.Status.PodIPs[0].IP
	}
	cells := []any{
		p.Metadata.Name, fmt.Sprintf("%d/%d", ready, total), status, count.text(now), p.age(now),
		cmp.Or(ip, none), cmp.Or(p.Spec.NodeName, none), cmp.Or(p.Status.NominatedNodeName, none), p.gates(),
	}
	return cells, completed(p.Status.Phase), nil
}

// completed is what is said of pods that are over.
func completed(phase string) []metav1.TableRowCondition {
	text := ""
	switch phase {
	case "Succeeded":
		text = "The pod has completed successfully."
	case "Failed":
		text = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: phase, Message: text}}
}
