package job_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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
