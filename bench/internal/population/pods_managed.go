package population

import (
	"bufio"
	"encoding/json"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Managers adds to pods the managed fields that a real API server sends with
// them: an entry of the controller that created the pod, and the kubelet's. The
// fields depend on the template, but for the pod's address.
type Managers struct{ known map[int][2]string }

// addressMark stands for the pod's address in the fields of a template.
const addressMark = "0.0.0.0"

// Manage returns a copy of a pod with managed fields.
func (m *Managers) Manage(template int, p *corev1.Pod) (*corev1.Pod, error) {
	fields, ok := m.known[template]
	if !ok {
		var err error
		if fields, err = fieldsOf(p); err != nil {
			return nil, err
		}
		if m.known == nil {
			m.known = map[int][2]string{}
		}
		m.known[template] = fields
	}
	full := *p
	kubelet := strings.Replace(fields[1], addressMark, p.Status.PodIP, 1)
	full.ManagedFields = []metav1.ManagedFieldsEntry{
		{
			Manager: "kube-controller-manager", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &p.CreationTimestamp,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields[0]),
		},
		{
			Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &p.Status.Conditions[2].LastTransitionTime,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(kubelet), Subresource: "status",
		},
	}
	return &full, nil
}

// fieldsOf are the fields that the controller and the kubelet set. The volume
// of the token is set by admission, which is nobody's field.
func fieldsOf(p *corev1.Pod) ([2]string, error) {
	bare := *p
	bare.Spec.Volumes = p.Spec.Volumes[1:]
	bare.Spec.Containers = slices.Clone(p.Spec.Containers)
	for i := range bare.Spec.Containers {
		bare.Spec.Containers[i].VolumeMounts = bare.Spec.Containers[i].VolumeMounts[:1]
	}
	bare.Spec.NodeName, bare.Spec.Tolerations, bare.Spec.Priority, bare.Spec.PreemptionPolicy = "", nil, nil, nil
	bare.Status.PodIP, bare.Status.PodIPs = addressMark, []corev1.PodIP{{IP: addressMark}}
	bare.Status.Conditions = bare.Status.Conditions[:4] // the last is the scheduler's
	var all struct {
		Metadata map[string]any `json:"metadata"`
		Spec     map[string]any `json:"spec"`
		Status   map[string]any `json:"status"`
	}
	if err := json.Unmarshal(Payload(&bare), &all); err != nil {
		return [2]string{}, err
	}
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion", "creationTimestamp"} {
		delete(all.Metadata, name)
	}
	delete(all.Status, "phase")
	delete(all.Status, "qosClass")
	for _, atomic := range []string{"containerStatuses", "hostIPs"} {
		all.Status[atomic] = true
	}
	var out [2]string
	for i, owned := range []map[string]any{{"metadata": all.Metadata, "spec": all.Spec}, {"status": all.Status}} {
		text, err := json.Marshal(fieldSet(owned, true))
		if err != nil {
			return out, err
		}
		out[i] = string(text)
	}
	return out, nil
}

// listKeys are the fields that tell the members of a list apart, in the order in
// which they are tried; a list without them is one value.
var listKeys = [][]string{{"containerPort", "protocol"}, {"mountPath"}, {"type"}, {"uid"}, {"name"}, {"ip"}}

// fieldSet writes a value in the form of FieldsV1.
func fieldSet(value any, root bool) map[string]any {
	set := map[string]any{}
	switch v := value.(type) {
	case map[string]any:
		if !root {
			set["."] = map[string]any{}
		}
		for name, field := range v {
			set["f:"+name] = fieldSet(field, root)
		}
	case []any:
		for _, member := range v {
			key := memberKey(member)
			if key == "" {
				return map[string]any{}
			}
			set["."], set["k:"+key] = map[string]any{}, fieldSet(member, false)
		}
	}
	return set
}

func memberKey(member any) string {
	object, ok := member.(map[string]any)
	if !ok {
		return ""
	}
	for _, names := range listKeys {
		key := map[string]any{}
		for _, name := range names {
			if v, ok := object[name]; ok {
				key[name] = v
			}
		}
		if len(key) == len(names) {
			text, err := json.Marshal(key)
			if err != nil {
				return ""
			}
			return string(text)
		}
	}
	return ""
}

// WriteManaged writes a population with managed fields as test/kube takes it:
// one object a line, owners first, without resource versions. It returns the
// bytes of the pods.
func WriteManaged(w io.Writer, seed uint64, pods int) (size int, err error) {
	out := bufio.NewWriterSize(w, 1<<20)
	line := func(object any) error {
		text, err := json.Marshal(object)
		if err != nil {
			return err
		}
		size += len(text)
		_, err = out.Write(append(text, '\n'))
		return err
	}
	g := NewGenerator(seed, 600)
	for _, o := range g.owners {
		if err := line(o); err != nil {
			return 0, err
		}
	}
	size = 0
	var m Managers
	for template, p := range g.Each(pods) {
		full, err := m.Manage(template, p)
		if err != nil {
			return 0, err
		}
		full.ResourceVersion = ""
		if err := line(full); err != nil {
			return 0, err
		}
	}
	return size, out.Flush()
}
