package environ

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// Var is one variable.
type Var struct{ Name, Value string }

// Objects are the config maps and secrets of the API server. Their errors are those
// of [kube.Client.Get].
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error)
}

// Facts are what the node knows and the pod's spec does not say. PodIPs are the pod's
// addresses, the primary first; HostIPs the node's. Allocatable stands in for limits
// that a container does not have. Services are variables that every container gets
// unless its own have the same name, such as KUBERNETES_SERVICE_HOST.
type Facts struct {
	PodIPs, HostIPs []string
	Allocatable     corev1.ResourceList
	Services        map[string]string
}

// Result is a container's environment: each name once, in the order in which they
// were first given. Skipped names the variables that were left out because no process can
// have one of that name; one Warning Event should say so.
type Result struct {
	Vars    []Var
	Skipped []string
}

// Error says why a container has no environment: it waits as CreateContainerConfigError
// with the error's text as the message, until the object is there.
type Error struct {
	Container string
	// Var is the variable, or the field path of an envFrom entry.
	Var string
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("container %q: env %q: %v", e.Container, e.Var, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Make makes the environment of one container of pod. Errors are [*Error]; they name
// the config map or secret, and the key. Secrets' values are in no error.
func Make(ctx context.Context, pod *corev1.Pod, c *corev1.Container, facts Facts, objects Objects) (Result, error) {
	m := maker{pod: pod, c: c, facts: facts, objects: objects, at: map[string]int{}}
	for i := range c.EnvFrom {
		if err := m.from(ctx, &c.EnvFrom[i]); err != nil {
			return Result{}, &Error{Container: c.Name, Var: fmt.Sprintf("envFrom[%d]", i), Err: err}
		}
	}
	for i := range c.Env {
		v := &c.Env[i]
		value, ok, err := m.value(ctx, v)
		if err == nil && ok {
			err = m.set(v.Name, value)
		}
		if err != nil {
			return Result{}, &Error{Container: c.Name, Var: v.Name, Err: err}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(facts.Services)) {
		if _, own := m.at[name]; own {
			continue
		}
		if err := m.set(name, facts.Services[name]); err != nil {
			return Result{}, &Error{Container: c.Name, Var: name, Err: err}
		}
	}
	return m.out, nil
}

type maker struct {
	pod     *corev1.Pod
	c       *corev1.Container
	facts   Facts
	objects Objects
	out     Result
	at      map[string]int // index in out.Vars by name
}

func (m *maker) set(name, value string) error {
	if !validName(name) {
		m.out.Skipped = append(m.out.Skipped, name)
		return nil
	}
	if strings.IndexByte(value, 0) >= 0 {
		return fmt.Errorf("the value of %s holds a NUL byte, which no environment can", name)
	}
	if i, ok := m.at[name]; ok {
		m.out.Vars[i].Value = value
		return nil
	}
	m.at[name] = len(m.out.Vars)
	m.out.Vars = append(m.out.Vars, Var{name, value})
	return nil
}

// validName is Kubernetes' relaxed rule: printable ASCII without the equals sign.
func validName(name string) bool {
	for i := range len(name) {
		if b := name[i]; b < ' ' || b > '~' || b == '=' {
			return false
		}
	}
	return name != ""
}

func (m *maker) lookup(name string) (string, bool) {
	if i, ok := m.at[name]; ok {
		return m.out.Vars[i].Value, true
	}
	v, ok := m.facts.Services[name]
	return v, ok
}

func (m *maker) from(ctx context.Context, e *corev1.EnvFromSource) error {
	var data map[string]string
	switch {
	case e.ConfigMapRef != nil:
		o, err := m.objects.ConfigMap(ctx, m.pod.Namespace, e.ConfigMapRef.Name)
		if err != nil {
			return Missing(err, e.ConfigMapRef.Optional, "configmap", e.ConfigMapRef.Name)
		}
		data = o.Data
	case e.SecretRef != nil:
		o, err := m.objects.Secret(ctx, m.pod.Namespace, e.SecretRef.Name)
		if err != nil {
			return Missing(err, e.SecretRef.Optional, "secret", e.SecretRef.Name)
		}
		data = texts(o.Data)
	default:
		return errors.New("neither configMapRef nor secretRef is set")
	}
	for _, k := range slices.Sorted(maps.Keys(data)) {
		if err := m.set(e.Prefix+k, data[k]); err != nil {
			return err
		}
	}
	return nil
}

func texts(data map[string][]byte) map[string]string {
	out := make(map[string]string, len(data))
	for k, v := range data {
		out[k] = string(v)
	}
	return out
}

// Missing is the error for a config map or secret that could not be read, which names it; nil for
// one that is not there and need not be.
func Missing(err error, optional *bool, kind, name string) error {
	if !kube.IsNotFound(err) {
		return fmt.Errorf("%s %q: %w", kind, name, err)
	}
	if optional != nil && *optional {
		return nil
	}
	return fmt.Errorf("%s %q not found: %w", kind, name, err)
}

// value is one variable's; false when it is optional and not there.
func (m *maker) value(ctx context.Context, v *corev1.EnvVar) (string, bool, error) {
	from := v.ValueFrom
	switch {
	case v.Value != "" || from == nil:
		return Expand(v.Value, m.lookup), true, nil
	case from.FieldRef != nil:
		s, err := Field(m.pod, from.FieldRef, m.facts)
		return s, true, err
	case from.ResourceFieldRef != nil:
		s, err := Resource(m.pod, m.c, from.ResourceFieldRef, m.facts.Allocatable)
		return s, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		o, err := m.objects.ConfigMap(ctx, m.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, Missing(err, ref.Optional, "configmap", ref.Name)
		}
		s, ok := o.Data[ref.Key]
		return s, ok, noKey(ok, ref.Optional, "configmap", ref.Name, ref.Key)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		o, err := m.objects.Secret(ctx, m.pod.Namespace, ref.Name)
		if err != nil {
			return "", false, Missing(err, ref.Optional, "secret", ref.Name)
		}
		b, ok := o.Data[ref.Key]
		return string(b), ok, noKey(ok, ref.Optional, "secret", ref.Name, ref.Key)
	default:
		return "", false, errors.New("valueFrom names a source that is not supported")
	}
}

func noKey(found bool, optional *bool, kind, name, key string) error {
	if found || optional != nil && *optional {
		return nil
	}
	return fmt.Errorf("couldn't find key %q in %s %q", key, kind, name)
}
