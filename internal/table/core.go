package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

type node struct {
	named
	Spec   struct{ Unschedulable bool }
	Status struct {
		Conditions []condition
		Addresses  []struct{ Type, Address string }
		NodeInfo   struct{ KubeletVersion, OSImage, KernelVersion, ContainerRuntimeVersion, Architecture string }
	}
}

func (n *node) status() string {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			status = "NotReady"
			if c.Status == "True" {
				status = "Ready"
			}
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	return status
}

func (n *node) roles() string {
	all := map[string]bool{}
	for key, value := range n.Metadata.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			all[role] = true
		} else if key == "kubernetes.io/role" && value != "" {
			all[value] = true
		}
	}
	return cmp.Or(strings.Join(slices.Sorted(maps.Keys(all)), ","), none)
}

func (n *node) address(kind string) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return none
}

func nodeCells(n *node, now time.Time) []any {
	const unknown = "<unknown>"
	info := &n.Status.NodeInfo
	kernel := cmp.Or(info.KernelVersion, unknown)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Metadata.Name, n.status(), n.roles(), n.age(now), info.KubeletVersion, n.address("InternalIP"), n.address("ExternalIP"),
		cmp.Or(info.OSImage, unknown), kernel, cmp.Or(info.ContainerRuntimeVersion, unknown),
	}
}

type service struct {
	named
	Spec struct {
		Type                    string
		ClusterIPs, ExternalIPs []string
		ExternalName            string
		Ports                   []struct {
			Port, NodePort int
			Protocol       string
		}
		Selector map[string]string
	}
	Status struct{ LoadBalancer loadBalancer }
}

type loadBalancer struct {
	Ingress []struct{ IP, Hostname string }
}

// addresses are those of a load balancer, sorted.
func (l *loadBalancer) addresses() []string {
	var all []string
	for _, at := range l.Ingress {
		if a := cmp.Or(at.IP, at.Hostname); a != "" {
			all = append(all, a)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (s *service) external() string {
	switch s.Spec.Type {
	case "ClusterIP", "NodePort":
		return cmp.Or(strings.Join(s.Spec.ExternalIPs, ","), none)
	case "LoadBalancer":
		return cmp.Or(strings.Join(append(s.Status.LoadBalancer.addresses(), s.Spec.ExternalIPs...), ","), "<pending>")
	case "ExternalName":
		return s.Spec.ExternalName
	}
	return "<unknown>"
}

func serviceCells(s *service, now time.Time) []any {
	ip := none
	if len(s.Spec.ClusterIPs) > 0 {
		ip = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			ports[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return []any{
		s.Metadata.Name, s.Spec.Type, ip, s.external(), cmp.Or(strings.Join(ports, ","), none), s.age(now), labels.FormatLabels(s.Spec.Selector),
	}
}

type namespace struct {
	named
	Status struct{ Phase string }
}

func namespaceCells(n *namespace, now time.Time) []any {
	return []any{n.Metadata.Name, n.Status.Phase, n.age(now)}
}

// filled is an object with data: of a config map or a secret.
type filled struct {
	named
	Type             string
	Data, BinaryData map[string]string
}

func configMapCells(f *filled, now time.Time) []any {
	return []any{f.Metadata.Name, len(f.Data) + len(f.BinaryData), f.age(now)}
}

func secretCells(f *filled, now time.Time) []any {
	return []any{f.Metadata.Name, f.Type, len(f.Data), f.age(now)}
}

type event struct {
	named
	Type, Reason, Message                 string
	FirstTimestamp, LastTimestamp         metav1.Time
	EventTime                             metav1.MicroTime
	Count                                 int64
	Series                                *series
	InvolvedObject                        struct{ Kind, Name, FieldPath string }
	Source                                struct{ Component, Host string }
	ReportingComponent, ReportingInstance string
}

type series struct {
	Count            int64
	LastObservedTime metav1.MicroTime
}

func eventCells(e *event, now time.Time) []any {
	first := since(e.FirstTimestamp.Time, now)
	if e.FirstTimestamp.IsZero() {
		first = since(e.EventTime.Time, now)
	}
	last, count := first, e.Count
	if !e.LastTimestamp.IsZero() {
		last = since(e.LastTimestamp.Time, now)
	}
	switch {
	case e.Series != nil:
		last, count = since(e.Series.LastObservedTime.Time, now), e.Series.Count
	case count == 0:
		count = 1 // one of the newer interface has none
	}
	about := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		about += "/" + e.InvolvedObject.Name
	}
	source := cmp.Or(e.Source.Component, e.ReportingComponent)
	if host := cmp.Or(e.Source.Host, e.ReportingInstance); host != "" {
		source += ", " + host
	}
	return []any{last, e.Type, e.Reason, about, e.InvolvedObject.FieldPath, source, strings.TrimSpace(e.Message), first, count, e.Metadata.Name}
}

type binding struct {
	named
	RoleRef  struct{ Kind, Name string }
	Subjects []struct{ Kind, Namespace, Name string }
}

func bindingCells(b *binding, now time.Time) []any {
	of := map[string][]string{}
	for _, s := range b.Subjects {
		name := s.Name
		if s.Kind == "ServiceAccount" {
			name = s.Namespace + "/" + s.Name
		}
		of[s.Kind] = append(of[s.Kind], name)
	}
	list := func(kind string) string { return strings.Join(of[kind], ", ") }
	return []any{b.Metadata.Name, b.RoleRef.Kind + "/" + b.RoleRef.Name, b.age(now), list("User"), list("Group"), list("ServiceAccount")}
}

type ingress struct {
	named
	Spec struct {
		IngressClassName *string
		Rules            []struct{ Host string }
		TLS              []struct{}
	}
	Status struct{ LoadBalancer loadBalancer }
}

// hosts are the first three.
func (i *ingress) hosts() string {
	const most = 3
	var list []string
	more := false
	for _, rule := range i.Spec.Rules {
		more = more || len(list) == most
		if !more && rule.Host != "" {
			list = append(list, rule.Host)
		}
	}
	switch {
	case len(list) == 0:
		return "*"
	case more:
		return fmt.Sprintf("%s + %d more...", strings.Join(list, ","), len(i.Spec.Rules)-most)
	}
	return strings.Join(list, ",")
}

func ingressCells(i *ingress, now time.Time) []any {
	ports := "80"
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	return []any{i.Metadata.Name, deref(i.Spec.IngressClassName, none), i.hosts(), strings.Join(i.Status.LoadBalancer.addresses(), ","), ports, i.age(now)}
}

type lease struct {
	named
	Spec struct{ HolderIdentity string }
}

func leaseCells(l *lease, now time.Time) []any {
	return []any{l.Metadata.Name, l.Spec.HolderIdentity, l.age(now)}
}
