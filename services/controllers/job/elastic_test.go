package job_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// An elastic indexed Job has as many completions as parallelism; they are changed together.
func TestAnElasticIndexedJob(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.w.putJob(newIndexedJob(b.w, 4, 4, 6))
	scale := func(n int32) {
		j := b.w.jobs["work"].DeepCopy()
		j.Spec.Completions, j.Spec.Parallelism = new(n), new(n)
		b.w.putJob(j)
	}
	end := func(index string) {
		for _, p := range b.w.pods {
			if p.Annotations[batchv1.JobCompletionIndexAnnotation] == index && p.Status.Phase == corev1.PodPending {
				p = p.DeepCopy()
				inPhase(corev1.PodSucceeded)(p)
				b.w.putPod(p, false)
			}
		}
	}
	for i, step := range []struct {
		do                 func()
		born               string
		want, indexes, end string
	}{
		{func() {}, "0 1 2 3", "a4 r0 s0 f0 t0", "ok", ""},
		{func() { end("0"); end("3") }, "0 1 2 3", "a2 r0 s2 f0 t0", "ok 0,3", ""},
		{func() { scale(2) }, "0 1 2 3", "a1 r0 s1 f0 t0", "ok 0", ""},
		{func() { scale(5) }, "0 1 2 2 3 3 4", "a4 r0 s1 f0 t0", "ok 0", ""},
		{func() { scale(2) }, "0 1 2 2 3 3 4", "a1 r0 s1 f0 t0", "ok 0", ""},
		{func() { end("1") }, "0 1 2 2 3 3 4", "a0 r0 s2 f0 t0", "ok 0,1", completed},
	} {
		step.do()
		for range 2 { // the second sees what the first deleted and may make pods
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatalf("step %d: %v", i, res.Err)
			}
		}
		st := b.status("work")
		if show(st) != step.want || showIndexes(st) != step.indexes || summary(st) != step.end {
			t.Errorf("step %d: %s, %s, %q; want %s, %s, %q", i, show(st), showIndexes(st), summary(st), step.want, step.indexes, step.end)
		}
		if got := b.bornIndexes(); got != step.born {
			t.Errorf("step %d: pods made for %s, want %s", i, got, step.born)
		}
	}
}

// Whatever users and kubelets do, every index below completions has one pod at most, others none,
// and in the end all have succeeded.
func TestElasticIndexedJobsAtRandom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a test's seed
		b := newBench(t)
		j := newIndexedJob(b.w, 4, 4, 1000)
		if seed%2 == 1 {
			perIndexOf(1000)(j)
		}
		b.w.putJob(j)
		spec := func(change func(*batchv1.JobSpec)) {
			j := b.w.jobs["work"].DeepCopy()
			change(&j.Spec)
			b.w.putJob(j)
		}
		scale := func(n int32) { spec(func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = new(n), new(n) }) }
		end := func(phase corev1.PodPhase, all bool) {
			for _, name := range slices.Sorted(maps.Keys(b.w.pods)) {
				if p := b.w.pods[name].DeepCopy(); p.Status.Phase == corev1.PodPending && (all || rng.IntN(3) == 0) {
					inPhase(phase)(p)
					b.w.putPod(p, vanishes(p))
				}
			}
		}
		sync := func() {
			res := b.sync("default/work")
			if res.Err != nil {
				t.Fatalf("seed %d: %v", seed, res.Err)
			}
			b.oneActivePodAnIndex(seed)
			b.now = b.now.Add(res.After)
		}
		for range 60 {
			switch rng.IntN(6) {
			case 0:
				scale(1 + rng.Int32N(6))
			case 1:
				spec(func(s *batchv1.JobSpec) { s.Suspend = new(rng.IntN(2) == 0) })
			case 2, 3:
				end(corev1.PodFailed, false)
			case 4:
				end(corev1.PodSucceeded, false)
			case 5:
				b.w.kubelet()
			}
			sync()
		}
		if summaryHas(b.status("work"), "SuccessCriteriaMet") { // it has enough
			continue
		}
		spec(func(s *batchv1.JobSpec) { s.Suspend = new(false) })
		scale(5)
		for range 20 {
			end(corev1.PodSucceeded, true)
			b.w.kubelet()
			sync()
		}
		if st := b.status("work"); showIndexes(st) != strings.TrimSpace("ok 0-4 "+strings.Repeat("failed", int(seed%2))) || !summaryHas(st, completed) {
			t.Fatalf("seed %d: %s, %s, %s", seed, show(st), showIndexes(st), summary(st))
		}
	}
}

func summaryHas(st batchv1.JobStatus, text string) bool { return strings.Contains(summary(st), text) }

func (b *bench) oneActivePodAnIndex(seed uint64) {
	b.t.Helper()
	seen := map[string]bool{}
	for _, p := range b.w.pods {
		index := p.Annotations[batchv1.JobCompletionIndexAnnotation]
		if p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
			continue
		}
		if ix, err := strconv.Atoi(index); err != nil || ix >= int(*b.w.jobs["work"].Spec.Completions) || seen[index] {
			b.t.Fatalf("seed %d: an active pod for index %s, another for it %v; %s", seed, index, seen[index], show(b.status("work")))
		}
		seen[index] = true
	}
	if n := int(b.status("work").Active); n != len(seen) {
		b.t.Fatalf("seed %d: %d active pods, the status has %d", seed, len(seen), n)
	}
}

func TestAnIndexedJobIsSuspendedAndResumed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.w.putJob(newIndexedJob(b.w, 2, 3, 6))
	set := func(suspend bool) {
		j := b.w.jobs["work"].DeepCopy()
		j.Spec.Suspend = &suspend
		b.w.putJob(j)
		for range 2 {
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
		}
	}
	set(false)
	set(true)
	if st := b.status("work"); show(st) != "a0 r0 s0 f0 t0" || summary(st) != "Suspended(JobSuspended)" || st.StartTime != nil || len(b.w.pods) != 0 {
		t.Errorf("suspended: %s, %s, started %v, %d pods", show(st), summary(st), st.StartTime, len(b.w.pods))
	}
	set(false)
	if st := b.status("work"); show(st) != "a2 r0 s0 f0 t0" || summary(st) != "!Suspended(JobResumed)" || b.podIndexes() != "0 1" {
		t.Errorf("resumed: %s, %s, pods for %s", show(st), summary(st), b.podIndexes())
	}
}

// podIndexes are the indexes of the pods that there are, in order.
func (b *bench) podIndexes() string {
	var all []string
	for _, p := range b.w.pods {
		all = append(all, p.Annotations[batchv1.JobCompletionIndexAnnotation])
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// What upstream's checkIndexedJobPods and TestPodGenerateNameWithIndex look at.
func TestThePodsOfAnIndexedJob(t *testing.T) {
	t.Parallel()
	const own = "JOB_COMPLETION_INDEX"
	for _, tc := range []struct{ name, job, prefix string }{
		{"short job name", "indexed-job", "indexed-job-1-"},
		{"job name with index suffix exceeds what a pod's name may have", strings.Repeat("h", 55), strings.Repeat("h", 30)},
		{"job name exceeds what a pod's name may have", strings.Repeat("h", 63), strings.Repeat("h", 30)},
	} {
		b := newBench(t)
		j := newIndexedJob(b.w, 2, 2, 6)
		j.Name = tc.job
		j.Spec.BackoffLimitPerIndex = new(int32(1))
		spec := &j.Spec.Template.Spec
		spec.Hostname = "of the user"
		spec.InitContainers = []corev1.Container{{Name: "init"}}
		spec.Containers = append(spec.Containers, corev1.Container{Name: "own", Env: []corev1.EnvVar{{Name: own, Value: "user"}}})
		b.w.putJob(j)
		if res := b.sync("default/" + tc.job); res.Err != nil {
			t.Fatal(res.Err)
		}
		for ix := range 2 {
			p := b.w.pods[b.w.born[ix].name]
			text := strconv.Itoa(ix)
			if ix == 1 && !strings.HasPrefix(p.Name, tc.prefix) || len(p.Name) > 63 {
				t.Errorf("%s: name %s", tc.name, p.Name)
			}
			if p.Spec.Hostname != tc.job+"-"+text || p.Labels[batchv1.JobCompletionIndexAnnotation] != text || p.Annotations[batchv1.JobCompletionIndexAnnotation] != text {
				t.Errorf("%s: host name %s, labels %v, annotations %v", tc.name, p.Spec.Hostname, p.Labels, p.Annotations)
			}
			if got, ok := p.Annotations[batchv1.JobIndexFailureCountAnnotation]; got != "0" || !ok {
				t.Errorf("%s: annotations %v, want a failure count of 0", tc.name, p.Annotations)
			}
			if _, ok := p.Annotations[ignoredCount]; ok {
				t.Errorf("%s: annotations %v, want no count of ignored failures", tc.name, p.Annotations)
			}
			for _, c := range []corev1.Container{p.Spec.InitContainers[0], p.Spec.Containers[0]} {
				if len(c.Env) != 1 || c.Env[0].Name != own || c.Env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
					t.Errorf("%s: environment of container %s: %v", tc.name, c.Name, c.Env)
				}
			}
			if c := p.Spec.Containers[1]; len(c.Env) != 1 || c.Env[0].Value != "user" {
				t.Errorf("%s: the user's environment became %v", tc.name, c.Env)
			}
		}
		if got := j.Spec.Template.Spec.Containers[0].Env; len(got) != 0 {
			t.Errorf("%s: the Job's template became %v", tc.name, got)
		}
	}
}
