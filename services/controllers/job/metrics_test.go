package job_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

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
