package job_test

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// indexedRow is an indexed Job with its pods, and what one sync makes of them.
type indexedRow struct {
	name    string
	p, c, l int32
	job     func(*batchv1.Job)
	pods    string
	create  string // the indexes of the pods made
	remove  string // the names of the pods that have been deleted, in order
	want    string
	indexes string
	conds   string
	patches int
	after   time.Duration // until the next sync
}

func (tc *indexedRow) run(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	j := newIndexedJob(b.w, tc.p, tc.c, tc.l)
	if tc.job != nil {
		tc.job(j)
	}
	b.w.putJob(j)
	b.w.addIndexed(t, j, tc.pods)
	before := b.w.current()
	b.lease.state = []byte(`{"u":"` + string(j.UID) + `"}`)
	if res := b.sync("default/work"); res.Err != nil || res.After != tc.after {
		t.Errorf("settled %v after %v, want after %v; %v", res.Settle, res.After, tc.after, res.Err)
	}
	if got := b.bornIndexes(); got != tc.create {
		t.Errorf("pods made for %q, want %q", got, tc.create)
	}
	if got := b.deletedSince(before); got != tc.remove {
		t.Errorf("deleted %q, want %q", got, tc.remove)
	}
	st := b.status("work")
	if got := show(st); got != tc.want {
		t.Errorf("status %s, want %s", got, tc.want)
	}
	if got := showIndexes(st); got != tc.indexes {
		t.Errorf("indexes %q, want %q", got, tc.indexes)
	}
	if got := summary(st); got != tc.conds {
		t.Errorf("conditions %q, want %q", got, tc.conds)
	}
	if got := b.w.calls["patch"]; got != tc.patches {
		t.Errorf("%d pod patches, want %d", got, tc.patches)
	}
}

// deletedSince are the pods that were not being deleted in an earlier view and are now.
func (b *bench) deletedSince(v *view) string {
	names, _ := v.selectPods(func(p *corev1.Pod) bool {
		now := b.w.pods[p.Name]
		return p.DeletionTimestamp == nil && (now == nil || now.DeletionTimestamp != nil)
	})
	return strings.Join(names, " ")
}

// The indexed rows of TestControllerSyncJob, with the 1.36 defaults. Pods "-" have no index.
func TestControllerSyncJobIndexed(t *testing.T) {
	t.Parallel()
	failedOnly := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.Failed) }
	either := func(j *batchv1.Job) { j.Spec.PodReplacementPolicy = new(batchv1.TerminatingOrFailed) }
	suspend := func(j *batchv1.Job) { j.Spec.Suspend = new(true) }
	for _, tc := range []indexedRow{
		{name: "indexed job start", p: 2, c: 5, l: 6, create: "0 1", want: "a2 r0 s0 f0 t0", indexes: "ok"},
		{
			name: "indexed job with some pods deleted, podReplacementPolicy Failed", p: 2, c: 5, l: 6, job: failedOnly,
			pods: "-:running:deleting", create: "0", want: "a1 r0 s0 f0 t1", indexes: "ok",
		},
		{
			name: "a terminating pod holds its index, podReplacementPolicy Failed", p: 2, c: 5, l: 6, job: failedOnly,
			pods: "0:running:deleting", create: "1", want: "a1 r0 s0 f0 t1", indexes: "ok",
		},
		{
			name: "indexed job with some pods deleted, podReplacementPolicy TerminatingOrFailed", p: 2, c: 5, l: 6, job: either,
			pods: "-:running:deleting", create: "0 1", want: "a2 r0 s0 f0 t1", indexes: "ok", patches: 1,
		},
		{
			name: "a terminating pod leaves its index, podReplacementPolicy TerminatingOrFailed", p: 2, c: 5, l: 6, job: either,
			pods: "0:running:deleting", create: "0 1", want: "a2 r0 s0 f1 t1", indexes: "ok", patches: 1,
		},
		{
			name: "indexed job completed", p: 2, c: 3, l: 6, pods: "0:ok 1:failed 1:ok 2:ok",
			want: "a0 r0 s3 f1 t0", indexes: "ok 0-2", conds: completed, patches: 4,
		},
		{
			name: "indexed job failed", p: 2, c: 3, pods: "0:ok 1:failed 2:running",
			remove: "pod-2", want: "a0 r0 s1 f2 t1", indexes: "ok 0", conds: giveUp, patches: 3,
		},
		{
			name: "indexed job repeated completed index", p: 2, c: 3, l: 6, pods: "0:ok 1:ok 1:ok",
			create: "2", want: "a1 r0 s2 f0 t0", indexes: "ok 0,1", patches: 3,
		},
		{
			name: "indexed job some running and completed pods", p: 8, c: 20, l: 6,
			pods:   "0:running 2:ok 3:pending 4:ok 5:ok 7:ok 8:ok 9:ok",
			create: "1 6 10 11 12 13", want: "a8 r0 s6 f0 t0", indexes: "ok 2,4,5,7-9", patches: 6,
		},
		{
			name: "indexed job some failed pods", p: 3, c: 4, l: 6, pods: "0:failed 1:pending 2:failed",
			create: "0 2", want: "a3 r0 s0 f2 t0", indexes: "ok", patches: 2,
		},
		{
			name: "indexed job some pods without index", p: 2, c: 5, l: 6,
			pods:   "-:running -:ok -:failed x:running x:ok x:failed x:pending 0:ok 1:running 2:running",
			remove: "pod-0 pod-3 pod-6", want: "a2 r0 s1 f0 t3", indexes: "ok 0", patches: 8,
		},
		{
			name: "indexed job repeated indexes", p: 5, c: 5, l: 6,
			pods:   "-:ok -:failed x:running 0:ok 1:running 2:running 2:pending",
			remove: "pod-2 pod-6", want: "a2 r0 s1 f0 t2", indexes: "ok 0", patches: 5,
		},
		{
			name: "indexed job with indexes outside of range", p: 2, c: 5, l: 6,
			pods:   "0:ok 5:running 6:ok 7:pending 8:failed",
			remove: "pod-1 pod-3", want: "a0 r0 s1 f0 t2", indexes: "ok 0", patches: 5,
		},
		{name: "no completions are asked for", p: 1, want: "a0 r0 s0 f0 t0", indexes: "ok", conds: completed},
		{name: "no completions are asked for, suspended", p: 1, job: suspend, want: "a0 r0 s0 f0 t0", indexes: "ok", conds: completed},
		{
			name: "a misplaced pod is one of those that are too many", p: 2, c: 5, l: 6, pods: "0:running:ready 1:running 2:running:ready x:running:ready",
			remove: "pod-1 pod-3", want: "a2 r2 s0 f0 t2", indexes: "ok", patches: 2,
		},
		{
			name: "failures without an index do not count towards the back-off limit", p: 1, c: 2, pods: "x:failed 2:failed",
			create: "0", want: "a1 r0 s0 f0 t0", indexes: "ok", patches: 2,
		},
		{
			name: "suspended, all of its pods go, whatever their index", p: 3, c: 3, l: 6, job: suspend,
			pods: "0:ok 1:running:ready 2:running 2:pending -:running", remove: "pod-1 pod-2 pod-3 pod-4",
			want: "a0 r0 s1 f0 t4", indexes: "ok 0", conds: "Suspended(JobSuspended)", patches: 5,
		},
		{
			name: "suspended from the start", p: 3, c: 3, l: 6, job: suspend,
			want: "a0 r0 s0 f0 t0", indexes: "ok", conds: "Suspended(JobSuspended)",
		},
		{
			name: "all indexes succeed although suspended", p: 2, c: 2, l: 6, job: suspend, pods: "0:ok 1:ok",
			want: "a0 r0 s2 f0 t0", indexes: "ok 0,1", conds: completed, patches: 2,
		},
		{
			name: "more active than parallelism: the least useful goes", p: 1, c: 5, l: 6, pods: "0:running:ready 1:running 2:running:ready",
			remove: "pod-0 pod-1", want: "a1 r1 s0 f0 t2", indexes: "ok", patches: 2,
		},
	} {
		t.Run(tc.name, tc.run)
	}
}

// TestCalculateSucceededIndexes rows: what a status has and what pods add to it.
func TestCalculateSucceededIndexes(t *testing.T) {
	t.Parallel()
	was := func(indexes string, n int32) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Status.CompletedIndexes, j.Status.Succeeded = indexes, n }
	}
	for _, tc := range []struct {
		name string
		c    int32
		job  func(*batchv1.Job)
		pods string
		want string
	}{
		{name: "one index", c: 2, pods: "1:ok", want: "ok 1"},
		{name: "two separate", c: 11, pods: "2:failed 5:ok 5:ok 10:failed 10:ok", want: "ok 5,10"},
		{name: "two intervals", c: 8, pods: "0:running 1:pending 2:ok 3:ok 5:ok 6:ok 7:ok", want: "ok 2,3,5-7"},
		{name: "one index and one interval", c: 6, pods: "0:ok 1:failed 2:ok 3:ok 4:ok 5:ok -:ok -2:ok", want: "ok 0,2-5"},
		{name: "out of range", c: 5, pods: "0:ok 1:ok 2:ok 3:failed 4:ok 5:ok -:ok -2:ok", want: "ok 0-2,4"},
		{name: "prev interval out of range", c: 8, job: was("0-5,8-10", 9), want: "ok 0-5"},
		{name: "prev interval partially out of range", c: 10, job: was("0-5,8-10", 9), want: "ok 0-5,8,9"},
		{name: "prev and new separate", c: 13, job: was("0,4,5,10-12", 6), pods: "2:ok 7:ok 8:ok", want: "ok 0,2,4,5,7,8,10-12"},
		{name: "prev between new", c: 9, job: was("3,4,6", 3), pods: "2:ok 7:ok 8:ok", want: "ok 2-4,6-8"},
		{name: "new between prev", c: 9, job: was("2,7,8", 3), pods: "3:ok 4:ok 6:ok", want: "ok 2-4,6-8"},
		{name: "new within prev", c: 10, job: was("2-7", 6), pods: "0:ok 3:ok 5:ok 9:ok", want: "ok 0,2-7,9"},
		{name: "corrupted interval", c: 4, job: was("0,1-foo,bar", 1), pods: "3:ok", want: "ok 0,3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, tc.c, tc.c, 6) // elastic, so that completions may have been more
			if tc.job != nil {
				tc.job(j)
			}
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

// TestFirstPendingIndexes rows: which indexes get pods.
func TestFirstPendingIndexes(t *testing.T) {
	t.Parallel()
	was := func(ok, failed string) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.CompletedIndexes = ok
			if failed != "" {
				j.Spec.BackoffLimitPerIndex, j.Status.FailedIndexes = new(int32(1)), &failed
			}
		}
	}
	for _, tc := range []struct {
		name   string
		p, c   int32
		job    func(*batchv1.Job)
		pods   string
		create string
	}{
		{name: "cnt greater than completions", p: 5, c: 3, create: "0 1 2"},
		{name: "cnt less than completions", p: 2, c: 5, create: "0 1"},
		{name: "first pods active", p: 5, c: 10, pods: "0:running 1:pending", create: "2 3 4"},
		{name: "last pods active or succeeded", p: 6, c: 7, job: was("4,5", ""), pods: "6:pending", create: "0 1 2 3"},
		{name: "mixed", p: 8, c: 20, job: was("2-4,9", ""), pods: "3:pending 5:running 8:pending", create: "0 1 6 7 10"},
		{name: "with failed indexes", p: 7, c: 20, job: was("1,5,9", "2,6,7"), pods: "3:pending 9:pending", create: "0 4 8 10 11"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, tc.p, tc.c, 6)
			if tc.job != nil {
				tc.job(j)
			}
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := b.bornIndexes(); got != tc.create {
				t.Errorf("pods made for %q, want %q", got, tc.create)
			}
		})
	}
}

// TestAppendDuplicatedIndexPodsForRemoval rows: pods without an index of their own.
func TestAppendDuplicatedIndexPodsForRemoval(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, pods, remove string }{
		{"all unique", "-:pending 2:pending 5:running 6:running", "pod-0 pod-3"},
		{
			"all with index", "5:pending 0:running 3:pending 0:running 3:running 0:pending 6:running 6:pending",
			"pod-1 pod-2 pod-5 pod-6 pod-7",
		},
		{"mixed", "-:pending x:running -2:running 0:pending 1:pending 1:pending 1:running", "pod-0 pod-1 pod-2 pod-4 pod-5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newIndexedJob(b.w, 6, 6, 6)
			b.w.putJob(j)
			b.w.addIndexed(t, j, tc.pods)
			before := b.w.current()
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if got := b.deletedSince(before); got != tc.remove {
				t.Errorf("deleted %q, want %q", got, tc.remove)
			}
		})
	}
}
