package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func decodePods(raw [][]byte) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, 0, len(raw))
	for _, r := range raw {
		p, err := DecodePod(r)
		if err != nil {
			return nil, fmt.Errorf("job: decode pod: %w", err)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// DecodePod reads of a pod, or of its metadata alone, what the controller looks at: metadata but
// for managed fields, generation and generated name; phase; type, status and transition of
// conditions; name, restarts and end of containers; the node and the init containers. A Job's pods
// are all read in every sync. A member of another JSON type is an error that names it.
func DecodePod(raw []byte) (*corev1.Pod, error) {
	if !gjson.ValidBytes(raw) {
		return nil, errors.New("not JSON")
	}
	p, d := &corev1.Pod{}, &decoder{}
	d.members("", gjson.ParseBytes(raw), func(name string, v gjson.Result) {
		switch name {
		case "metadata":
			d.metadata(v, &p.ObjectMeta)
		case "status":
			d.status(v, &p.Status)
		case "spec":
			d.members(name, v, func(name string, v gjson.Result) {
				switch name {
				case "nodeName":
					p.Spec.NodeName = d.text(name, v)
				case "initContainers":
					d.note(name, json.Unmarshal([]byte(v.Raw), &p.Spec.InitContainers))
				}
			})
		}
	})
	return p, d.err
}

// decoder keeps the first fault of what it reads. Null is what is not there.
type decoder struct{ err error }

func (d *decoder) note(name string, err error) {
	if err != nil && d.err == nil {
		d.err = fmt.Errorf("%s: %w", name, err)
	}
}

func (d *decoder) is(name string, v gjson.Result, ok bool, want string) bool {
	if !ok && v.Type != gjson.Null {
		d.note(name, fmt.Errorf("%.20s is not %s", v.Raw, want))
	}
	return ok
}

func (d *decoder) members(name string, v gjson.Result, each func(name string, v gjson.Result)) {
	if d.is(name, v, v.IsObject(), "an object") {
		v.ForEach(func(key, value gjson.Result) bool { each(key.Str, value); return true })
	}
}

func (d *decoder) items(name string, v gjson.Result, each func(v gjson.Result)) {
	if d.is(name, v, v.IsArray(), "a list") {
		v.ForEach(func(_, value gjson.Result) bool { each(value); return true })
	}
}

func (d *decoder) text(name string, v gjson.Result) string {
	d.is(name, v, v.Type == gjson.String, "a string")
	return v.Str
}

func (d *decoder) flag(name string, v gjson.Result) *bool {
	if !d.is(name, v, v.IsBool(), "a boolean") {
		return nil
	}
	return new(v.Bool())
}

func (d *decoder) number(name string, v gjson.Result) int64 {
	d.is(name, v, v.Type == gjson.Number && v.Num == float64(int64(v.Num)), "a whole number")
	return v.Int()
}

func (d *decoder) moment(name string, v gjson.Result) (at metav1.Time) {
	if d.text(name, v) == "" {
		return at
	}
	t, err := time.Parse(time.RFC3339, v.Str)
	d.note(name, err)
	return metav1.NewTime(t.Local())
}

func (d *decoder) texts(name string, v gjson.Result) map[string]string {
	if v.Type == gjson.Null {
		return nil
	}
	m := map[string]string{}
	d.members(name, v, func(key string, v gjson.Result) { m[key] = d.text(key, v) })
	return m
}

func (d *decoder) metadata(v gjson.Result, m *metav1.ObjectMeta) {
	d.members("metadata", v, func(name string, v gjson.Result) {
		switch name {
		case "name":
			m.Name = d.text(name, v)
		case "namespace":
			m.Namespace = d.text(name, v)
		case "uid":
			m.UID = types.UID(d.text(name, v))
		case "resourceVersion":
			m.ResourceVersion = d.text(name, v)
		case "creationTimestamp":
			m.CreationTimestamp = d.moment(name, v)
		case "deletionTimestamp":
			if at := d.moment(name, v); !at.IsZero() {
				m.DeletionTimestamp = &at
			}
		case "deletionGracePeriodSeconds":
			if v.Type != gjson.Null {
				m.DeletionGracePeriodSeconds = new(d.number(name, v))
			}
		case "labels":
			m.Labels = d.texts(name, v)
		case "annotations":
			m.Annotations = d.texts(name, v)
		case "finalizers":
			d.items(name, v, func(v gjson.Result) { m.Finalizers = append(m.Finalizers, d.text(name, v)) })
		case "ownerReferences":
			d.items(name, v, func(v gjson.Result) { m.OwnerReferences = append(m.OwnerReferences, d.owner(v)) })
		}
	})
}

func (d *decoder) owner(v gjson.Result) (o metav1.OwnerReference) {
	d.members("ownerReferences", v, func(name string, v gjson.Result) {
		switch name {
		case "apiVersion":
			o.APIVersion = d.text(name, v)
		case "kind":
			o.Kind = d.text(name, v)
		case "name":
			o.Name = d.text(name, v)
		case "uid":
			o.UID = types.UID(d.text(name, v))
		case "controller":
			o.Controller = d.flag(name, v)
		case "blockOwnerDeletion":
			o.BlockOwnerDeletion = d.flag(name, v)
		}
	})
	return o
}

func (d *decoder) status(v gjson.Result, s *corev1.PodStatus) {
	d.members("status", v, func(name string, v gjson.Result) {
		switch name {
		case "phase":
			s.Phase = corev1.PodPhase(d.text(name, v))
		case "conditions":
			d.items(name, v, func(v gjson.Result) { s.Conditions = append(s.Conditions, d.condition(v)) })
		case "containerStatuses":
			d.items(name, v, func(v gjson.Result) { s.ContainerStatuses = append(s.ContainerStatuses, d.container(v)) })
		case "initContainerStatuses":
			d.items(name, v, func(v gjson.Result) { s.InitContainerStatuses = append(s.InitContainerStatuses, d.container(v)) })
		}
	})
}

func (d *decoder) condition(v gjson.Result) (c corev1.PodCondition) {
	d.members("conditions", v, func(name string, v gjson.Result) {
		switch name {
		case "type":
			c.Type = corev1.PodConditionType(d.text(name, v))
		case "status":
			c.Status = corev1.ConditionStatus(d.text(name, v))
		case "lastTransitionTime":
			c.LastTransitionTime = d.moment(name, v)
		}
	})
	return c
}

func (d *decoder) container(v gjson.Result) (s corev1.ContainerStatus) {
	d.members("containerStatuses", v, func(name string, v gjson.Result) {
		switch name {
		case "name":
			s.Name = d.text(name, v)
		case "restartCount":
			s.RestartCount = int32(d.number(name, v)) //nolint:gosec // the API server's own
		case "state":
			d.members(name, v, func(name string, v gjson.Result) {
				if name == "terminated" && v.Type != gjson.Null {
					s.State.Terminated = d.ended(v)
				}
			})
		}
	})
	return s
}

func (d *decoder) ended(v gjson.Result) *corev1.ContainerStateTerminated {
	t := &corev1.ContainerStateTerminated{}
	d.members("terminated", v, func(name string, v gjson.Result) {
		switch name {
		case "exitCode":
			t.ExitCode = int32(d.number(name, v)) //nolint:gosec // the API server's own
		case "finishedAt":
			t.FinishedAt = d.moment(name, v)
		}
	})
	return t
}
