package podspec_test

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/deltaplane/deltaplane/services/nodeagent/podspec"
)

func podWith(src corev1.VolumeSource) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "first"}, {Name: "v", VolumeSource: src}}}}
}

// Every kind of volume that the API has is either made or refused by its name.
func TestEveryKindOfVolumeIsKnownOrRefusedByItsName(t *testing.T) {
	t.Parallel()
	made := map[string]bool{"hostPath": true, "emptyDir": true, "secret": true, "downwardAPI": true, "configMap": true, "projected": true}
	kinds := reflect.TypeFor[corev1.VolumeSource]()
	for i := range kinds.NumField() {
		f := kinds.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		var src corev1.VolumeSource
		reflect.ValueOf(&src).Elem().Field(i).Set(reflect.New(f.Type.Elem()))
		if src.HostPath != nil {
			src.HostPath.Path = "/var"
		}
		faults := podspec.Unsupported(podWith(src))
		switch {
		case made[name] && len(faults) > 0:
			t.Errorf("%s is refused: %v", name, faults)
		case !made[name] && (len(faults) != 1 || !strings.HasPrefix(faults[0].Error(), "spec.volumes[1]."+name+":")):
			t.Errorf("%s: %v, want one error that begins with its path", name, faults)
		}
	}
}

func TestUnsupportedNamesTheField(t *testing.T) {
	t.Parallel()
	pod := podWith(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{}}, {ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{}},
	}}})
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "pages", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"}}},
		corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "relative"}}},
		corev1.Volume{Name: "claim", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
	)
	pod.Spec.InitContainers = []corev1.Container{{Env: []corev1.EnvVar{{Name: "A"}, {Name: "B", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{}}}}}}
	want := []string{
		"spec.volumes[1].projected.sources[1].clusterTrustBundle", "spec.volumes[2].emptyDir.medium", "spec.volumes[3].hostPath.path",
		"spec.volumes[4].persistentVolumeClaim", "spec.initContainers[0].env[1].valueFrom.fileKeyRef",
	}
	got := podspec.Unsupported(pod)
	if len(got) != len(want) {
		t.Fatalf("Unsupported() = %v, want %d errors", got, len(want))
	}
	for i, err := range got {
		if !strings.HasPrefix(err.Error(), want[i]+":") {
			t.Errorf("error %d is %q, want it to begin with %s", i, err, want[i])
		}
	}
}

func TestVolumesOfOneNameAreRefused(t *testing.T) {
	t.Parallel()
	pod := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "v"})
	if got := podspec.Unsupported(pod); len(got) != 1 || !strings.HasPrefix(got[0].Error(), "spec.volumes[2].name: Duplicate") {
		t.Errorf("Unsupported() = %v, want the second volume's name", got)
	}
}

func TestIgnoredNamesTheField(t *testing.T) {
	t.Parallel()
	size := resource.MustParse("1Gi")
	pod := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}})
	pod.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, 1)
	got := podspec.Ignored(pod)
	if len(got) != 2 || !strings.HasPrefix(got[0], "spec.volumes[1].emptyDir.sizeLimit:") || !strings.HasPrefix(got[1], "spec.ephemeralContainers:") {
		t.Errorf("Ignored() = %q", got)
	}
	if faults := podspec.Unsupported(pod); len(faults) > 0 {
		t.Errorf("Unsupported() = %v of a pod that runs without what is ignored", faults)
	}
	pod = podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size, Medium: corev1.StorageMediumMemory}})
	if got := podspec.Ignored(pod); len(got) > 0 {
		t.Errorf("Ignored() = %q of a limit that holds", got)
	}
}

func TestShouldRestart(t *testing.T) {
	t.Parallel()
	always, never := corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyNever
	for _, tc := range []struct {
		pod  corev1.RestartPolicy
		own  *corev1.ContainerRestartPolicy
		code int32
		want bool
	}{
		{"", nil, 0, true},
		{corev1.RestartPolicyAlways, nil, 0, true},
		{corev1.RestartPolicyAlways, nil, 1, true},
		{corev1.RestartPolicyOnFailure, nil, 0, false},
		{corev1.RestartPolicyOnFailure, nil, 137, true},
		{corev1.RestartPolicyNever, nil, 1, false},
		{corev1.RestartPolicyNever, &always, 0, true},
		{corev1.RestartPolicyAlways, &never, 1, false},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: tc.pod}}
		if got := podspec.ShouldRestart(pod, &corev1.Container{RestartPolicy: tc.own}, tc.code); got != tc.want {
			t.Errorf("pod %q, container %v, code %d: %v, want %v", tc.pod, tc.own, tc.code, got, tc.want)
		}
	}
	if podspec.Sidecar(&corev1.Container{}) || !podspec.Sidecar(&corev1.Container{RestartPolicy: &always}) || podspec.Sidecar(&corev1.Container{RestartPolicy: &never}) {
		t.Error("a sidecar is what has the policy Always of its own")
	}
}
