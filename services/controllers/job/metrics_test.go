package job_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// series are the series of a counter with their values, in order.
func (b *bench) series(name string) string {
	b.t.Helper()
	families, err := b.reg.Gather()
	if err != nil {
		b.t.Fatal(err)
	}
	var out []string
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			out = append(out, fmt.Sprintf("%s %v", strings.Join(labels, ","), m.GetCounter().GetValue()))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func TestCreationsAreCountedByReasonAndStatus(t *testing.T) {
	t.Parallel()
	failedOnly := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
	for _, c := range []struct {
		name string
		job  func(*batchv1.Job)
		pods [][]podOption
		fail int // so many creations fail
		want string
	}{
		{name: "a new Job", want: "reason=new,status=succeeded 2"},
		{name: "beside a pod that succeeded", pods: [][]podOption{{inPhase(corev1.PodSucceeded)}}, want: "reason=new,status=succeeded 2"},
		{name: "after a failure", pods: [][]podOption{{inPhase(corev1.PodFailed)}}, want: "reason=recreate_terminating_or_failed,status=succeeded 2"},
		{name: "beside a pod that is being deleted", pods: [][]podOption{{isDeleting}}, want: "reason=recreate_terminating_or_failed,status=succeeded 2"},
		{
			name: "failed pods only are replaced, beside one that is being deleted", job: failedOnly,
			pods: [][]podOption{{isDeleting}}, want: "reason=recreate_terminating_or_failed,status=succeeded 1",
		},
		{name: "failed pods only are replaced, after a failure", job: failedOnly, pods: [][]podOption{{inPhase(corev1.PodFailed)}}, want: "reason=recreate_failed,status=succeeded 2"},
		{name: "a creation that fails", fail: 1, want: "reason=new,status=failed 1"},
	} {
		b := newBench(t)
		j := newJob(b.w, 2, 3, 6)
		if c.job != nil {
			c.job(j)
		}
		b.w.putJob(j)
		for _, options := range c.pods {
			b.w.addPod(j, options...)
		}
		b.w.fault = func(op, _ string) fault {
			if op == "create" && b.w.calls[op] <= c.fail {
				return fault{before: kube.ErrRefused}
			}
			return fault{}
		}
		b.sync("default/work")
		if got := b.series("job_controller_job_pods_creation_total"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestJobsOfOtherControllersAreCountedOnceByTheirName(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, name := range []string{"acme.io/a", "acme.io/a", "acme.io/b"} {
		j := newJob(b.w, 1, 1, 6) // another Job of that name each time
		j.Spec.ManagedBy = new(name)
		b.w.putJob(j)
		for range 3 {
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatalf("Job %d: %v", i, res.Err)
			}
		}
	}
	if got, want := b.series("job_controller_jobs_by_external_controller_total"), "controller_name=acme.io/a 2; controller_name=acme.io/b 1"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What one sync counts of the pods that have ended, by label values.
func TestPodsThatHaveEndedAreCounted(t *testing.T) {
	t.Parallel()
	elastic := func(j *batchv1.Job) { j.Status.CompletedIndexes, j.Status.Succeeded = "3", 1 }
	for _, c := range []struct {
		name                               string
		nonIndexed                         bool
		c                                  int32
		job                                func(*batchv1.Job)
		pods                               string
		pod, index, judged, added, deleted string
	}{
		{name: "nothing", c: 2, pods: "0:running 1:running"},
		{
			name: "not indexed", nonIndexed: true, c: 4, pods: "-:ok -:failed -:ok -:running",
			pod: "NonIndexed,failed 1; NonIndexed,succeeded 2", added: "3", deleted: "3",
		},
		{
			name: "global back-off limit", c: 4, pods: "0:ok 1:failed 2:ok 3:running",
			pod: "Indexed,failed 1; Indexed,succeeded 2", index: "global,succeeded 2", added: "3", deleted: "3",
		},
		{
			name: "back-off limit for each index", c: 4, job: perIndexOf(0), pods: "0:ok 1:failed 2:ok 3:running",
			pod: "Indexed,failed 1; Indexed,succeeded 2", index: "perIndex,failed 1; perIndex,succeeded 2", added: "3", deleted: "3",
		},
		{
			name: "a failed pod that waits for its successor", c: 2, job: perIndexOf(1), pods: "0:failed:age=0s 1:running",
		},
		{
			name: "pods that count as nothing", c: 3, pods: "0:ok 0:ok x:ok 7:failed 1:running 2:running",
			pod: "Indexed,succeeded 1", index: "global,succeeded 1", added: "4", deleted: "4",
		},
		{
			name: "an index that succeeds once more", c: 2, pods: "1:ok 0:running",
			job: func(j *batchv1.Job) { j.Status.CompletedIndexes, j.Status.Succeeded = "1", 1 }, added: "1", deleted: "1",
		},
		{
			name: "one that is deleted before it has ended", nonIndexed: true, c: 2, pods: "-:running:deleting -:running -:running",
			pod: "NonIndexed,failed 1",
		},
		{
			name: "elastic, an index above completions is forgotten while another succeeds", c: 2, job: elastic, pods: "0:running 1:ok",
			pod: "Indexed,succeeded 1", index: "global,succeeded 1", added: "1", deleted: "1",
		},
		{name: "elastic, an index above completions is forgotten", c: 2, job: elastic, pods: "0:running 1:running"},
		{
			name: "by a failure policy", c: 6,
			job:  perIndexOf(5, onCodes(ignore, in, 1), onCodes(countIt, in, 2), onCodes(failIndex, in, 3)),
			pods: "0:failed:exit=1 0:running 1:failed:exit=2 1:running 2:failed:exit=3 3:failed:exit=4 3:running 4:failed:exit=2 5:running 4:ok",
			pod:  "Indexed,failed 4; Indexed,succeeded 1", index: "perIndex,failed 1; perIndex,succeeded 1", judged: "Count 2; FailIndex 1; Ignore 1",
			added: "6", deleted: "6",
		},
		{
			name: "by a failure policy that fails the Job", nonIndexed: true, c: 2, job: func(j *batchv1.Job) {
				j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{onCodes(failJob, in, 1)}}
			},
			pods: "-:failed:exit=1 -:failed:exit=2", pod: "NonIndexed,failed 2", judged: "FailJob 1", added: "2", deleted: "2",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, c.c, c.c, 60)
			if c.nonIndexed {
				j.Spec.CompletionMode = nil
			}
			if c.job != nil {
				c.job(j)
			}
			b.w.putJob(j)
			b.w.addIndexed(t, j, c.pods)
			for range 2 { // nothing is counted twice
				if res := b.sync("default/work"); res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			for name, want := range map[string]string{
				"job_pods_finished_total": c.pod, "job_finished_indexes_total": c.index,
				"pod_failures_handled_by_failure_policy_total": c.judged,
			} {
				if got := values.ReplaceAllString(b.series("job_controller_"+name), ""); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			want := strings.Join(slices.DeleteFunc([]string{"add " + c.added, "delete " + c.deleted}, func(s string) bool { return strings.HasSuffix(s, " ") }), "; ")
			if got := values.ReplaceAllString(b.series("job_controller_terminated_pods_tracking_finalizer_total"), ""); got != want {
				t.Errorf("terminated_pods_tracking_finalizer_total is %q, want %q", got, want)
			}
		})
	}
}

// values leaves of labels their values.
var values = regexp.MustCompile(`\w+=`)

func TestAPodWhoseFinalizerStaysIsAddedOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newIndexedJob(b.w, 2, 4, 60)
	perIndexOf(1, onCodes(ignore, in, 1))(j)
	b.w.putJob(j)
	b.w.addIndexed(t, j, "0:ok 1:failed:exit=2 1:running 2:failed:exit=1 2:running x:failed")
	fails := true
	b.w.fault = func(op, _ string) fault {
		if op == "patch" && fails {
			return fault{before: kube.ErrRefused}
		}
		return fault{}
	}
	for range 3 {
		b.sync("default/work")
	}
	fails = false
	b.sync("default/work")
	if got, want := b.series("job_controller_terminated_pods_tracking_finalizer_total"), "event=add 4; event=delete 4"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSyncsAreCountedByWhatTheyDid(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		job  func(*batchv1.Job)
		pods string
		want string
	}{
		{name: "a Job that has all pods", pods: "0:running 1:running", want: "tracking"},
		{name: "pods are made", pods: "0:running", want: "pods_created"},
		{name: "pods wait for their back-off", pods: "0:running 1:failed:age=0s", want: "pods_created"},
		{name: "pods wait for the back-off of their index", job: perIndexOf(1), pods: "0:running 1:failed:age=0s", want: "pods_created"},
		{name: "no index is left for the pods that are missing", job: perIndexOf(0), pods: "0:failed 1:running 2:running:deleting", want: "pods_created"},
		{name: "pods are deleted", pods: "0:running 1:running 2:running", want: "pods_deleted"},
		{name: "suspended", job: func(j *batchv1.Job) { j.Spec.Suspend = new(true) }, pods: "0:running", want: "pods_deleted"},
		{name: "the Job ends", pods: "0:ok 1:ok 2:ok", want: "tracking"},
		{name: "the Job fails", job: func(j *batchv1.Job) { j.Spec.BackoffLimit = new(int32(0)) }, pods: "0:failed", want: "reconciling"},
		{name: "the Job is being deleted", job: func(j *batchv1.Job) { j.DeletionTimestamp = new(metav1.NewTime(epoch)) }, pods: "0:running", want: "reconciling"},
	} {
		b := newBench(t)
		j := newIndexedJob(b.w, 2, 3, 6)
		if c.job != nil {
			c.job(j)
		}
		b.w.putJob(j)
		b.w.addIndexed(t, j, c.pods)
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
		want := "action=" + c.want + ",completion_mode=Indexed,result=success 1"
		if got := b.series("job_controller_job_syncs_total"); got != want {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
}
