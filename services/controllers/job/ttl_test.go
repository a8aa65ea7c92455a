package job_test

import (
	"math"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// Upstream's TestTimeLeft, and that the Job is read live and deleted by UID.
func TestTTLAfterFinished(t *testing.T) {
	t.Parallel()
	ended := func(c batchv1.JobConditionType, ago time.Duration) func(*batchv1.Job) {
		return func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: c, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(epoch.Add(-ago))}}
		}
	}
	tests := []struct {
		name   string
		ttl    *int32
		job    func(*batchv1.Job)
		live   func(*batchv1.Job) // what only a live read shows
		settle job.Settle
		after  time.Duration
		gone   bool
	}{
		{name: "done 10 s ago, ttl 15", ttl: new(int32(15)), job: ended(batchv1.JobComplete, 10*time.Second), settle: job.After, after: 5 * time.Second},
		{name: "failed 15 s ago, ttl 15", ttl: new(int32(15)), job: ended(batchv1.JobFailed, 15*time.Second), gone: true},
		{name: "ttl 0", ttl: new(int32(0)), job: ended(batchv1.JobComplete, 0), gone: true},
		{
			name: "managed by somebody else, ended 15 s ago, ttl 15", ttl: new(int32(15)), gone: true,
			job: func(j *batchv1.Job) { ended(batchv1.JobFailed, 15*time.Second)(j); j.Spec.ManagedBy = new("acme.io/c") },
		},
		{
			name: "managed by somebody else, ended 10 s ago, ttl 15", ttl: new(int32(15)), settle: job.After, after: 5 * time.Second,
			job: func(j *batchv1.Job) {
				ended(batchv1.JobComplete, 10*time.Second)(j)
				j.Spec.ManagedBy = new("acme.io/c")
			},
		},
		{
			name: "managed by somebody else, running", ttl: new(int32(0)),
			job: func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/c") },
		},
		{name: "no ttl", job: ended(batchv1.JobComplete, time.Hour)},
		{
			name: "being deleted already", ttl: new(int32(0)),
			job: func(j *batchv1.Job) {
				ended(batchv1.JobComplete, time.Hour)(j)
				j.DeletionTimestamp = new(metav1.NewTime(epoch))
			},
		},
		{
			name: "a longer ttl that the index does not show yet", ttl: new(int32(1)), job: ended(batchv1.JobComplete, 10*time.Second),
			live:   func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = new(int32(60)) },
			settle: job.After, after: 50 * time.Second,
		},
		{
			name: "another Job of that name", ttl: new(int32(1)), job: ended(batchv1.JobComplete, 10*time.Second),
			live: func(j *batchv1.Job) { j.UID, j.Status = "another", batchv1.JobStatus{} },
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			j.Spec.TTLSecondsAfterFinished = tc.ttl
			tc.job(j)
			b.w.putJob(j)
			v := b.w.current()
			if tc.live != nil {
				fresh := j.DeepCopy()
				tc.live(fresh)
				b.w.putJob(fresh)
			}
			res := b.r.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 1, Attempt: 1, Reader: v, Lease: b.lease})
			if res.Err != nil || res.Settle != tc.settle || res.After != tc.after {
				t.Errorf("settled %v after %v, %v; want %v after %v", res.Settle, res.After, res.Err, tc.settle, tc.after)
			}
			if gone := b.w.jobs["work"] == nil; gone != tc.gone {
				t.Errorf("gone: %v, want %v", gone, tc.gone)
			}
		})
	}
}

// A deadline that no duration holds is no deadline of the past.
func TestADeadlineOfAHundredYearsAndMoreNeverEndsAJob(t *testing.T) {
	t.Parallel()
	const year = 365 * 24 * 3600
	for seconds, after := range map[int64]time.Duration{
		99 * year:     99*year*time.Second - time.Hour,
		101 * year:    0,
		9223372036:    0, // the most seconds that a duration holds
		9223372037:    0,
		math.MaxInt64: 0,
	} {
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		j.Spec.ActiveDeadlineSeconds = new(seconds)
		j.Status.StartTime = new(metav1.NewTime(epoch.Add(-time.Hour)))
		b.w.putJob(j)
		if res := b.sync("default/work"); res.Err != nil || res.After != after || len(b.w.born) != 1 || summary(b.status("work")) != "" {
			t.Errorf("%d s: settled after %v, %v, with %d pods and %q; want %v", seconds, res.After, res.Err, len(b.w.born), summary(b.status("work")), after)
		}
	}
}
