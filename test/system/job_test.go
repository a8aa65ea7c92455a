package system

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// The annotations that the dev cluster's nodes and the stages of test/kube run pods by.
const (
	runSeconds = "deltaplane.io/run-seconds"
	exitCode   = "deltaplane.io/exit-code"
	forever    = "forever"
)

const jobsPath = "/apis/batch/v1/namespaces/default/jobs"

// jobOf describes a Job whose pods run as the annotations say.
func jobOf(name string, annotations map[string]string, change func(*batchv1.JobSpec)) *batchv1.Job {
	job := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: batchv1.JobSpec{
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
				Spec: corev1.PodSpec{
					RestartPolicy:                 corev1.RestartPolicyNever,
					TerminationGracePeriodSeconds: new(int64(1)),
					Containers:                    []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}
	if change != nil {
		change(&job.Spec)
	}
	return job
}

// createJob creates a Job and removes it, its pods and their finalizers' reason when the test ends.
func createJob(t *testing.T, x *Target, job *batchv1.Job) *batchv1.Job {
	t.Helper()
	created := &batchv1.Job{}
	if err := x.API.create(t.Context(), jobsPath, job, created); err != nil {
		t.Fatalf("create Job %s: %v", job.Name, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := x.API.delete(ctx, jobsPath+"/"+job.Name, "Background"); err != nil && !isStatus(err, 404) {
			t.Errorf("delete Job %s: %v", job.Name, err)
		}
	})
	return created
}

func getJob(ctx context.Context, x *Target, name string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	return job, x.API.get(ctx, jobsPath+"/"+name, job)
}

// podsOf lists a Job's pods on the API server.
func podsOf(ctx context.Context, x *Target, job *batchv1.Job) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := x.API.get(ctx, "/api/v1/namespaces/default/pods?labelSelector=batch.kubernetes.io%2Fcontroller-uid%3D"+string(job.UID), &all)
	return all.Items, err
}

// waitCondition waits until the Job has the condition and returns the Job as it is then.
func waitCondition(t *testing.T, x *Target, name string, kind batchv1.JobConditionType, reason string, limit time.Duration) *batchv1.Job {
	t.Helper()
	var job *batchv1.Job
	eventually(t, limit, fmt.Sprintf("Job %s %s", name, kind), func(ctx context.Context) error {
		var err error
		if job, err = getJob(ctx, x, name); err != nil {
			return err
		}
		for _, c := range job.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionTrue {
				if reason != "" && c.Reason != reason {
					t.Fatalf("Job %s: %s has reason %q, want %q", name, kind, c.Reason, reason)
				}
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v, status %+v", job.Status.Conditions, job.Status)
	})
	return job
}

// checkOwnerIndex waits until the index files exactly the API server's pods of the Job under its
// UID.
func checkOwnerIndex(t *testing.T, x *Target, job *batchv1.Job) {
	t.Helper()
	client := x.index(t)
	eventually(t, 20*time.Second, "owner index of "+job.Name, func(ctx context.Context) error {
		pods, err := podsOf(ctx, x, job)
		if err != nil {
			return err
		}
		var want []string
		for _, p := range pods {
			want = append(want, p.Namespace+"/"+p.Name)
		}
		slices.Sort(want)
		answer, err := client.IndexKeys(ctx, &indexv1.IndexKeysRequest{Collection: "pods", Index: "owner", Value: string(job.UID)})
		if err != nil {
			return err
		}
		if !slices.Equal(answer.GetKeys(), want) {
			return fmt.Errorf("index has %v, API server %v", answer.GetKeys(), want)
		}
		return nil
	})
}

func testJobs(t *testing.T, x *Target) {
	t.Run("a plain Job runs its completions and completes", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("plain", nil, func(s *batchv1.JobSpec) {
			s.Parallelism, s.Completions = new(int32(2)), new(int32(5))
		}))
		done := waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
		if done.Status.Succeeded != 5 || done.Status.Failed != 0 || done.Status.Active != 0 {
			t.Errorf("status is %+v, want 5 succeeded and nothing else", done.Status)
		}
		pods, err := podsOf(t.Context(), x, job)
		if err != nil {
			t.Fatal(err)
		}
		if len(pods) != 5 {
			t.Errorf("%d pods exist, want exactly 5", len(pods))
		}
		checkOwnerIndex(t, x, job)
		checkNoFinalizers(t, x, job)
	})
	t.Run("a work-queue Job completes when one pod succeeds and none is active", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("workqueue", nil, func(s *batchv1.JobSpec) { s.Parallelism = new(int32(3)) }))
		done := waitCondition(t, x, job.Name, batchv1.JobComplete, "", time.Minute)
		if done.Status.Succeeded < 1 || done.Status.Succeeded > 3 {
			t.Errorf("%d pods succeeded, want 1 to 3", done.Status.Succeeded)
		}
	})
	t.Run("a Job whose pods fail ends with BackoffLimitExceeded", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("failing", map[string]string{exitCode: "3"}, func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(0)) }))
		done := waitCondition(t, x, job.Name, batchv1.JobFailed, "BackoffLimitExceeded", time.Minute)
		if done.Status.Failed != 1 {
			t.Errorf("%d pods failed, want exactly 1", done.Status.Failed)
		}
		checkNoFinalizers(t, x, job)
	})
	t.Run("a Job past its deadline fails and its pods are deleted", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("deadline", map[string]string{runSeconds: forever}, func(s *batchv1.JobSpec) {
			s.ActiveDeadlineSeconds = new(int64(3))
		}))
		done := waitCondition(t, x, job.Name, batchv1.JobFailed, "DeadlineExceeded", time.Minute)
		if age := time.Since(done.Status.StartTime.Time); age < 3*time.Second {
			t.Errorf("failed %s after its start, before the deadline", age)
		}
		checkNoFinalizers(t, x, job)
	})
	t.Run("a Job follows changes of its parallelism up, to zero and up again", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("elastic", map[string]string{runSeconds: forever}, func(s *batchv1.JobSpec) {
			s.Parallelism, s.Completions = new(int32(1)), new(int32(10))
		}))
		for _, want := range []int32{1, 4, 0, 2} {
			if err := x.API.merge(t.Context(), jobsPath+"/"+job.Name, map[string]any{"spec": map[string]any{"parallelism": want}}); err != nil {
				t.Fatal(err)
			}
			eventually(t, time.Minute, fmt.Sprintf("%d active pods", want), func(ctx context.Context) error {
				now, err := getJob(ctx, x, job.Name)
				if err != nil {
					return err
				}
				if now.Status.Active != want || now.Status.Failed != 0 {
					return fmt.Errorf("status is %+v", now.Status)
				}
				return nil
			})
		}
	})
	t.Run("a deleted Job takes its pods along and leaves no finalizer behind", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("deleted", map[string]string{runSeconds: forever}, func(s *batchv1.JobSpec) { s.Parallelism = new(int32(3)) }))
		eventually(t, time.Minute, "3 pods", func(ctx context.Context) error {
			pods, err := podsOf(ctx, x, job)
			if err == nil && len(pods) != 3 {
				err = fmt.Errorf("%d pods", len(pods))
			}
			return err
		})
		if err := x.API.delete(t.Context(), jobsPath+"/"+job.Name, "Background"); err != nil {
			t.Fatal(err)
		}
		eventually(t, time.Minute, "no pods", func(ctx context.Context) error {
			pods, err := podsOf(ctx, x, job)
			if err == nil && len(pods) != 0 {
				err = fmt.Errorf("%d pods, the first with finalizers %v", len(pods), pods[0].Finalizers)
			}
			return err
		})
		checkOwnerIndex(t, x, job)
	})
	t.Run("Get at the revision of a write returns that write", func(t *testing.T) {
		t.Parallel()
		job := createJob(t, x, jobOf("fresh", map[string]string{runSeconds: forever}, nil))
		answer, err := x.index(t).Get(t.Context(), &indexv1.GetRequest{
			Collection: "jobs", Key: "default/" + job.Name,
			// It is to come, on a busy machine as well: the server's longest wait.
			Consistency: &indexv1.Consistency{AtLeast: &deltav1.Revision{ResourceVersion: job.ResourceVersion}, Timeout: durationpb.New(30 * time.Second)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if answer.GetObject().GetUid() != string(job.UID) {
			t.Errorf("got UID %q, want %q", answer.GetObject().GetUid(), job.UID)
		}
	})
}

// checkNoFinalizers waits until no pod of a finished Job holds the tracking finalizer.
func checkNoFinalizers(t *testing.T, x *Target, job *batchv1.Job) {
	t.Helper()
	eventually(t, 20*time.Second, "no finalizer on pods of "+job.Name, func(ctx context.Context) error {
		pods, err := podsOf(ctx, x, job)
		if err != nil {
			return err
		}
		for _, p := range pods {
			if slices.Contains(p.Finalizers, "batch.kubernetes.io/job-tracking") {
				return fmt.Errorf("pod %s has %v", p.Name, p.Finalizers)
			}
		}
		return nil
	})
}
