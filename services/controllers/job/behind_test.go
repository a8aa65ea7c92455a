package job_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// A sync whose barrier did not tell of the status that counted a pod (the queue's
// store was lost, or another controller wrote it) may meet an index that shows
// the pod without its finalizer and the Job as it was before.
func TestPodsThatTheJobHasNotHeardOfYet(t *testing.T) {
	t.Parallel()
	// The Job makes its pod, and before is what the index knew of Jobs at moments.
	begin := func(t *testing.T) (b *bench, made, active int64) {
		b = newBench(t)
		b.w.putJob(newJob(b.w, 1, 1, 6))
		made = b.w.rv
		b.sync("default/work")
		active = b.w.rv
		p := &pair{bench: b}
		p.set(corev1.PodSucceeded)
		return b, made, active
	}
	again := func(t *testing.T, b *bench, jobs int64) job.Result {
		b.lease.token++
		return b.r.Reconcile(t.Context(), job.Request{
			Key: "default/work", Token: b.lease.token, Attempt: 1, State: b.lease.state, Expected: b.lease.expected,
			Reader: &view{b.w, jobs, b.w.rv}, Lease: b.lease,
		})
	}
	check := func(t *testing.T, b *bench, res job.Result, statuses int) {
		t.Helper()
		if res.Err != nil || res.Settle != job.Forget || len(b.w.violations) > 0 {
			t.Errorf("settled %v, %v, violations %q", res.Settle, res.Err, b.w.violations)
		}
		if len(b.w.born) != 1 || b.w.calls["status"] != statuses || summary(b.status("work")) != completed || b.status("work").Succeeded != 1 {
			t.Errorf("%d pods, want 1; %d status writes, want %d; %s %s", len(b.w.born), b.w.calls["status"], statuses,
				show(b.status("work")), summary(b.status("work")))
		}
	}
	t.Run("the store was lost and the index shows the Job as it was made", func(t *testing.T) {
		t.Parallel()
		b, made, _ := begin(t)
		b.sync("default/work")
		b.lease.state, b.lease.expected = nil, job.Expected{}
		n := b.w.calls["status"]
		check(t, b, again(t, b, made), n)
	})
	t.Run("the store was lost in the middle of the counting", func(t *testing.T) {
		t.Parallel()
		b, made, _ := begin(t)
		n := b.w.calls["status"]
		b.w.fault = func(op, _ string) fault {
			if op == "status" && b.w.calls["status"] > n+1 {
				return fault{before: errors.New("timeout")}
			}
			return fault{}
		}
		b.sync("default/work")
		b.w.fault, b.lease.state, b.lease.expected = nil, nil, job.Expected{}
		if len(b.status("work").UncountedTerminatedPods.Succeeded) != 1 {
			t.Fatalf("not the history meant: %+v", b.status("work"))
		}
		n = b.w.calls["status"]
		check(t, b, again(t, b, made), n+2) // counted, and ended
	})
	t.Run("another controller counted it, without our queue", func(t *testing.T) {
		t.Parallel()
		b, _, active := begin(t)
		other, err := job.New(job.Config{Now: func() time.Time { return b.now }}, b.w, b.rec, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		other.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 1e6, Attempt: 1, Reader: b.w.current(), Lease: &keptLease{token: 1e6}})
		n, events := b.w.calls["status"], slices.Clone(b.rec.events)
		check(t, b, again(t, b, active), n)
		if !slices.Equal(b.rec.events, events) {
			t.Errorf("events %q, want none beside %q", b.rec.events, events)
		}
	})
	t.Run("a pod that gave up its right to be counted is replaced all the same", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		b.w.putJob(j)
		b.w.addPod(j, inPhase(corev1.PodSucceeded), untracked)
		if res := b.sync("default/work"); res.Err != nil || len(b.w.born) != 1 || b.w.calls["list pods"] != 1 {
			t.Errorf("%v, %d pods born, %d live lists; want 1 and 1", res.Err, len(b.w.born), b.w.calls["list pods"])
		}
	})
}

func TestPodsOfAnIndexedJobThatItHasNotHeardOfYet(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, pods string
		lists      int // live ones
	}{
		{"a success that it has heard of", "0:ok:untracked 1:running", 0},
		{"a second success of an index", "0:ok:untracked 0:ok:untracked 1:running", 0},
		{"a success that it has not heard of", "1:ok:untracked", 1},
		{"a failure that it has heard of", "1:failed:untracked 1:running", 0},
		{"a failure that it has not heard of", "1:failed:untracked 1:failed:untracked 1:running", 1},
		{"a failure that is ignored", "1:failed:untracked 1:failed:untracked:disrupted 1:running", 0},
		{"pods that stand for no index", "x:ok:untracked 7:ok:untracked x:failed:untracked 7:failed:untracked 1:running", 0},
	} {
		b := newBench(t)
		j := newIndexedJob(b.w, 1, 2, 6)
		j.Spec.PodFailurePolicy = ignoreDisruptions
		j.Status.CompletedIndexes, j.Status.Succeeded, j.Status.Failed = "0", 1, 1
		b.w.putJob(j)
		b.w.addIndexed(t, j, tc.pods)
		b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
		if res := b.sync("default/work"); res.Err != nil || b.w.calls["list pods"] != tc.lists {
			t.Errorf("%s: %v, %d live lists, want %d", tc.name, res.Err, b.w.calls["list pods"], tc.lists)
		}
	}
}

// Pods are removed although the index shows versions of them that are not theirs any
// more: kubelets write them all the time.
func TestPodsAreRemovedBehindAnIndexThatLags(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*batchv1.Job){
		"scaled down": func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(0)) },
		"suspended":   func(j *batchv1.Job) { j.Spec.Suspend = new(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 20, 40, 6)
			b.w.putJob(j)
			b.sync("default/work")
			old := b.w.current()
			p := &pair{bench: b}
			p.set(corev1.PodRunning) // of which the index knows nothing
			names := slices.Sorted(maps.Keys(b.w.pods))
			done := b.w.pods[names[0]].DeepCopy()
			inPhase(corev1.PodSucceeded)(done)
			b.w.putPod(done, false)
			going := b.w.pods[names[1]].DeepCopy()
			isDeleting(going)
			b.w.putPod(going, false)
			b.w.putPod(untrackedCopy(b.w.pods[names[2]]), false)
			next := b.w.jobs["work"].DeepCopy()
			change(next)
			b.w.putJob(next)
			b.rec.events = nil
			b.lease.token++
			res := b.r.Reconcile(t.Context(), job.Request{
				Key: "default/work", Token: b.lease.token, Attempt: 1, State: b.lease.state, Expected: b.lease.expected,
				Reader: &view{b.w, b.w.rv, old.pods}, Lease: b.lease,
			})
			if b.w.calls["delete"] != 18 || res.Settle != job.RateLimited {
				t.Errorf("%d deletions, want 18 of 20 pods; settled %v, %v", b.w.calls["delete"], res.Settle, res.Err)
			}
			if n := slices.IndexFunc(b.rec.events, func(e string) bool { return strings.HasPrefix(e, "Warning") }); n >= 0 {
				t.Errorf("nothing has failed, and the user reads %q", b.rec.events[n])
			}
			if len(b.w.pods[names[0]].Finalizers) != 1 || len(b.w.pods[names[1]].Finalizers) != 1 {
				t.Errorf("a pod that had ended, or was being deleted, lost its right to be counted: %v %v", b.w.pods[names[0]].Finalizers, b.w.pods[names[1]].Finalizers)
			}
			b.sync("default/work")
			if st := b.status("work"); st.Succeeded != 1 || st.Active != 0 {
				t.Errorf("status %s, want the pod that had ended counted", show(st))
			}
		})
	}
	t.Run("the next sync is not below a version that was met", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.w.putJob(newJob(b.w, 1, 1, 6))
		b.sync("default/work")
		old := b.w.current()
		p := &pair{bench: b}
		p.set(corev1.PodSucceeded)
		met := b.w.current().pods
		next := b.w.jobs["work"].DeepCopy()
		next.Spec.Suspend = new(true)
		b.w.putJob(next)
		b.lease.token++
		res := b.r.Reconcile(t.Context(), job.Request{
			Key: "default/work", Token: b.lease.token, Attempt: 1, State: b.lease.state, Expected: b.lease.expected,
			Reader: &view{b.w, b.w.rv, old.pods}, Lease: b.lease,
		})
		if res.Settle != job.RateLimited || delta.MaxRV(res.Wrote.Pods.RV, revision(met).RV) != res.Wrote.Pods.RV {
			t.Errorf("settled %v, %v at pods %v, want %d or later", res.Settle, res.Err, res.Wrote.Pods, met)
		}
	})
	t.Run("a pod that changes all the time is left for the next sync", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.w.putJob(newJob(b.w, 1, 1, 6))
		b.sync("default/work")
		next := b.w.jobs["work"].DeepCopy()
		next.Spec.Suspend = new(true)
		b.w.putJob(next)
		b.rec.events, b.w.calls = nil, map[string]int{}
		b.w.fault = func(op, _ string) fault {
			if op == "patch" {
				return fault{before: kube.ErrConflict}
			}
			return fault{}
		}
		if res := b.sync("default/work"); res.Settle != job.RateLimited || b.w.calls["patch"] > 10 || b.w.calls["delete"] != 0 || strings.Contains(fmt.Sprint(b.rec.events), "Warning") {
			t.Errorf("settled %v after %d patches and %d deletions, events %q", res.Settle, b.w.calls["patch"], b.w.calls["delete"], b.rec.events)
		}
		b.w.fault = nil
		if b.sync("default/work"); b.w.calls["delete"] != 1 {
			t.Errorf("%d deletions by the next sync, want 1", b.w.calls["delete"])
		}
	})
}

func untrackedCopy(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	untracked(p)
	return p
}

// The status is written, and its writer never hears of it or stops before it has
// saved the failure record.
func TestAFailureWhoseStatusWriteHadNoAnswerDelaysTheNextPod(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		op   string
		at   int  // which call of it in that sync
		lost bool // the lease is lost then as well: nothing is saved
		gone bool // and the pod is gone by then
		want time.Duration
	}{
		{name: "no answer to the first write", op: "status", at: 1, want: 10 * time.Second},
		{name: "no answer to the patch of the finalizer", op: "patch", at: 1, want: 10 * time.Second},
		{name: "no answer to the second write", op: "status", at: 2, want: 10 * time.Second},
		{name: "stopped after the first write", op: "status", at: 1, lost: true, want: 10 * time.Second},
		{name: "stopped after the patch", op: "patch", at: 1, lost: true, want: 10 * time.Second},
		{name: "stopped after the patch, and the pod is gone", op: "patch", at: 1, lost: true, gone: true, want: 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.w.putJob(newJob(b.w, 1, 1, 6))
			for range 2 { // what is accounted for is known before the pod fails
				b.sync("default/work")
			}
			fails := func() {
				p := &pair{bench: b}
				p.set(corev1.PodFailed)
				for _, p := range b.w.pods {
					if p.Status.Phase == corev1.PodFailed && len(p.Finalizers) > 0 {
						p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(b.now)
						b.w.putPod(p, false)
					}
				}
			}
			fails()
			b.w.calls = map[string]int{}
			b.w.fault = func(op, _ string) fault {
				if op == c.op && b.w.calls[op] == c.at {
					return fault{after: errors.New("timeout")}
				}
				return fault{}
			}
			state := b.lease.state
			if res := b.sync("default/work"); res.Err == nil {
				t.Fatalf("settled %v without an error", res.Settle)
			}
			b.w.fault = nil
			if c.lost {
				b.lease.state = state
			}
			for name, p := range b.w.pods {
				if c.gone && p.Status.Phase == corev1.PodFailed {
					b.w.putPod(untrackedCopy(b.w.pods[name]), true)
				}
			}
			b.lease.token++
			again := job.Request{
				Key: "default/work", Token: b.lease.token, Attempt: 1, State: b.lease.state, Expected: b.lease.expected,
				Reader: b.w.current(), Lease: b.lease,
			}
			if c.lost {
				again.Attempt = 2
			}
			if res := b.r.Reconcile(t.Context(), again); res.Settle != job.After || res.After != c.want || b.status("work").Failed != 1 {
				t.Errorf("settled %v after %v, %v; want a wait of %v; %s", res.Settle, res.After, res.Err, c.want, show(b.status("work")))
			}
			b.now = b.now.Add(c.want)
			if res := b.sync("default/work"); res.Err != nil || len(b.w.born) != 2 {
				t.Fatalf("%v, %d pods born", res.Err, len(b.w.born))
			}
			fails()
			if res := b.sync("default/work"); res.After != 20*time.Second {
				t.Errorf("after the second failure it waits %v, want 20 s: each counts once", res.After)
			}
		})
	}
}

func TestASuccessWhoseStatusWriteHadNoAnswerEndsTheBackoff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.w.putJob(newJob(b.w, 1, 2, 6))
	b.sync("default/work")
	ends := func(phase corev1.PodPhase) {
		for _, p := range b.w.pods {
			if p.Status.Phase != corev1.PodPending {
				continue
			}
			p = p.DeepCopy()
			inPhase(phase)(p)
			p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(b.now)
			b.w.putPod(p, false)
		}
	}
	ends(corev1.PodFailed)
	b.sync("default/work")
	b.now = b.now.Add(10 * time.Second)
	b.sync("default/work")
	ends(corev1.PodSucceeded)
	n := b.w.calls["status"]
	b.w.fault = func(op, _ string) fault {
		if op == "status" && b.w.calls[op] == n+1 {
			return fault{after: errors.New("timeout")}
		}
		return fault{}
	}
	if res := b.sync("default/work"); res.Err == nil {
		t.Fatalf("settled %v without an error", res.Settle)
	}
	b.now = b.now.Add(time.Second)
	if res := b.sync("default/work"); res.Err != nil || len(b.w.born) != 3 {
		t.Fatalf("%v, %d pods born, want 3", res.Err, len(b.w.born))
	}
	b.now = b.now.Add(time.Second)
	ends(corev1.PodFailed)
	if res := b.sync("default/work"); res.After != 10*time.Second {
		t.Errorf("after the first failure since the success it waits %v, want 10 s", res.After)
	}
}
