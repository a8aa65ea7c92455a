package job_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

const (
	indexesFailed  = "FailureTarget(FailedIndexes) Failed(FailedIndexes)"
	tooManyIndexes = "FailureTarget(MaxFailedIndexesExceeded)"
)

// perIndexOf gives each index so many failures after its first, and judges them by rules.
func perIndexOf(limit int32, rules ...batchv1.PodFailurePolicyRule) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.BackoffLimitPerIndex = &limit
		if len(rules) > 0 {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: rules}
		}
	}
}

// TestSyncJobWithJobBackoffLimitPerIndex rows.
func TestSyncJobWithJobBackoffLimitPerIndex(t *testing.T) {
	t.Parallel()
	const most = math.MaxInt32
	atMostOne := func(j *batchv1.Job) {
		perIndexOf(1)(j)
		j.Spec.MaxFailedIndexes = new(int32(1))
	}
	for _, tc := range []indexedRow{
		{
			name: "successful job after a single failure within index", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:failed:count=0 0:ok:count=1 1:ok:count=0",
			want: "a0 r0 s2 f1 t0", indexes: "ok 0,1 failed", conds: completed, patches: 3,
		},
		{
			name: "single failed pod, not counted as the replacement pod creation is delayed", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:failed:count=0", create: "0 1", want: "a2 r0 s0 f0 t0", indexes: "ok failed",
		},
		{
			name: "single failed pod replaced already", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:failed:count=0 0:pending:count=1", create: "1", want: "a2 r0 s0 f1 t0", indexes: "ok failed", patches: 1,
		},
		{
			name: "replacement pod creation delayed by per-index backoff while another index runs", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:running:count=0 1:failed:count=0:age=0s", want: "a1 r0 s0 f0 t0", indexes: "ok failed", after: 10 * time.Second,
		},
		{
			name: "single failed index due to exceeding the backoff limit per index, the job continues", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:failed:count=1", create: "1", want: "a1 r0 s0 f1 t0", indexes: "ok failed 0", patches: 1,
		},
		{
			name: "single failed index due to FailIndex action, the job continues", p: 2, c: 2, l: most, job: perIndexOf(1, onCodes(failIndex, in, 3)),
			pods: "0:failed:count=0:exit=3", create: "1", want: "a1 r0 s0 f1 t0", indexes: "ok failed 0", patches: 1,
		},
		{
			name: "job failed index due to FailJob action", p: 2, c: 2, l: 6, job: perIndexOf(1, onCodes(failJob, in, 3)),
			pods: "0:failed:count=0:exit=3", want: "a0 r0 s0 f1 t0", indexes: "ok failed", conds: refusedDone, patches: 1,
		},
		{
			name: "job pod failure ignored due to matching Ignore action", p: 2, c: 2, l: 6, job: perIndexOf(1, onCodes(ignore, in, 3)),
			pods: "0:failed:count=0:exit=3", create: "0 1", want: "a2 r0 s0 f0 t0", indexes: "ok failed",
		},
		{
			name: "job failed due to exceeding backoffLimit before backoffLimitPerIndex", p: 2, c: 2, l: 1, job: perIndexOf(1),
			pods: "0:failed:count=0 1:failed:count=0", want: "a0 r0 s0 f2 t0", indexes: "ok failed", conds: gaveUp, patches: 2,
		},
		{
			name: "job failed due to failed indexes", p: 2, c: 2, l: most, job: perIndexOf(1),
			pods: "0:failed:count=1 1:ok:count=0", want: "a0 r0 s1 f1 t0", indexes: "ok 1 failed 0", conds: indexesFailed, patches: 2,
		},
		{
			name: "job failed due to exceeding max failed indexes", p: 4, c: 4, l: most, job: atMostOne,
			pods:   "0:failed:count=1 1:ok:count=0 2:failed:count=1 3:running:count=0",
			remove: "pod-3", want: "a0 r0 s1 f3 t1", indexes: "ok 1 failed 0,2", conds: tooManyIndexes, patches: 4,
		},
		{
			name: "as many failed indexes as there may be, the job continues", p: 4, c: 4, l: most, job: atMostOne,
			pods: "0:failed:count=1 1:ok:count=0 2:running:count=1 3:running:count=0",
			want: "a2 r0 s1 f1 t0", indexes: "ok 1 failed 0", patches: 2,
		},
		{
			name: "failed indexes take no pods from the others", p: 3, c: 5, l: most, job: perIndexOf(0),
			pods: "0:failed 1:failed", create: "2 3 4", want: "a3 r0 s0 f2 t0", indexes: "ok failed 0,1", patches: 2,
		},
		{
			name: "suspended, a failed pod waits for its successor", p: 2, c: 2, l: most,
			job:  func(j *batchv1.Job) { perIndexOf(1)(j); j.Spec.Suspend = new(true) },
			pods: "0:failed:count=0", want: "a0 r0 s0 f0 t0", indexes: "ok failed", conds: "Suspended(JobSuspended)",
		},
		{
			name: "elastic, failed and succeeded indexes above completions are forgotten", p: 2, c: 2, l: most,
			job: func(j *batchv1.Job) {
				perIndexOf(1)(j)
				j.Status.FailedIndexes, j.Status.CompletedIndexes, j.Status.Succeeded, j.Status.Failed = new("0,3"), "1,2", 2, 2
			},
			want: "a0 r0 s1 f2 t0", indexes: "ok 1 failed 0", conds: indexesFailed,
		},
	} {
		t.Run(tc.name, tc.run)
	}
}

// TestIsIndexFailed and TestCalculateFailedIndexes rows.
func TestCalculateFailedIndexes(t *testing.T) {
	t.Parallel()
	was := func(limit int32, indexes string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { perIndexOf(limit)(j); j.Status.FailedIndexes = &indexes }
	}
	for _, tc := range []struct {
		name string
		job  func(*batchv1.Job)
		pods string
		want string
	}{
		{"failed pod exceeding backoffLimitPerIndex, when backoffLimitPerIndex=0", perIndexOf(0), "0:failed:count=0", "ok failed 0"},
		{"failed pod exceeding backoffLimitPerIndex, when backoffLimitPerIndex=1", perIndexOf(1), "1:failed:count=1", "ok failed 1"},
		{"matching FailIndex pod failure policy", perIndexOf(1, onCodes(failIndex, in, 3)), "0:failed:count=0:exit=3", "ok failed 0"},
		{"an ignored failure fails no index", perIndexOf(0, onCodes(ignore, in, 3)), "0:failed:count=0:exit=3", "ok failed"},
		{"one new index failed", perIndexOf(1), "0:failed:count=0 1:failed:count=1", "ok failed 1"},
		{"pod without finalizer is ignored", perIndexOf(0), "0:failed:count=0:untracked:deleting", "ok failed"},
		{"pod outside completions is ignored", perIndexOf(0), "3:failed:count=0", "ok failed"},
		{"extend the failed indexes", was(0, "0"), "1:failed:count=0", "ok failed 0,1"},
		{"prev failed indexes empty", was(0, ""), "1:failed:count=0", "ok failed 1"},
		{"prev failed indexes outside the completions", was(0, "9"), "1:failed:count=0", "ok failed 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, 2, 2, 6)
			tc.job(j)
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := showIndexes(b.status("work")); got != tc.want {
				t.Errorf("indexes %q, want %q", got, tc.want)
			}
		})
	}
}

// The API server refuses a status in which an index has succeeded and failed. What a status says
// stays, and a success goes before a failure that no status says.
func TestAnIndexEndsInOneWay(t *testing.T) {
	t.Parallel()
	for _, tc := range []indexedRow{
		{
			name: "a success and a failure at once", p: 2, c: 2, l: 6, job: perIndexOf(0), pods: "0:ok 0:failed 1:running",
			want: "a1 r0 s1 f1 t0", indexes: "ok 0 failed", patches: 2,
		},
		{
			name: "a success after the index has failed", p: 2, c: 2, l: 6,
			job:  func(j *batchv1.Job) { perIndexOf(0)(j); j.Status.FailedIndexes, j.Status.Failed = new("0"), 1 },
			pods: "0:ok 1:running", want: "a1 r0 s0 f1 t0", indexes: "ok failed 0", patches: 1,
		},
		{
			name: "a failure after the index has succeeded", p: 2, c: 2, l: 6,
			job:  func(j *batchv1.Job) { perIndexOf(0)(j); j.Status.CompletedIndexes, j.Status.Succeeded = "0", 1 },
			pods: "0:failed 1:running", want: "a1 r0 s1 f1 t0", indexes: "ok 0 failed", patches: 1,
		},
	} {
		t.Run(tc.name, tc.run)
	}
	t.Run("a pod that is being deleted counts as failed, and then succeeds", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newIndexedJob(b.w, 1, 2, 6)
		perIndexOf(0)(j)
		b.w.putJob(j)
		p := b.w.addIndexed(t, j, "0:running:deleting 1:running")[0]
		b.w.fault = func(op, _ string) fault {
			if op == "patch" {
				return fault{before: kube.ErrRefused}
			}
			return fault{}
		}
		b.sync("default/work")
		b.w.fault = nil
		p = b.w.pods[p.Name].DeepCopy()
		inPhase(corev1.PodSucceeded)(p)
		b.w.putPod(p, false)
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
		if st := b.status("work"); show(st) != "a1 r0 s0 f1 t0" || showIndexes(st) != "ok failed 0" {
			t.Errorf("%s, %s", show(st), showIndexes(st))
		}
	})
}

// TestGetPodsWithDelayedDeletionPerIndex rows: which failed pods wait for a successor that inherits
// what they count.
func TestGetPodsWithDelayedDeletionPerIndex(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		limit int32
		pods  string
		want  string
	}{
		{"failed pods are kept corresponding to non-failed indexes are kept", 1, "0:failed:count=0 1:failed:count=1 2:failed:count=0", "pod-0 pod-2"},
		{"failed pod without finalizer", 0, "0:failed:count=0:untracked:deleting", ""},
		{"failed pod with index outside of completions", 0, "4:failed:count=0", ""},
		{"failed pod for active index", 1, "0:failed:count=0 0:running:count=1", ""},
		{"failed pod for succeeded index", 1, "0:failed:count=0 0:ok:count=1", ""},
		{"multiple failed pods for index with different failure count", 4, "0:failed:count=0 0:failed:count=2 0:failed:count=1", "pod-1"},
		{
			"multiple failed pods for index with different finish times", 4,
			"0:failed:count=1:age=61s 0:failed:count=1:age=60s 0:failed:count=1:age=62s", "pod-1",
		},
		{"ignored failures count as well for which was last", 4, "0:failed:count=1 0:failed:count=1:ignored=2 0:failed:count=2", "pod-1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, 3, 3, 60)
			perIndexOf(tc.limit)(j)
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			var kept []string
			for name, p := range b.w.pods {
				if p.Status.Phase == corev1.PodFailed && len(p.Finalizers) > 0 {
					kept = append(kept, name)
				}
			}
			slices.Sort(kept)
			if got := strings.Join(kept, " "); got != tc.want {
				t.Errorf("%q keep their finalizer, want %q", got, tc.want)
			}
		})
	}
	t.Run("failed pod with expected finalizer removal", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newIndexedJob(b.w, 2, 2, 6)
		perIndexOf(0)(j)
		j.Status.FailedIndexes, j.Status.Failed = new("0"), 1 // written before the finalizer went
		b.w.putJob(j)
		p := b.w.addIndexed(t, j, "0:failed:count=0")[0]
		b.lease.expected = job.Expected{Owner: string(j.UID), Deletions: []string{"finalizer:" + string(p.UID)}}
		b.lease.state = []byte(`{"u":"` + string(j.UID) + `"}`)
		b.sync("default/work")
		if st := b.status("work"); b.w.calls["patch"] != 0 || show(st) != "a1 r0 s0 f1 t0" || showIndexes(st) != "ok failed 0" || b.bornIndexes() != "1" {
			t.Errorf("%d patches, %s, %s, pods for %s", b.w.calls["patch"], show(st), showIndexes(st), b.bornIndexes())
		}
	})
}

// TestGetNewIndexFailureCountValue and TestGetIndexFailureCount rows: what a pod inherits from its
// predecessor.
func TestGetNewIndexFailureCountValue(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		pods           string
		count, ignored string
	}{
		{"first pod created", "", "0", ""},
		{"failed pod being replaced with 0 index failure count", "0:failed:count=0", "1", ""},
		{"failed pod being replaced with >0 index failure count", "0:failed:count=3", "4", ""},
		{"failed pod being replaced, matching the ignore rule", "0:failed:count=3:disrupted", "3", "1"},
		{"what was ignored before stays", "0:failed:count=3:ignored=2", "4", "2"},
		{"what was ignored before adds up", "0:failed:count=3:ignored=2:disrupted", "3", "3"},
		{"no annotation", "0:failed", "1", ""},
		{"valid value", "0:failed:count=2", "3", ""},
		{"too large value", "0:failed:count=2147483648", "1", ""},
		{"negative value", "0:failed:count=-1", "1", ""},
		{"invalid int value", "0:failed:count=xyz", "1", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, 1, 1, 6)
			perIndexOf(1000, onCondition(ignore, corev1.DisruptionTarget))(j)
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			if res := b.sync("default/work"); res.Err != nil || len(b.w.born) != 1 {
				t.Fatalf("%d pods made, %v", len(b.w.born), res.Err)
			}
			a := b.w.pods[b.w.born[0].name].Annotations
			if a[batchv1.JobIndexFailureCountAnnotation] != tc.count || a[ignoredCount] != tc.ignored {
				t.Errorf("annotations %v, want a count of %s and of %q ignored", a, tc.count, tc.ignored)
			}
		})
	}
	t.Run("valid maxint32 value", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newIndexedJob(b.w, 1, 2, 6)
		perIndexOf(math.MaxInt32)(j)
		b.w.putJob(j)
		b.w.addIndexed(t, j, "0:failed:count=2147483647")
		if b.sync("default/work"); showIndexes(b.status("work")) != "ok failed 0" {
			t.Errorf("indexes %s", showIndexes(b.status("work")))
		}
	})
}

// TestGetPodCreationInfoForIndependentIndexes and TestGetRemainingBackoffTimePerIndex rows. The Job
// also wakes for the indexes that have to wait.
func TestEachIndexHasABackoffOfItsOwn(t *testing.T) {
	t.Parallel()
	const s = time.Second
	for _, tc := range []struct {
		name   string
		pods   string
		create string
		after  time.Duration
	}{
		{"simple index creation", "", "0 1 2", 0},
		{"subset of indexes can be recreated now", "0:failed:count=0:age=0s", "1 2", 10 * s},
		{"subset of indexes can be recreated now as the pods failed long time ago", "0:failed:count=0:age=0s 1:failed:count=0:age=20s", "1 2", 10 * s},
		{"no indexes can be recreated now", "0:failed:count=1:age=0s 1:failed:count=0:age=0s 2:failed:count=1:age=0s", "", 10 * s},
		{"no indexes can be recreated now, but 1s already passed", "0:failed:count=1:age=1s 1:failed:count=0:age=1s 2:failed:count=1:age=1s", "", 9 * s},
		{"two prev failures", "0:failed:count=2:age=0s 1:running 2:running", "", 40 * s},
		{"one prev failure counted and one ignored", "0:failed:count=1:ignored=1:age=0s 1:running 2:running", "", 40 * s},
		{"at the end of the back-off", "0:failed:count=0:age=10s 1:running 2:running", "0", 0},
		{"never more than ten minutes", "0:failed:count=500:age=0s 1:running 2:running", "", 10 * 60 * s},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, 3, 3, 60)
			perIndexOf(1000)(j)
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			res := b.sync("default/work")
			if got := b.bornIndexes(); res.Err != nil || got != tc.create || res.After != tc.after {
				t.Errorf("pods made for %q, next sync after %v, want %q after %v; %v", got, res.After, tc.create, tc.after, res.Err)
			}
		})
	}
	t.Run("the wait is a second at least", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.now = b.now.Add(9900 * time.Millisecond)
		j := newIndexedJob(b.w, 1, 1, 60)
		perIndexOf(1000)(j)
		b.w.putJob(j)
		b.w.addIndexed(t, j, "0:failed:count=0:age=0s")
		if res := b.sync("default/work"); res.After != s || len(b.w.born) != 0 {
			t.Errorf("next sync after %v, %d pods made", res.After, len(b.w.born))
		}
	})
}

// An index fails at its own pace, until each of its failures was counted.
func TestTheLifeOfAnIndexThatFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newIndexedJob(b.w, 2, 2, math.MaxInt32)
	perIndexOf(2)(j)
	b.w.putJob(j)
	var got []string
	for range 3 {
		for range 2 {
			b.sync("default/work")
		}
		var counts []string
		for _, p := range b.w.pods {
			if p.Annotations[batchv1.JobCompletionIndexAnnotation] == "0" && p.Status.Phase == corev1.PodPending {
				counts = append(counts, p.Annotations[batchv1.JobIndexFailureCountAnnotation])
				p = p.DeepCopy()
				inPhase(corev1.PodFailed)(p)
				b.w.putPod(p, false)
			}
		}
		got = append(got, fmt.Sprint(counts, b.status("work").Failed))
	}
	b.sync("default/work")
	if want := []string{"[0] 0", "[1] 1", "[2] 2"}; !slices.Equal(got, want) || showIndexes(b.status("work")) != "ok failed 0" || b.status("work").Failed != 3 {
		t.Errorf("counts of index 0 and of the Job %q, want %q; in the end %s, %s", got, want, show(b.status("work")), showIndexes(b.status("work")))
	}
}
