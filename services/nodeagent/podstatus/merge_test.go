package podstatus_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/deltaplane/deltaplane/services/nodeagent/podstatus"
)

var epoch = time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)

func at(seconds int) metav1.Time {
	return metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second))
}

// conditions reads "Ready=True@0 Scheduled=True": types, statuses and seconds of their transitions.
func conditions(words string) []corev1.PodCondition {
	var out []corev1.PodCondition
	for word := range strings.FieldsSeq(words) {
		word, reason, _ := strings.Cut(word, "!")
		kind, status, _ := strings.Cut(word, "=")
		out = append(out, corev1.PodCondition{Type: corev1.PodConditionType(kind), Status: corev1.ConditionStatus(status), Reason: reason, LastTransitionTime: at(0)})
	}
	return out
}

// told is the inverse of conditions, without the times.
func told(list []corev1.PodCondition) string {
	var out []string
	for _, c := range list {
		s := string(c.Type) + "=" + string(c.Status)
		if c.Reason != "" {
			s += "!" + c.Reason
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestMergePodStatus(t *testing.T) {
	t.Parallel()
	const usual = "Ready=True PodScheduled=True"
	for _, tc := range []struct {
		name       string
		mayRun     bool
		live, want string
		livePhase  corev1.PodPhase
		wantPhase  corev1.PodPhase
		phase      corev1.PodPhase
		conditions string
	}{
		{"no change", false, usual, usual, "Running", "Running", "Running", usual},
		{"preserve DisruptionTarget condition", false, usual + " DisruptionTarget=True!EvictionByEvictionAPI", usual, "Running", "Running", "Running", usual + " DisruptionTarget=True!EvictionByEvictionAPI"},
		{
			"don't override DisruptionTarget condition when remaining in running phase", false,
			"DisruptionTarget=True!EvictedByEvictionAPI " + usual, usual + " DisruptionTarget=False!Other", "Running", "Running", "Running",
			"DisruptionTarget=True!EvictedByEvictionAPI " + usual,
		},
		{"readiness changes", false, usual, "Ready=False PodScheduled=True", "Running", "Running", "Running", "Ready=False PodScheduled=True"},
		{"additional pod condition", false, usual + " example.com/feature=True", usual, "Running", "Running", "Running", usual + " example.com/feature=True"},
		{
			"additional pod condition and readiness changes", false, usual + " example.com/feature=True", "Ready=False PodScheduled=True", "Running", "Running", "Running",
			"Ready=False PodScheduled=True example.com/feature=True",
		},
		{
			"additional pod condition changes", false, "example.com/feature=False " + usual, "example.com/feature=True " + usual, "Running", "Running", "Running",
			"example.com/feature=False " + usual,
		},
		{"phase is transitioning to failed and no containers running", false, usual, usual, "Running", "Failed", "Failed", "Ready=False!PodFailed PodScheduled=True"},
		{"phase is transitioning to failed and containers running", true, usual, usual, "Running", "Failed", "Running", usual},
		{"phase is transitioning to succeeded and no containers running", false, usual, usual, "Running", "Succeeded", "Succeeded", "Ready=False!PodCompleted PodScheduled=True"},
		{"a terminal phase is not left", false, "Ready=False", "Ready=True", "Failed", "Running", "Failed", "Ready=False!PodFailed"},
		{"a terminal phase is not exchanged", false, "Ready=False", "Ready=False", "Failed", "Succeeded", "Failed", "Ready=False"},
		{"ours are added behind those of others", false, "gate=True", usual, "Pending", "Running", "Running", "gate=True " + usual},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pod := spec(corev1.RestartPolicyAlways, "", "A")
			pod.Status = corev1.PodStatus{Phase: tc.livePhase, Conditions: conditions(tc.live)}
			before := pod.DeepCopy()
			got := podstatus.Merge(pod, corev1.PodStatus{Phase: tc.wantPhase, Conditions: conditions(tc.want)}, tc.mayRun, at(9))
			if got.Phase != tc.phase || told(got.Conditions) != tc.conditions {
				t.Errorf("Merge() = %s, %s; want %s, %s", got.Phase, told(got.Conditions), tc.phase, tc.conditions)
			}
			if diff := cmp.Diff(before, pod); diff != "" {
				t.Errorf("Merge changed its argument: %s", diff)
			}
		})
	}
}

func TestMergeKeepsWhatOthersWroteAndTheStart(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A")
	pod.Status = corev1.PodStatus{
		StartTime: new(at(1)), NominatedNodeName: "other", ObservedGeneration: 4, QOSClass: corev1.PodQOSBurstable,
		ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "gpu"}},
		ContainerStatuses:     []corev1.ContainerStatus{{Name: "A", RestartCount: 7}},
	}
	want := corev1.PodStatus{
		StartTime: new(at(5)), ObservedGeneration: 3, QOSClass: corev1.PodQOSBestEffort,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "A", RestartCount: 2}},
	}
	got := podstatus.Merge(pod, want, false, at(9))
	if diff := cmp.Diff(pod.Status, got); diff != "" {
		t.Errorf("Merge() lost something (-live +merged):\n%s", diff)
	}
}

func TestMergedTransitionTimesNeverGoBack(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A")
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at(5)}, // the node was silent
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: at(1)},
	}
	want := corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: at(1)},
		{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: at(3)},
	}}
	got := podstatus.Merge(pod, want, false, at(9)).Conditions
	if !got[0].LastTransitionTime.Equal(new(at(9))) || !got[1].LastTransitionTime.Equal(new(at(1))) {
		t.Errorf("transitions at %v and %v, want that of the change now and the other as it was", got[0].LastTransitionTime, got[1].LastTransitionTime)
	}
}

func TestStatusNormalizationEnforcesMaxBytes(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A B C")
	s := corev1.PodStatus{}
	for _, name := range []string{"C", "A", "B"} {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: strings.Repeat("é", 6<<10), FinishedAt: metav1.NewTime(epoch.Add(time.Millisecond))},
		}})
	}
	podstatus.Normalize(pod, &s)
	total := 0
	for i, c := range s.ContainerStatuses {
		total += len(c.State.Terminated.Message)
		if want := string(rune('A' + i)); c.Name != want || c.State.Terminated.FinishedAt.Nanosecond() != 0 {
			t.Errorf("status %d is %s, ended at %v; want %s at a whole second", i, c.Name, c.State.Terminated.FinishedAt, want)
		}
	}
	if total > 12<<10 || total < 11<<10 {
		t.Errorf("messages have %d bytes together, want 12 KiB at most", total)
	}
}

func TestStatusEquality(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A B")
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: conditions("foreign=True Ready=True PodScheduled=True"), StartTime: new(at(0)),
		ContainerStatuses: statuses(t, "A:run B:run"),
	}
	same := corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: conditions("PodScheduled=True Ready=True"), StartTime: new(metav1.NewTime(epoch.Add(300 * time.Millisecond))),
		ContainerStatuses: statuses(t, "B:run A:run"),
	}
	podstatus.Normalize(pod, &same)
	merged := podstatus.Merge(pod, same, true, at(9))
	patch, err := podstatus.Patch(pod, merged)
	if want := `{"metadata":{"resourceVersion":"1","uid":"u1"}}`; err != nil || string(patch) != want {
		t.Errorf("the patch between equal statuses is %s, %v; want %s", patch, err, want)
	}
}

func TestPatchTouchesOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	pod := spec(corev1.RestartPolicyAlways, "", "A B")
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: conditions("foreign=True Ready=False"), ContainerStatuses: statuses(t, "A:wait B:wait")}
	want := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: conditions("Ready=True PodScheduled=True"), ContainerStatuses: statuses(t, "A:run B:wait")}
	merged := podstatus.Merge(pod, want, true, at(9))
	patch, err := podstatus.Patch(pod, merged)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(patch); !strings.Contains(s, `"resourceVersion":"1"`) || !strings.Contains(s, `"uid":"u1"`) {
		t.Errorf("patch %s has no preconditions", s)
	}
	// The stored object knows a field that we do not.
	stored, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.Replace(string(stored), `"phase":"Pending"`, `"phase":"Pending","later":"field"`, 1)
	applied, err := strategicpatch.StrategicMergePatch([]byte(raw), patch, corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	var got corev1.Pod
	if err := json.Unmarshal(applied, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(merged, got.Status); diff != "" {
		t.Errorf("the patch leads elsewhere (-merged +patched):\n%s", diff)
	}
	if !strings.Contains(string(applied), `"later":"field"`) {
		t.Errorf("the patch dropped a field that it does not know: %s", applied)
	}
}
