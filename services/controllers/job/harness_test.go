package job_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/services/controllers/job"
)

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// keptLease is job.Lease for one worker that nobody disturbs. It is the memory
// between syncs.
type keptLease struct {
	token     uint64
	state     []byte
	expected  job.Expected
	saved     int
	lostAfter int // calls of Alive until the lease is lost; zero: never
	alive     int
}

func (l *keptLease) Alive() error {
	l.alive++
	if l.lostAfter > 0 && l.alive > l.lostAfter {
		return job.ErrLeaseLost
	}
	return nil
}

func (l *keptLease) Save(_ context.Context, state []byte) error {
	l.state, l.saved = slices.Clone(state), l.saved+1
	return nil
}

func (l *keptLease) Expect(_ context.Context, owner string, creations, deletions []string) error {
	l.expected = job.Expected{Owner: owner, Creations: creations, Deletions: deletions, Token: l.token}
	return nil
}

func (l *keptLease) Observe(_ context.Context, _ string, creations, deletions []string) error {
	l.expected.Creations = slices.DeleteFunc(slices.Clone(l.expected.Creations), func(s string) bool { return slices.Contains(creations, s) })
	l.expected.Deletions = slices.DeleteFunc(slices.Clone(l.expected.Deletions), func(s string) bool { return slices.Contains(deletions, s) })
	return nil
}

// bench is one reconciler over one world with an index that is up to date.
type bench struct {
	t     *testing.T
	now   time.Time
	w     *world
	rec   *recorder
	reg   *prometheus.Registry
	r     *job.Reconciler
	lease *keptLease
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, now: epoch, rec: &recorder{}, reg: prometheus.NewRegistry(), lease: &keptLease{}}
	b.w = newWorld(func() time.Time { return b.now })
	var err error
	b.r, err = job.New(job.Config{Now: func() time.Time { return b.now }, Parallel: 1, Metrics: b.reg}, b.w, b.rec, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) sync(key string) job.Result {
	b.t.Helper()
	b.lease.token++
	res := b.r.Reconcile(b.t.Context(), job.Request{
		Key: key, Token: b.lease.token, Attempt: 1, State: b.lease.state, Expected: b.lease.expected,
		Reader: b.w.current(), Lease: b.lease,
	})
	for _, v := range b.w.violations {
		b.t.Errorf("the API server refused: %s", v)
	}
	return res
}

// newJob is a Job as the API server stores it. Negative completions mean nil.
func newJob(w *world, parallelism, completions, limit int32) *batchv1.Job {
	uid := w.uid()
	lbl := map[string]string{"batch.kubernetes.io/controller-uid": string(uid), "batch.kubernetes.io/job-name": "work"}
	j := &batchv1.Job{
		TypeMeta:   metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "work", UID: uid, CreationTimestamp: metav1.NewTime(w.now())},
		Spec: batchv1.JobSpec{
			Parallelism: new(parallelism), BackoffLimit: new(limit),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"batch.kubernetes.io/controller-uid": string(uid)}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: lbl},
				Spec: corev1.PodSpec{
					RestartPolicy: corev1.RestartPolicyNever,
					Containers:    []corev1.Container{{Name: "main", Image: "busybox"}},
				},
			},
		},
	}
	if completions >= 0 {
		j.Spec.Completions = new(completions)
	}
	return j
}

type podOption func(*corev1.Pod)

func inPhase(phase corev1.PodPhase) podOption {
	return func(p *corev1.Pod) {
		p.Status.Phase = phase
		if phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(epoch.Add(-24 * time.Hour))}},
			}}
		}
	}
}

func isReady(p *corev1.Pod) {
	p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
}

func isDeleting(p *corev1.Pod) {
	p.DeletionTimestamp = new(metav1.NewTime(epoch.Add(-24 * time.Hour)))
	p.DeletionGracePeriodSeconds = new(int64(30))
}

func untracked(p *corev1.Pod) { p.Finalizers = nil }

func restarted(n int32) podOption {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", RestartCount: n}}
	}
}

// addPod puts a pod of a Job into the world, under a name this controller did
// not give.
func (w *world) addPod(j *batchv1.Job, opts ...podOption) *corev1.Pod {
	uid := w.uid()
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ns, Name: "pod-" + strings.TrimPrefix(string(uid), "uid-"), UID: uid,
			Labels: j.Spec.Template.Labels, Finalizers: []string{batchv1.JobTrackingFinalizer},
			CreationTimestamp: metav1.NewTime(epoch.Add(-48 * time.Hour)),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "batch/v1", Kind: "Job", Name: j.Name, UID: j.UID, Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.PodSpec{NodeName: "node-1"},
	}
	for _, o := range opts {
		o(p)
	}
	w.putPod(p, false)
	return p
}

func (w *world) addPods(j *batchv1.Job, n int, opts ...podOption) {
	for range n {
		w.addPod(j, opts...)
	}
}

// status is the Job's status as the server has it, and summary the conditions
// that are true, or false with an exclamation mark, in order.
func (b *bench) status(name string) batchv1.JobStatus { return b.w.jobs[name].Status }

func summary(st batchv1.JobStatus) string {
	var out []string
	for _, c := range st.Conditions {
		s := string(c.Type)
		if c.Status != corev1.ConditionTrue {
			s = "!" + s
		}
		if c.Reason != "" {
			s += "(" + c.Reason + ")"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func show(st batchv1.JobStatus) string {
	num := func(p *int32) string {
		if p == nil {
			return "nil"
		}
		return strconv.Itoa(int(*p))
	}
	return "a" + strconv.Itoa(int(st.Active)) + " r" + num(st.Ready) + " s" + strconv.Itoa(int(st.Succeeded)) +
		" f" + strconv.Itoa(int(st.Failed)) + " t" + num(st.Terminating)
}
