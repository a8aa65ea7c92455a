package job_test

import (
	"context"
	"fmt"
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

// addIndexed puts pods of a Job into the world, pod-0 and so on, one for each word:
// index:phase:option..., with "-" for no index.
func (w *world) addIndexed(t *testing.T, j *batchv1.Job, words string) []*corev1.Pod {
	t.Helper()
	var pods []*corev1.Pod
	for i, word := range strings.Fields(words) {
		parts := strings.Split(word, ":")
		pods = append(pods, w.addPod(j, func(p *corev1.Pod) {
			p.Name = "pod-" + strconv.Itoa(i)
			p.Annotations = map[string]string{}
			if parts[0] != "-" {
				p.Annotations[batchv1.JobCompletionIndexAnnotation] = parts[0]
			}
			inPhase(map[string]corev1.PodPhase{
				"pending": corev1.PodPending, "running": corev1.PodRunning, "ok": corev1.PodSucceeded, "failed": corev1.PodFailed,
			}[parts[1]])(p)
			for _, option := range parts[2:] {
				indexedOption(t, p, option)
			}
		}))
	}
	return pods
}

func indexedOption(t *testing.T, p *corev1.Pod, option string) {
	t.Helper()
	name, value, _ := strings.Cut(option, "=")
	switch name {
	case "count":
		p.Annotations[batchv1.JobIndexFailureCountAnnotation] = value
	case "ignored":
		p.Annotations[ignoredCount] = value
	case "exit":
		code, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		p.Status.ContainerStatuses[0].State.Terminated.ExitCode = int32(code)
	case "age":
		age, err := time.ParseDuration(value)
		if err != nil {
			t.Fatal(err)
		}
		p.Status.ContainerStatuses[0].State.Terminated.FinishedAt = metav1.NewTime(epoch.Add(-age))
	case "ready":
		isReady(p)
	case "disrupted":
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
	case "deleting":
		isDeleting(p)
	case "untracked":
		untracked(p)
	default:
		t.Fatalf("pod option %q", option)
	}
}

const ignoredCount = "batch.kubernetes.io/job-index-ignored-failure-count"

// newIndexedJob is one whose pods stand for the indexes below completions.
func newIndexedJob(w *world, parallelism, completions, limit int32) *batchv1.Job {
	j := newJob(w, parallelism, completions, limit)
	j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	return j
}

// bornIndexes are the indexes of all pods that were created, in order, by their names.
func (b *bench) bornIndexes() string {
	var all []int
	for _, p := range b.w.born {
		ix, err := strconv.Atoi(strings.Split(p.name, "-")[1]) // work-<index>-…
		if err != nil {
			b.t.Errorf("pod %s: %v", p.name, err)
		}
		all = append(all, ix)
	}
	slices.Sort(all)
	return strings.Trim(fmt.Sprint(all), "[]")
}

// showIndexes are the indexes of a status.
func showIndexes(st batchv1.JobStatus) string {
	out := "ok " + st.CompletedIndexes
	if st.FailedIndexes != nil {
		out += " failed " + *st.FailedIndexes
	}
	return strings.Join(strings.Fields(out), " ")
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
