package job_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// wholePod has every member that the controller looks at, and members beside each of them.
const wholePod = `{"kind":"Pod","apiVersion":"v1","metadata":{
	"name":"work-0-\u00e4bc","generateName":"work-","namespace":"default","uid":"u-1","resourceVersion":"4711","generation":2,
	"creationTimestamp":"2026-11-28T09:00:00Z","deletionTimestamp":"2026-11-28T09:10:00+02:00","deletionGracePeriodSeconds":30,
	"labels":{"job-name":"work","a.b/c":"","controller-uid":"j-1"},"annotations":{"deltaplane.io/token":"7","quoted":"\"x\"\n"},
	"finalizers":["batch.kubernetes.io/job-tracking","other"],
	"ownerReferences":[{"apiVersion":"batch/v1","kind":"Job","name":"work","uid":"j-1","controller":true,"blockOwnerDeletion":false},{"apiVersion":"v1","kind":"Node","name":"n","uid":"n-1"}],
	"managedFields":[{"manager":"m","operation":"Update","fieldsV1":{"f:status":{}}}]},
	"spec":{"nodeName":"node-3","hostname":"h","initContainers":[{"name":"side","image":"i","restartPolicy":"Always"},{"name":"init"}],"containers":[{"name":"c","image":"i"}]},
	"status":{"phase":"Failed","podIP":"10.0.0.1","conditions":[
		{"type":"Ready","status":"False","lastProbeTime":null,"lastTransitionTime":"2026-11-28T09:05:00Z","reason":"PodFailed"},
		{"type":"DisruptionTarget","status":"True","lastTransitionTime":null}],
	"containerStatuses":[{"name":"c","ready":false,"restartCount":3,"image":"i","imageID":"x","state":{"terminated":{"exitCode":-9,"reason":"Error","startedAt":"2026-11-28T09:00:01Z","finishedAt":"2026-11-28T09:04:59Z"}},"lastState":{"terminated":{"exitCode":1}}},
		{"name":"d","restartCount":0,"state":{"running":{"startedAt":"2026-11-28T09:00:01Z"}}}],
	"initContainerStatuses":[{"name":"side","restartCount":1,"state":{"waiting":{"reason":"Error"},"terminated":null}}]}}`

// looked leaves of a pod what the controller looks at.
func looked(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: p.ObjectMeta}
	out.ManagedFields, out.GenerateName, out.Generation = nil, "", 0
	out.Spec.NodeName, out.Spec.InitContainers = p.Spec.NodeName, p.Spec.InitContainers
	out.Status.Phase = p.Status.Phase
	for _, c := range p.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, corev1.PodCondition{Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime})
	}
	states := func(in []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
		for _, s := range in {
			short := corev1.ContainerStatus{Name: s.Name, RestartCount: s.RestartCount}
			if t := s.State.Terminated; t != nil {
				short.State.Terminated = &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, FinishedAt: t.FinishedAt}
			}
			out = append(out, short)
		}
		return out
	}
	out.Status.ContainerStatuses, out.Status.InitContainerStatuses = states(p.Status.ContainerStatuses), states(p.Status.InitContainerStatuses)
	return out
}

func TestWhatIsReadOfAPodIsWhatADecoderOfTheWholeReads(t *testing.T) {
	t.Parallel()
	for name, raw := range map[string]string{
		"whole":            wholePod,
		"metadata alone":   `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"p","uid":"u","resourceVersion":"1","annotations":{"a":"b"},"labels":{}}}`,
		"nulls":            `{"metadata":{"name":"p","labels":null,"ownerReferences":null,"creationTimestamp":null,"deletionTimestamp":null,"deletionGracePeriodSeconds":null},"spec":null,"status":{"conditions":null,"containerStatuses":[]}}`,
		"nothing":          `{}`,
		"immediate delete": `{"metadata":{"name":"p","deletionTimestamp":"2026-11-28T09:10:00Z","deletionGracePeriodSeconds":0}}`,
	} {
		var whole corev1.Pod
		if err := json.Unmarshal([]byte(raw), &whole); err != nil {
			t.Fatal(err)
		}
		got, err := job.DecodePod([]byte(raw))
		if diff := cmp.Diff(looked(&whole), got); err != nil || diff != "" {
			t.Errorf("%s: DecodePod() differs (-want +got): %v\n%s", name, err, diff)
		}
	}
	if p, _ := job.DecodePod([]byte(wholePod)); metav1.GetControllerOf(p) == nil || p.Status.ContainerStatuses[0].State.Terminated.ExitCode != -9 {
		t.Errorf("DecodePod() = %+v", p)
	}
}

func TestAMemberOfAnotherTypeIsNamed(t *testing.T) {
	t.Parallel()
	for member, raw := range map[string]string{
		"JSON":                       `{"metadata":`,
		"metadata":                   `{"metadata":[]}`,
		"name":                       `{"metadata":{"name":5}}`,
		"labels":                     `{"metadata":{"labels":"x"}}`,
		"team":                       `{"metadata":{"labels":{"team":true}}}`,
		"creationTimestamp":          `{"metadata":{"creationTimestamp":"today"}}`,
		"deletionGracePeriodSeconds": `{"metadata":{"deletionGracePeriodSeconds":1.5}}`,
		"finalizers":                 `{"metadata":{"finalizers":{}}}`,
		"controller":                 `{"metadata":{"ownerReferences":[{"controller":"yes"}]}}`,
		"initContainers":             `{"spec":{"initContainers":5}}`,
		"phase":                      `{"status":{"phase":{}}}`,
		"conditions":                 `{"status":{"conditions":["x"]}}`,
		"restartCount":               `{"status":{"containerStatuses":[{"restartCount":"1"}]}}`,
		"exitCode":                   `{"status":{"containerStatuses":[{"state":{"terminated":{"exitCode":"0","finishedAt":5}}}]}}`, // the first
	} {
		if _, err := job.DecodePod([]byte(raw)); err == nil || !strings.Contains(err.Error(), member) {
			t.Errorf("%s: error %v, want it to name %s", raw, err, member)
		}
	}
}

// BenchmarkDecodePod reads a pod as an index holds it, beside a decoder of the whole.
func BenchmarkDecodePod(b *testing.B) {
	raw := []byte(wholePod)
	b.Run("looked at", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := job.DecodePod(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("whole", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(raw, &corev1.Pod{}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
