package podstatus_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

// One sync of a pod that is as it was: a status is made, and compared.
func BenchmarkGenerateUnchanged(b *testing.B) {
	b.ReportAllocs()
	pod, seen := spec(corev1.RestartPolicyAlways, "X", "A B"), observed("ready A:run B:run A:exit1 X:exit0")
	last := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: seen, Now: epoch})
	for b.Loop() {
		got := podstatus.Generate(podstatus.Input{Pod: pod, Last: &last, Runtime: seen, Now: epoch})
		if !equality.Semantic.DeepEqual(got, last) {
			b.Fatal("changed")
		}
	}
}

// One change of a pod: the status is merged and the patch made.
func BenchmarkMergeAndPatch(b *testing.B) {
	b.ReportAllocs()
	pod := spec(corev1.RestartPolicyAlways, "X", "A B")
	pod.Status = podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready X:exit0"), Now: epoch})
	want := podstatus.Generate(podstatus.Input{Pod: pod, Runtime: observed("ready A:run B:run X:exit0"), Now: epoch})
	for b.Loop() {
		if _, err := podstatus.Patch(pod, podstatus.Merge(pod, want, true, at(1))); err != nil {
			b.Fatal(err)
		}
	}
}
