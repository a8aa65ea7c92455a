package job_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The indexed rows of TestTrackJobStatusAndRemoveFinalizers: what each status write said. The UIDs
// of pods begin with uid-2. As many run as may, so that nothing is made or deleted.
func TestTrackIndexedJobStatusAndRemoveFinalizers(t *testing.T) {
	t.Parallel()
	was := func(ok string, succeeded, failed int32) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.CompletedIndexes, j.Status.Succeeded, j.Status.Failed = ok, succeeded, failed
		}
	}
	for _, tc := range []struct {
		name    string
		p, c    int32
		job     func(*batchv1.Job)
		pods    string
		want    []string
		patches int
		metric  string
	}{
		{
			name: "indexed job new successful pods", p: 1, c: 6, pods: "1:ok 3:ok 3:ok 5:running -:ok",
			want: []string{"s2 f0 ok 1,3"}, patches: 4, metric: "succeeded 2",
		},
		{
			name: "prev successful pods outside current completions index range with no new succeeded pods", p: 2, c: 2, job: was("3", 1, 0),
			pods: "0:running 1:running", want: []string{"s0 f0 ok"},
		},
		{
			name: "prev successful pods outside current completions index range with new succeeded pods in range", p: 2, c: 2, job: was("3", 1, 0),
			pods: "0:running 1:ok", want: []string{"s1 f0 ok 1"}, patches: 1, metric: "succeeded 1",
		},
		{
			name: "indexed job new failed pods", p: 1, c: 6, pods: "1:failed 3:failed 3:failed 5:running -:failed",
			want: []string{"s0 f0 ok; uncounted uid-2 uid-3 uid-4", "s0 f3 ok"}, patches: 4, metric: "failed 3",
		},
		{
			name: "indexed job past and new pods", p: 0, c: 7, job: was("0-2,4,6,7", 5, 2),
			pods: "0:ok:untracked 1:failed:untracked 1:ok 3:ok 2:failed 5:failed",
			want: []string{"s6 f2 ok 0-4,6; uncounted uid-6 uid-7", "s6 f4 ok 0-4,6"}, patches: 4, metric: "failed 2; succeeded 1",
		},
		{
			name: "pods are counted in the order of their indexes", p: 0, c: 6, pods: "4:failed 0:failed 2:failed",
			want: []string{"s0 f0 ok; uncounted uid-3 uid-4 uid-2", "s0 f3 ok"}, patches: 3, metric: "failed 3",
		},
		{
			name: "a failed pod with delayed finalizer removal; the pod is not counted", p: 0, c: 6, job: perIndexOf(1),
			pods: "1:failed:count=0", want: []string{"s0 f0 ok failed"},
		},
		{
			name: "a failed pod which is recreated by a running pod; the pod is counted", p: 1, c: 6, job: perIndexOf(1),
			pods: "1:failed:count=0 1:running:count=1", want: []string{"s0 f0 ok failed; uncounted uid-2", "s0 f1 ok failed"},
			patches: 1, metric: "failed 1",
		},
		{
			name: "a failed pod for a failed index; the pod is counted", p: 0, c: 6, job: perIndexOf(1),
			pods: "1:failed:count=1", want: []string{"s0 f0 ok failed 1; uncounted uid-2", "s0 f1 ok failed 1"}, patches: 1, metric: "failed 1",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, tc.p, tc.c, 100)
			j.Status = batchv1.JobStatus{
				StartTime: new(metav1.NewTime(epoch)), Ready: new(int32(0)), Terminating: new(int32(0)),
				Active: int32(strings.Count(tc.pods, "running")), //nolint:gosec // a few
			}
			if tc.job != nil {
				tc.job(j)
			}
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if diff := cmp.Diff(indexedWrites(b.w), tc.want); diff != "" {
				t.Errorf("status writes (-got +want):\n%s", diff)
			}
			if got := b.w.calls["patch"]; got != tc.patches {
				t.Errorf("%d patches, want %d", got, tc.patches)
			}
			got := strings.ReplaceAll(b.series("job_controller_job_pods_finished_total"), "completion_mode=Indexed,result=", "")
			if got != tc.metric {
				t.Errorf("job_pods_finished_total is %q, want %q", got, tc.metric)
			}
		})
	}
}

// indexedWrites are the counters, indexes and uncounted failures of every status write.
func indexedWrites(w *world) []string {
	var all []string
	for _, st := range w.statuses {
		text := fmt.Sprintf("s%d f%d %s", st.Succeeded, st.Failed, showIndexes(st))
		if bad := st.UncountedTerminatedPods.Failed; len(bad) > 0 {
			text += "; uncounted " + strings.Trim(fmt.Sprint(bad), "[]")
		}
		all = append(all, text)
	}
	return all
}

// Row "too many indexed finished": 500 in one sync, which then does not end the Job.
func TestAtMost500IndexesAreCountedInOneSync(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newIndexedJob(b.w, 0, 501, 6)
	b.w.putJob(j)
	pods := []string{"-:ok"} // counts as nothing
	for i := range 501 {
		pods = append(pods, fmt.Sprintf("%d:ok", i))
	}
	b.w.addIndexed(t, j, strings.Join(pods, " "))
	for i, want := range []struct {
		patches int
		conds   string
	}{{501, "SuccessCriteriaMet(CompletionsReached)"}, {502, completed}} {
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
		st := b.status("work")
		if b.w.calls["patch"] != want.patches || summary(st) != want.conds || st.Succeeded != 501 || st.CompletedIndexes != "0-500" {
			t.Errorf("after sync %d: %d patches, %s, %s, %s", i, b.w.calls["patch"], summary(st), show(st), showIndexes(st))
		}
	}
}
