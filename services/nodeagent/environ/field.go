package environ

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field is the value of a field of the pod as a fieldRef names it: metadata.name,
// .namespace, .uid, .labels, .annotations, one of either by ['key'], spec.nodeName,
// spec.serviceAccountName, status.hostIP(s), status.podIP(s). A label that is not there is
// empty. Errors name the path.
func Field(pod *corev1.Pod, ref *corev1.ObjectFieldSelector, facts Facts) (string, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return "", fmt.Errorf("fieldRef.apiVersion: %q is not v1", ref.APIVersion)
	}
	if path, key, ok := subscript(ref.FieldPath); ok {
		switch path {
		case "metadata.annotations":
			return pod.Annotations[key], nil
		case "metadata.labels":
			return pod.Labels[key], nil
		}
		return "", fmt.Errorf("fieldRef.fieldPath: %q takes no subscript", path)
	}
	switch ref.FieldPath {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return formatMap(pod.Labels), nil
	case "metadata.annotations":
		return formatMap(pod.Annotations), nil
	case "spec.nodeName", "spec.host":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP":
		return first(facts.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(facts.HostIPs, ","), nil
	case "status.podIP":
		return first(facts.PodIPs), nil
	case "status.podIPs":
		return strings.Join(facts.PodIPs, ","), nil
	}
	return "", fmt.Errorf("fieldRef.fieldPath: %q is not supported", ref.FieldPath)
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

// subscript splits path['key'].
func subscript(s string) (path, key string, ok bool) {
	s, ok = strings.CutSuffix(s, "']")
	if !ok {
		return "", "", false
	}
	path, key, ok = strings.Cut(s, "['")
	return path, key, ok && path != ""
}

// formatMap writes labels and annotations as downward API volumes show them: one
// key="value" a line, sorted, with no line end at the last.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, k+"="+strconv.Quote(m[k]))
	}
	return strings.Join(lines, "\n")
}

// Resource is a request or limit of a container, in units of the divisor and rounded
// up. The container is the one named by ref, else c. A limit the container does not have is
// what the node can give. Errors name the resource or the container.
func Resource(pod *corev1.Pod, c *corev1.Container, ref *corev1.ResourceFieldSelector, allocatable corev1.ResourceList) (string, error) {
	if ref.ContainerName != "" {
		if c = find(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("resourceFieldRef.containerName: the pod has no container %q", ref.ContainerName)
		}
	}
	if c == nil {
		return "", fmt.Errorf("resourceFieldRef.containerName: is needed for %q", ref.Resource)
	}
	kind, name, ok := strings.Cut(ref.Resource, ".")
	list := c.Resources.Requests
	switch {
	case !ok || !known(name) || kind != "limits" && kind != "requests":
		return "", fmt.Errorf("resourceFieldRef.resource: %q is not supported", ref.Resource)
	case kind == "limits":
		list = c.Resources.Limits
	}
	q, set := list[corev1.ResourceName(name)]
	if kind == "limits" && (!set || q.IsZero()) {
		q = allocatable[corev1.ResourceName(name)]
	}
	return divide(q, ref.Divisor, name == "cpu")
}

func known(name string) bool {
	return name == "cpu" || name == "memory" || name == "ephemeral-storage" || strings.HasPrefix(name, "hugepages-")
}

func divide(q, by resource.Quantity, milli bool) (string, error) {
	if by.Sign() < 0 {
		return "", fmt.Errorf("resourceFieldRef.divisor: %s is negative", by.String())
	}
	if by.IsZero() {
		by = resource.MustParse("1")
	}
	n, d := q.Value(), by.Value()
	if milli {
		n, d = q.MilliValue(), by.MilliValue()
	}
	if n < 0 || d <= 0 { // the quantity's own arithmetic went round
		return "", fmt.Errorf("resourceFieldRef.divisor: %s by %s is too large to count with", q.String(), by.String())
	}
	out := n / d
	if n%d > 0 {
		out++
	}
	return strconv.FormatInt(out, 10), nil
}

func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
