package job_test

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

const (
	ignore    = batchv1.PodFailurePolicyActionIgnore
	countIt   = batchv1.PodFailurePolicyActionCount
	failJob   = batchv1.PodFailurePolicyActionFailJob
	failIndex = batchv1.PodFailurePolicyActionFailIndex
	in        = batchv1.PodFailurePolicyOnExitCodesOpIn
	notIn     = batchv1.PodFailurePolicyOnExitCodesOpNotIn

	refusedTarget = "FailureTarget(PodFailurePolicy)"
	refusedDone   = refusedTarget + " Failed(PodFailurePolicy)"
)

func onCodes(action batchv1.PodFailurePolicyAction, op batchv1.PodFailurePolicyOnExitCodesOperator, values ...int32) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: op, Values: values}}
}

func onCondition(action batchv1.PodFailurePolicyAction, condition corev1.PodConditionType) batchv1.PodFailurePolicyRule {
	return batchv1.PodFailurePolicyRule{Action: action, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{
		Type: condition, Status: corev1.ConditionTrue,
	}}}
}

// exits gives a pod containers main, side, … that have ended with these codes a day ago.
func exits(codes ...int32) podOption {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = nil
		for i, code := range codes {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: []string{"main", "side"}[i], State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: code, FinishedAt: metav1.NewTime(epoch.Add(-24 * time.Hour)),
				}},
			})
		}
	}
}

func hasCondition(c corev1.PodConditionType) podOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: c, Status: corev1.ConditionTrue})
	}
}

// TestSyncJobWithJobPodFailurePolicy rows.
func TestSyncJobWithJobPodFailurePolicy(t *testing.T) {
	t.Parallel()
	type rules = []batchv1.PodFailurePolicyRule
	const limited = "ResourceLimitExceeded"
	byCodes := rules{onCodes(ignore, in, 1, 2, 3), onCodes(failJob, in, 5, 6, 7)}
	byMain := rules{onCodes(ignore, in, 1, 2, 3), onCodes(failJob, in, 5, 6, 7)}
	for i := range byMain {
		byMain[i].OnExitCodes.ContainerName = new("main")
	}
	failed, running := inPhase(corev1.PodFailed), inPhase(corev1.PodRunning)
	pod := func(opts ...podOption) []podOption { return opts }
	const codes = "Container main for pod default/pod-1 failed with exit code "
	earlier := "Container main for pod default/already-deleted failed with exit code 5 matching FailJob rule at index 1"
	target := func(message string) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{
				Type: batchv1.JobFailureTarget, Status: corev1.ConditionTrue, Reason: batchv1.JobReasonPodFailurePolicy, Message: message,
			}}
		}
	}
	for _, tc := range []struct {
		name    string
		p, c, l int32
		rules   rules
		job     func(*batchv1.Job)
		pods    [][]podOption
		want    string
		conds   string
		message string
		after   time.Duration
	}{
		{
			name: "the container that matches is not the one the rule names", p: 1, c: 1, l: 6, rules: byMain,
			pods: [][]podOption{pod(failed, exits(42, 5))}, want: "a1 r0 s0 f1 t0",
		},
		{
			name: "running pod should not result in job fail based on OnExitCodes", p: 1, c: 1, l: 6, rules: byCodes,
			pods: [][]podOption{pod(running, exits(5))}, want: "a1 r0 s0 f0 t0",
		},
		{
			name: "fail job based on OnExitCodes", p: 1, c: 1, l: 6, rules: byCodes, pods: [][]podOption{pod(failed, exits(5))},
			want: "a0 r0 s0 f1 t0", conds: refusedDone, message: codes + "5 matching FailJob rule at index 1",
		},
		{
			name: "job marked already as failure target with failed pod", p: 1, c: 1, l: 6, rules: byCodes, job: target("as before"),
			pods: [][]podOption{pod(failed, exits(5))}, want: "a0 r0 s0 f1 t0", conds: refusedDone, message: "as before",
		},
		{
			name: "job marked already as failure target, message based on already deleted pod", p: 1, c: 1, l: 6, rules: byCodes,
			job: target(earlier), pods: [][]podOption{pod(failed, exits(5))}, want: "a0 r0 s0 f1 t0", conds: refusedDone, message: earlier,
		},
		{
			name: "fail job with multiple pods", p: 2, c: 2, l: 6, rules: byCodes, pods: [][]podOption{pod(failed, exits(5)), pod(running)},
			want: "a0 r0 s0 f2 t1", conds: refusedTarget, message: codes + "5 matching FailJob rule at index 1",
		},
		{
			name: "fail indexed job based on OnExitCodes", p: 1, c: 1, l: 6, rules: byCodes,
			job: func(j *batchv1.Job) { j.Spec.CompletionMode = new(batchv1.IndexedCompletion) },
			pods: [][]podOption{pod(failed, exits(5), func(p *corev1.Pod) {
				p.Annotations = map[string]string{batchv1.JobCompletionIndexAnnotation: "0"}
			})},
			want: "a0 r0 s0 f1 t0", conds: refusedDone, message: codes + "5 matching FailJob rule at index 1",
		},
		{
			name: "fail job based on OnExitCodes with NotIn operator", p: 1, c: 1, l: 6, rules: rules{onCodes(failJob, notIn, 5, 6, 7)},
			pods: [][]podOption{pod(failed, exits(42))}, want: "a0 r0 s0 f1 t0", conds: refusedDone, message: codes + "42 matching FailJob rule at index 0",
		},
		{
			name: "default handling job based on OnExitCodes with NotIn operator", p: 1, c: 1, l: 6, rules: rules{onCodes(failJob, notIn, 5, 6, 7)},
			pods: [][]podOption{pod(failed, exits(5))}, want: "a1 r0 s0 f1 t0",
		},
		{
			name: "fail job based on OnExitCodes for InitContainer", p: 1, c: 1, l: 6, rules: byCodes,
			pods: [][]podOption{pod(failed, exits(143), func(p *corev1.Pod) {
				p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
					Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 5}},
				}}
			})},
			want: "a0 r0 s0 f1 t0", conds: refusedDone, message: codes + "5 matching FailJob rule at index 1",
		},
		{
			name: "ignore pod failure; both rules are matching, the first is executed only", p: 1, c: 1, rules: byCodes,
			pods: [][]podOption{pod(failed, exits(2, 6))}, want: "a1 r0 s0 f0 t0",
		},
		{
			name: "ignore pod failure based on OnExitCodes", p: 1, c: 1, rules: byCodes,
			pods: [][]podOption{pod(failed, exits(1))}, want: "a1 r0 s0 f0 t0",
		},
		{
			name: "default job based on OnExitCodes", p: 1, c: 1, rules: byCodes, pods: [][]podOption{pod(failed, exits(10))},
			want: "a0 r0 s0 f1 t0", conds: gaveUp, message: "Job has reached the specified backoff limit",
		},
		{
			name: "count pod failure based on OnExitCodes; both rules are matching, the first is executed only", p: 1, c: 1, l: 6,
			rules: rules{onCodes(countIt, in, 1, 2), onCodes(ignore, in, 2, 3)}, pods: [][]podOption{pod(failed, exits(2))}, want: "a1 r0 s0 f1 t0",
		},
		{
			name: "count pod failure based on OnPodConditions; both rules are matching, the first is executed only", p: 1, c: 1, l: 6,
			rules: rules{onCondition(countIt, limited), onCondition(ignore, corev1.DisruptionTarget)},
			pods:  [][]podOption{pod(failed, hasCondition(limited), hasCondition(corev1.DisruptionTarget))}, want: "a1 r0 s0 f1 t0",
		},
		{
			name: "ignore pod failure based on OnPodConditions", p: 1, c: 1, rules: rules{onCondition(ignore, corev1.DisruptionTarget)},
			pods: [][]podOption{pod(failed, hasCondition(corev1.DisruptionTarget))}, want: "a1 r0 s0 f0 t0",
		},
		{
			name: "ignored failures delays pod recreation", p: 1, c: 1, rules: rules{onCondition(ignore, corev1.DisruptionTarget)},
			pods: [][]podOption{pod(hasCondition(corev1.DisruptionTarget), func(p *corev1.Pod) {
				p.Status.Phase, p.DeletionTimestamp = corev1.PodFailed, new(metav1.NewTime(epoch))
			})},
			want: "a0 r0 s0 f0 t0", after: 10 * time.Second,
		},
		{
			name: "fail job based on OnPodConditions", p: 1, c: 1, l: 6, rules: rules{onCondition(failJob, corev1.DisruptionTarget)},
			pods: [][]podOption{pod(failed, hasCondition(corev1.DisruptionTarget))}, want: "a0 r0 s0 f1 t0", conds: refusedDone,
			message: "Pod default/pod-1 has condition DisruptionTarget matching FailJob rule at index 0",
		},
		{
			name: "terminating Pod not considered failed, without replacement policy", p: 1, c: -1, rules: rules{onCondition(countIt, corev1.DisruptionTarget)},
			job:  func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = nil },
			pods: [][]podOption{pod(running, isDeleting)}, want: "a0 r0 s0 f0 t1",
		},
		{
			name: "terminating Pod not considered failed", p: 1, c: -1, rules: rules{onCondition(countIt, corev1.DisruptionTarget)},
			pods: [][]podOption{pod(running, isDeleting)}, want: "a0 r0 s0 f0 t1",
		},
		{
			name: "TestControllerSyncJob: more terminating pods than parallelism; PodFailurePolicy used", p: 1, c: 1, l: 6,
			rules: rules{onCodes(failJob, in, 1)},
			pods: [][]podOption{
				pod(running), pod(running), pod(running, isDeleting), pod(running, isDeleting), pod(running, isDeleting), pod(running, isDeleting),
			},
			want: "a1 r0 s0 f0 t5",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, tc.p, tc.c, tc.l)
			j.Spec.PodReplacementPolicy, j.Spec.PodFailurePolicy = new(batchv1.Failed), &batchv1.PodFailurePolicy{Rules: tc.rules}
			if tc.job != nil {
				tc.job(j)
			}
			b.w.putJob(j)
			for i, opts := range tc.pods {
				b.w.addPod(j, append(opts, func(p *corev1.Pod) { p.Name = "pod-" + string(rune('1'+i)) })...)
			}
			res := b.sync("default/work")
			if res.Err != nil || tc.after != res.After {
				t.Fatalf("settled %v after %v, %v", res.Settle, res.After, res.Err)
			}
			st := b.status("work")
			if got := show(st); got != tc.want {
				t.Errorf("status %s, want %s", got, tc.want)
			}
			if got := summary(st); got != tc.conds {
				t.Errorf("conditions %q, want %q", got, tc.conds)
			}
			for _, c := range st.Conditions {
				if c.Message != tc.message {
					t.Errorf("message of %s %q, want %q", c.Type, c.Message, tc.message)
				}
			}
		})
	}
}

// A pod that is refused while others run ends the Job only when they have ended, and they count.
func TestAJobThatItsFailurePolicyFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newJob(b.w, 2, 2, 6)
	j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{onCodes(failJob, in, 5)}}
	b.w.putJob(j)
	b.w.addPod(j, inPhase(corev1.PodFailed), exits(5))
	b.w.addPod(j, inPhase(corev1.PodRunning))
	for i, want := range []string{refusedTarget, refusedDone} {
		if res := b.sync("default/work"); res.Err != nil || res.Settle != job.Forget {
			t.Fatalf("sync %d settled %v, %v", i, res.Settle, res.Err)
		}
		if got := summary(b.status("work")); got != want {
			t.Errorf("after sync %d %s, want %s", i, got, want)
		}
		b.w.kubelet()
	}
	if got := show(b.status("work")); got != "a0 r0 s0 f2 t0" {
		t.Errorf("in the end %s", got)
	}
	if got := strings.Join(b.rec.events, "; "); !strings.Contains(got, "Warning PodFailurePolicy Container main for pod default/") {
		t.Errorf("events %q", got)
	}
}
