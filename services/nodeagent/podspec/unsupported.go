package podspec

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Unsupported lists the volumes and the parts of environments that this agent cannot
// make, each error naming a field by its path: such a pod is not run, it fails with reason
// UnsupportedPodSpec. What the containers themselves ask for is the runtime manager's to judge.
func Unsupported(pod *corev1.Pod) []error {
	var out []error
	spec := field.NewPath("spec")
	taken := map[string]bool{}
	for i := range pod.Spec.Volumes {
		if name := pod.Spec.Volumes[i].Name; taken[name] {
			out = append(out, field.Duplicate(spec.Child("volumes").Index(i).Child("name"), name))
		} else {
			taken[name] = true
		}
		out = append(out, volume(&pod.Spec.Volumes[i], spec.Child("volumes").Index(i))...)
	}
	for name, list := range containers(pod) {
		for i := range list {
			path := spec.Child(name).Index(i)
			for j := range list[i].Env {
				from := list[i].Env[j].ValueFrom
				if from != nil && from.FileKeyRef != nil {
					out = append(out, field.Forbidden(path.Child("env").Index(j).Child("valueFrom", "fileKeyRef"), "files are not read for environments"))
				}
			}
		}
	}
	return out
}

// containers are the pod's lists by their field's name, in the order in which they run.
func containers(pod *corev1.Pod) func(yield func(string, []corev1.Container) bool) {
	return func(yield func(string, []corev1.Container) bool) {
		_ = yield("initContainers", pod.Spec.InitContainers) && yield("containers", pod.Spec.Containers)
	}
}

// volume judges one volume. Its kind is looked up by field, so that a kind that comes with
// a later version of the API is refused by its name as well.
func volume(v *corev1.Volume, path *field.Path) []error {
	s := &v.VolumeSource
	switch {
	case s.Projected != nil:
		var out []error
		for i, src := range s.Projected.Sources {
			at := path.Child("projected", "sources").Index(i)
			if src.ConfigMap == nil && src.Secret == nil && src.DownwardAPI == nil && src.ServiceAccountToken == nil {
				out = append(out, field.Forbidden(at.Child(kind(src)), "this kind of source is not supported on this node"))
			}
		}
		return out
	case s.EmptyDir != nil:
		if m := s.EmptyDir.Medium; m != corev1.StorageMediumDefault && m != corev1.StorageMediumMemory {
			return []error{field.NotSupported(path.Child("emptyDir", "medium"), m, []corev1.StorageMedium{corev1.StorageMediumDefault, corev1.StorageMediumMemory})}
		}
		return nil
	case s.HostPath != nil:
		if !filepath.IsAbs(s.HostPath.Path) {
			return []error{field.Invalid(path.Child("hostPath", "path"), s.HostPath.Path, "must be an absolute path")}
		}
		return nil
	case s.ConfigMap != nil, s.Secret != nil, s.DownwardAPI != nil, *s == corev1.VolumeSource{}:
		return nil
	}
	return []error{field.Forbidden(path.Child(kind(*s)), "this kind of volume is not supported on this node")}
}

// kind is the JSON name of the one field of a union that is set.
func kind(union any) string {
	v := reflect.ValueOf(union)
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Pointer && !f.IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return "?"
}

// Ignored lists the fields of a pod's volumes that it runs without, by path and with what
// that means: one Warning Event should say so.
func Ignored(pod *corev1.Pod) []string {
	var out []string
	for i, v := range pod.Spec.Volumes {
		if v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil && v.EmptyDir.Medium != corev1.StorageMediumMemory {
			out = append(out, fmt.Sprintf("spec.volumes[%d].emptyDir.sizeLimit: the volume's size is not watched", i))
		}
	}
	if len(pod.Spec.EphemeralContainers) > 0 {
		out = append(out, "spec.ephemeralContainers: ephemeral containers are not started")
	}
	return out
}
