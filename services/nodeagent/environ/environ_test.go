package environ_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/nodeagent/environ"
)

// objects are config maps and secrets by name.
type objects struct {
	maps    map[string]map[string]string
	secrets map[string]map[string]string
	err     error
}

func (o objects) fail(name string) error {
	if o.err != nil {
		return o.err
	}
	return &kube.StatusError{Code: http.StatusNotFound, Reason: "NotFound", Message: name + " not found"}
}

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	data, ok := o.maps[name]
	if !ok {
		return nil, o.fail(name)
	}
	return &corev1.ConfigMap{Data: data}, nil
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	data, ok := o.secrets[name]
	if !ok {
		return nil, o.fail(name)
	}
	out := &corev1.Secret{Data: map[string][]byte{}}
	for k, v := range data {
		out.Data[k] = []byte(v)
	}
	return out, nil
}

var stored = objects{
	maps:    map[string]map[string]string{"cm": {"user": "ann", "odd.key": "1", "ref": "$(user)"}, "nul": {"k": "a\x00b"}},
	secrets: map[string]map[string]string{"sec": {"pass": "s3cret"}},
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "ns", UID: "u1", Labels: map[string]string{"app": "web", "tier": `a"b`}, Annotations: map[string]string{"example.com/x": "y"},
		},
		Spec: corev1.PodSpec{
			NodeName: "node-1", ServiceAccountName: "robot",
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("100Mi")},
				Limits:   corev1.ResourceList{"cpu": resource.MustParse("1500m")},
			}}},
		},
	}
}

var facts = environ.Facts{
	PodIPs: []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.168.0.1", "fd01::1"},
	Allocatable: corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("16Gi"), "ephemeral-storage": resource.MustParse("1Gi")},
	Services:    map[string]string{"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"},
}

func field(path string) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
}

func res(name, divisor string) *corev1.EnvVarSource {
	ref := &corev1.ResourceFieldSelector{Resource: name}
	if divisor != "" {
		ref.Divisor = resource.MustParse(divisor)
	}
	return &corev1.EnvVarSource{ResourceFieldRef: ref}
}

func configMap(name, key string, optional bool) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
}

func secret(name, key string, optional bool) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: &optional}}
}

// from is an envFrom entry of "cm" or "sec", or an optional one that is missing.
func from(kind, name, prefix string, optional bool) corev1.EnvFromSource {
	ref := corev1.LocalObjectReference{Name: name}
	if kind == "cm" {
		return corev1.EnvFromSource{Prefix: prefix, ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref, Optional: &optional}}
	}
	return corev1.EnvFromSource{Prefix: prefix, SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref, Optional: &optional}}
}

const services = "KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_SERVICE_PORT=443"

func TestMakeEnvironmentVariables(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  []corev1.EnvVar
		from []corev1.EnvFromSource
		want string // without the services
	}{
		{"nothing", nil, nil, ""},
		{"literals in order, the last of a name wins in its first place", []corev1.EnvVar{{Name: "B", Value: "1"}, {Name: "A", Value: "2"}, {Name: "B", Value: "3"}}, nil, "B=3 A=2"},
		{"references to what was before, and to services", []corev1.EnvVar{{Name: "A", Value: "x"}, {Name: "B", Value: "$(A)-$(C)"}, {Name: "C", Value: "$(KUBERNETES_SERVICE_PORT)$$(A)"}}, nil, "A=x B=x-$(C) C=443$(A)"},
		{"downward api pod", []corev1.EnvVar{
			{Name: "NAME", ValueFrom: field("metadata.name")},
			{Name: "NS", ValueFrom: field("metadata.namespace")},
			{Name: "UID", ValueFrom: field("metadata.uid")},
			{Name: "NODE", ValueFrom: field("spec.nodeName")},
			{Name: "SA", ValueFrom: field("spec.serviceAccountName")},
			{Name: "IP", ValueFrom: field("status.podIP")},
			{Name: "IPS", ValueFrom: field("status.podIPs")},
			{Name: "HOST", ValueFrom: field("status.hostIP")},
			{Name: "HOSTS", ValueFrom: field("status.hostIPs")},
			{Name: "APP", ValueFrom: field("metadata.labels['app']")},
			{Name: "NONE", ValueFrom: field("metadata.labels['none']")},
			{Name: "X", ValueFrom: field("metadata.annotations['example.com/x']")},
		}, nil, "NAME=web NS=ns UID=u1 NODE=node-1 SA=robot IP=10.0.0.1 IPS=10.0.0.1,fd00::1 HOST=192.168.0.1 HOSTS=192.168.0.1,fd01::1 APP=web NONE= X=y"},
		{"resources, rounded up; missing limits are the node's", []corev1.EnvVar{
			{Name: "RC", ValueFrom: res("requests.cpu", "")},
			{Name: "RCM", ValueFrom: res("requests.cpu", "1m")},
			{Name: "LC", ValueFrom: res("limits.cpu", "1")},
			{Name: "RM", ValueFrom: res("requests.memory", "1Mi")},
			{Name: "LM", ValueFrom: res("limits.memory", "1Gi")},
			{Name: "LE", ValueFrom: res("limits.ephemeral-storage", "")},
			{Name: "RH", ValueFrom: res("requests.hugepages-2Mi", "")},
		}, nil, "RC=1 RCM=250 LC=2 RM=100 LM=16 LE=1073741824 RH=0"},
		{"configmapkeyref and secretkeyref", []corev1.EnvVar{{Name: "U", ValueFrom: configMap("cm", "user", false)}, {Name: "P", ValueFrom: secret("sec", "pass", false)}}, nil, "U=ann P=s3cret"},
		{"optional ones that are not there are left out", []corev1.EnvVar{
			{Name: "A", ValueFrom: configMap("none", "k", true)},
			{Name: "B", ValueFrom: configMap("cm", "none", true)},
			{Name: "C", ValueFrom: secret("none", "k", true)},
			{Name: "D", ValueFrom: secret("sec", "none", true)},
			{Name: "E", Value: "$(A)"},
		}, []corev1.EnvFromSource{from("cm", "none", "", true), from("sec", "none", "", true)}, "E=$(A)"},
		{"configmap and secret as a whole, with a prefix, overridden", []corev1.EnvVar{{Name: "p_user", Value: "bob"}, {Name: "Z", Value: "$(pass)"}}, []corev1.EnvFromSource{from("cm", "cm", "p_", false), from("sec", "sec", "", false)}, "p_odd.key=1 p_ref=$(user) p_user=bob pass=s3cret Z=s3cret"},
		{"a service is overridden", []corev1.EnvVar{{Name: "KUBERNETES_SERVICE_HOST", Value: "me"}}, nil, "KUBERNETES_SERVICE_HOST=me KUBERNETES_SERVICE_PORT=443"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := pod()
			c := &p.Spec.Containers[0]
			c.Env, c.EnvFrom = tc.env, tc.from
			got, err := environ.Make(t.Context(), p, c, facts, stored)
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			for _, v := range got.Vars {
				words = append(words, v.Name+"="+v.Value)
			}
			want := tc.want
			if !strings.Contains(want, "KUBERNETES_SERVICE_HOST") {
				want = strings.TrimSpace(want + " " + services)
			}
			if diff := cmp.Diff(want, strings.Join(words, " ")); diff != "" {
				t.Errorf("environment (-want +got):\n%s", diff)
			}
		})
	}
}

func TestErrorsNameContainerVariableAndKey(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		env  corev1.EnvVar
		from []corev1.EnvFromSource
		want []string
	}{
		{"configmap missing", corev1.EnvVar{Name: "A", ValueFrom: configMap("none", "k", false)}, nil, []string{`"main"`, `"A"`, `configmap "none" not found`}},
		{"key missing", corev1.EnvVar{Name: "A", ValueFrom: configMap("cm", "none", false)}, nil, []string{`couldn't find key "none" in configmap "cm"`}},
		{"secret missing", corev1.EnvVar{Name: "A", ValueFrom: secret("none", "k", false)}, nil, []string{`secret "none" not found`}},
		{"secret's key missing", corev1.EnvVar{Name: "A", ValueFrom: secret("sec", "none", false)}, nil, []string{`key "none" in secret "sec"`}},
		{"envFrom missing", corev1.EnvVar{}, []corev1.EnvFromSource{from("sec", "none", "", false)}, []string{"envFrom[0]", `secret "none"`}},
		{"envFrom of nothing", corev1.EnvVar{}, []corev1.EnvFromSource{{}}, []string{"envFrom[0]", "neither"}},
		{"a NUL byte", corev1.EnvVar{Name: "A", ValueFrom: configMap("nul", "k", false)}, nil, []string{"NUL"}},
		{"unknown field", corev1.EnvVar{Name: "A", ValueFrom: field("status.phase2")}, nil, []string{`"status.phase2" is not supported`}},
		{"subscript of no map", corev1.EnvVar{Name: "A", ValueFrom: field("metadata.name['x']")}, nil, []string{`"metadata.name" takes no subscript`}},
		{"unknown resource", corev1.EnvVar{Name: "A", ValueFrom: res("limits.gpu", "")}, nil, []string{`"limits.gpu" is not supported`}},
		{"no source", corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{}}, nil, []string{"not supported"}},
	} {
		p := pod()
		c := &p.Spec.Containers[0]
		c.EnvFrom = tc.from
		if tc.env.Name != "" {
			c.Env = []corev1.EnvVar{tc.env}
		}
		_, err := environ.Make(t.Context(), p, c, facts, stored)
		if _, ok := errors.AsType[*environ.Error](err); !ok {
			t.Errorf("%s: Make() = %v, want an *Error", tc.name, err)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %q does not hold %q", tc.name, err, want)
			}
		}
		if strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: error %q tells a secret", tc.name, err)
		}
	}
}

func TestAServerThatIsAwayIsNoMissingObject(t *testing.T) {
	t.Parallel()
	p := pod()
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: configMap("cm", "user", true)}}
	down := errors.New("connection refused")
	if _, err := environ.Make(t.Context(), p, &p.Spec.Containers[0], facts, objects{err: down}); !errors.Is(err, down) {
		t.Errorf("Make() = %v, want the server's error even for an optional key", err)
	}
}

func TestNamesThatNoProcessCanHaveAreSkipped(t *testing.T) {
	t.Parallel()
	p := pod()
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "a=b", Value: "1"}, {Name: "", Value: "2"}, {Name: "ok-1.x", Value: "3"}, {Name: "tab\t", Value: "4"}}
	got, err := environ.Make(t.Context(), p, &p.Spec.Containers[0], environ.Facts{}, stored)
	if err != nil {
		t.Fatal(err)
	}
	want := environ.Result{Vars: []environ.Var{{Name: "ok-1.x", Value: "3"}}, Skipped: []string{"a=b", "", "tab\t"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Make() (-want +got):\n%s", diff)
	}
}

func TestMapsAreFormattedAsFiles(t *testing.T) {
	t.Parallel()
	got, err := environ.Field(pod(), &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}, facts)
	if want := "app=\"web\"\ntier=\"a\\\"b\""; err != nil || got != want {
		t.Errorf("Field() = %q, %v; want %q", got, err, want)
	}
}

func TestResourceOfAnotherContainer(t *testing.T) {
	t.Parallel()
	p := pod()
	ref := &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "requests.cpu", Divisor: resource.MustParse("1m")}
	if got, err := environ.Resource(p, nil, ref, nil); got != "250" || err != nil {
		t.Errorf("Resource() = %q, %v; want 250", got, err)
	}
	ref.ContainerName = "none"
	if _, err := environ.Resource(p, nil, ref, nil); err == nil || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("Resource() = %v, want an error that names the container", err)
	}
	if _, err := environ.Resource(p, nil, &corev1.ResourceFieldSelector{Resource: "limits.cpu"}, nil); err == nil {
		t.Error("Resource() of no container is no error")
	}
	ref = &corev1.ResourceFieldSelector{ContainerName: "main", Resource: "requests.cpu", Divisor: resource.MustParse("9E")}
	if got, err := environ.Resource(p, nil, ref, nil); err == nil || !strings.Contains(err.Error(), "divisor") {
		t.Errorf("Resource() = %q, %v of a divisor that is too large to count with, want an error that names it", got, err)
	}
}

func TestCommandsAreExpanded(t *testing.T) {
	t.Parallel()
	got := environ.ExpandAll([]string{"run", "--user=$(A)", "$(B)"}, []environ.Var{{Name: "A", Value: "x"}})
	if diff := cmp.Diff([]string{"run", "--user=x", "$(B)"}, got); diff != "" {
		t.Error(diff)
	}
}

func FuzzField(f *testing.F) {
	for _, path := range []string{"metadata.name", "metadata.labels['app']", "metadata.labels['", "']", "['']", "metadata.annotations['a']['b']", "status.hostIPs"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		p := pod()
		p.Labels[path] = "path"
		if got, err := environ.Field(p, &corev1.ObjectFieldSelector{FieldPath: path}, environ.Facts{}); err != nil && (got != "" || !strings.Contains(err.Error(), "fieldPath")) {
			t.Errorf("Field(%q) = %q, %v; want an error that names the field", path, got, err)
		}
		if !strings.Contains(path, "['") {
			if got, err := environ.Field(p, &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + path + "']"}, environ.Facts{}); err != nil || got != "path" {
				t.Errorf("label %q is %q, %v", path, got, err)
			}
		}
	})
}

func FuzzResource(f *testing.F) {
	f.Add("limits.cpu", "1m")
	f.Add("requests.memory", "1Mi")
	f.Add("limits.", "-1")
	f.Add(".cpu", "0")
	f.Fuzz(func(t *testing.T, name, divisor string) {
		ref := &corev1.ResourceFieldSelector{Resource: name}
		if q, err := resource.ParseQuantity(divisor); err == nil {
			ref.Divisor = q
		}
		p := pod()
		got, err := environ.Resource(p, &p.Spec.Containers[0], ref, facts.Allocatable)
		if err == nil && (got == "" || strings.HasPrefix(got, "-")) {
			t.Errorf("Resource(%q, %q) = %q", name, divisor, got)
		}
	})
}
