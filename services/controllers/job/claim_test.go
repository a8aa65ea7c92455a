package job_test

import (
	"errors"
	"fmt"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

func ownerless(p *corev1.Pod) { p.OwnerReferences = nil }

func ownedBySomebody(kind, version, name string) podOption {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: kind, Name: name, UID: "other", Controller: new(true)}}
	}
}

func notControlled(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }

func relabelled(p *corev1.Pod) {
	p.Labels = map[string]string{"batch.kubernetes.io/job-name": "work", "x": "y"}
}

// TestGetPodsForJob and TestClaimPods.
func TestClaims(t *testing.T) {
	t.Parallel()
	deleting := func(j *batchv1.Job) { j.DeletionTimestamp = new(metav1.NewTime(epoch)) }
	tests := []struct {
		name    string
		job     func(*batchv1.Job)
		live    func(*batchv1.Job) // what only a live read shows
		pods    [][]podOption
		active  int32
		patches int
		wantErr bool
	}{
		{name: "match", pods: [][]podOption{{}, {}}, active: 2},
		{name: "adopt", pods: [][]podOption{{}, {ownerless, untracked}}, active: 2, patches: 1},
		{name: "do not adopt when deleting", job: deleting, pods: [][]podOption{{untracked}, {ownerless, untracked}}, active: 1},
		{
			name: "do not adopt when a live read shows the deletion", live: deleting,
			pods: [][]podOption{{}, {ownerless, untracked}}, wantErr: true,
		},
		{
			name: "do not adopt when a live read shows another UID", live: func(j *batchv1.Job) { j.UID = "another" },
			pods: [][]podOption{{}, {ownerless, untracked}}, wantErr: true,
		},
		{name: "release", pods: [][]podOption{{}, {relabelled}}, active: 1, patches: 1},
		{name: "do not release when deleting", job: deleting, pods: [][]podOption{{untracked}, {relabelled, untracked}}, active: 1},
		{name: "somebody else's pod", pods: [][]podOption{{}, {ownedBySomebody("Job", "batch/v1", "else")}}, active: 1},
		{name: "a pod being deleted is not adopted", pods: [][]podOption{{}, {ownerless, untracked, isDeleting}}, active: 1},
		{name: "no match, no owner", pods: [][]podOption{{}, {ownerless, untracked, relabelled}}, active: 1},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 2, 5, 6)
			j.Spec.Parallelism = new(int32(len(tc.pods)))
			if tc.job != nil {
				tc.job(j)
			}
			b.w.putJob(j)
			for _, o := range tc.pods {
				b.w.addPod(j, append([]podOption{inPhase(corev1.PodRunning)}, o...)...)
			}
			b.w.fault = func(op, _ string) fault { // only claims are looked at
				if op == "create" {
					return fault{before: fmt.Errorf("%w: %w", kube.ErrRefused, kube.ErrTerminating)}
				}
				return fault{}
			}
			b.lease.state = fmt.Appendf(nil, `{"u":%q}`, j.UID)
			v := b.w.current()
			if tc.live != nil {
				fresh := j.DeepCopy()
				tc.live(fresh)
				b.w.putJob(fresh)
			}
			res := b.r.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 1, Attempt: 1, State: b.lease.state, Reader: v, Lease: b.lease})
			if (res.Err != nil) != tc.wantErr {
				t.Fatalf("sync error = %v", res.Err)
			}
			if got := b.w.calls["patch"]; got != tc.patches {
				t.Errorf("%d patches, want %d", got, tc.patches)
			}
			if tc.wantErr {
				return
			}
			if got := b.status("work").Active; got != tc.active {
				t.Errorf("%d active, want %d", got, tc.active)
			}
			for _, p := range b.w.pods {
				owned := len(p.OwnerReferences) == 1 && p.OwnerReferences[0].UID == j.UID
				if tc.name == "adopt" && (!owned || len(p.Finalizers) != 1) {
					t.Errorf("pod %s: owners %v, finalizers %v", p.Name, p.OwnerReferences, p.Finalizers)
				}
				if tc.name == "release" && p.Labels["x"] == "y" && (owned || len(p.Finalizers) != 0) {
					t.Errorf("released pod: owners %v, finalizers %v", p.OwnerReferences, p.Finalizers)
				}
			}
		})
	}
}

// TestSyncOrphanPod: which pods lose their finalizer when the Job's key
// is synced.
func TestOrphans(t *testing.T) {
	t.Parallel()
	done := func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{
			{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue}, {Type: batchv1.JobComplete, Status: corev1.ConditionTrue},
		}
	}
	tests := []struct {
		name     string
		job      func(*batchv1.Job)
		gone     bool
		pod      []podOption
		stripped bool
	}{
		{name: "job gone", gone: true, stripped: true},
		{name: "job gone, pod being deleted", gone: true, pod: []podOption{isDeleting}, stripped: true},
		{name: "job gone, references removed by the garbage collector", gone: true, pod: []podOption{ownerless}, stripped: true},
		{name: "job finished", job: done, stripped: true},
		{name: "job live", stripped: false},
		{name: "job live, pod of a Job of that name before", pod: []podOption{ownedBySomebody("Job", "batch/v1", "work")}, stripped: true},
		{name: "job live, pod without a controller that it may not adopt", pod: []podOption{ownerless, isDeleting}, stripped: true},
		{name: "job live, that owns the pod and does not control it", pod: []podOption{isDeleting, notControlled}, stripped: true},
		{name: "a custom resource that owns the pod and does not control it", gone: true, pod: []podOption{ownedBySomebody("Job", "acme.io/v1", "work"), notControlled}, stripped: true},
		{name: "a custom resource of kind Job", gone: true, pod: []podOption{ownedBySomebody("Job", "acme.io/v1", "work")}},
		{name: "another controller", gone: true, pod: []podOption{ownedBySomebody("Workflow", "acme.io/v1", "work")}},
		{
			name: "job managed by somebody else", job: func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/c"); done(j) },
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			if tc.job != nil {
				tc.job(j)
			}
			if !tc.gone {
				b.w.putJob(j)
			}
			p := b.w.addPod(j, append([]podOption{inPhase(corev1.PodRunning)}, tc.pod...)...)
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatal(res.Err)
			}
			if now, ok := b.w.pods[p.Name]; !ok || (len(now.Finalizers) == 0) != tc.stripped {
				t.Errorf("pod %v, want stripped: %v", now, tc.stripped)
			}
		})
	}
	for name, set := range map[string]func(*batchv1.Job){
		"managed by somebody else": func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/c") },
		"not supported":            func(j *batchv1.Job) { j.Spec.CompletionMode = new(unknownMode) },
	} {
		for _, manual := range []bool{false, true} {
			t.Run(fmt.Sprintf("a Job %s, with a selector of its own %v, is seen, then gone", name, manual), func(t *testing.T) {
				t.Parallel()
				goneAfterItWasSeen(t, set, manual)
			})
		}
		t.Run("a Job "+name+", pod of a Job of that name before", func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			set(j)
			b.w.putJob(j)
			old := b.w.addPod(j, inPhase(corev1.PodRunning), ownedBySomebody("Job", "batch/v1", "work"))
			own := b.w.addPod(j, inPhase(corev1.PodRunning))
			b.w.fault = func(op, _ string) fault { return fault{before: errors.New("timeout")} }
			if res := b.sync("default/work"); res.Settle != job.RateLimited {
				t.Errorf("with an API server that is away it settled as %v, %v", res.Settle, res.Err)
			}
			b.w.fault = nil
			if res := b.sync("default/work"); res.Err != nil || len(b.w.pods[old.Name].Finalizers) != 0 || len(b.w.pods[own.Name].Finalizers) != 1 {
				t.Errorf("%v; the old Job's pod keeps %v, its own %v", res.Err, b.w.pods[old.Name].Finalizers, b.w.pods[own.Name].Finalizers)
			}
		})
	}
	t.Run("a Job that is being deleted", func(t *testing.T) {
		t.Parallel()
		for _, c := range []struct {
			name     string
			set      func(*batchv1.Job)
			stripped bool
		}{
			{"not supported", func(j *batchv1.Job) { j.Spec.CompletionMode = new(unknownMode) }, true},
			{"managed by somebody else, who strips them", func(j *batchv1.Job) { j.Spec.ManagedBy = new("acme.io/c") }, false},
		} {
			b := newBench(t)
			j := newJob(b.w, 1, 1, 6)
			c.set(j)
			b.w.putJob(j)
			p := b.w.addPod(j, inPhase(corev1.PodRunning))
			if b.sync("default/work"); len(b.w.pods[p.Name].Finalizers) != 1 {
				t.Errorf("%s: stripped before it was deleted", c.name)
			}
			v := b.w.current()
			deleted := j.DeepCopy()
			deleted.DeletionTimestamp = new(metav1.NewTime(epoch))
			b.w.putJob(deleted) // waits for its pods
			b.w.putJob(j.DeepCopy())
			if res := b.r.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 9, Attempt: 1, Reader: &view{b.w, v.jobs + 1, v.pods}, Lease: b.lease}); c.stripped && res.Err == nil || len(b.w.pods[p.Name].Finalizers) != 1 {
				t.Errorf("%s: %v, and a deletion that a live read does not show stripped a pod", c.name, res.Err)
			}
			b.w.putJob(deleted)
			if res := b.sync("default/work"); res.Err != nil || (len(b.w.pods[p.Name].Finalizers) == 0) != c.stripped {
				t.Errorf("%s: %v, finalizers %v", c.name, res.Err, b.w.pods[p.Name].Finalizers)
			}
			if len(b.w.statuses) != 0 {
				t.Errorf("%s: %d status writes", c.name, len(b.w.statuses))
			}
		}
	})
	t.Run("an index that does not show a Job yet strips nothing", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		v := b.w.current()
		j := newJob(b.w, 1, 1, 6)
		b.w.putJob(j)
		b.w.addPod(j)
		v.pods = b.w.rv
		res := b.r.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 1, Attempt: 1, Reader: v, Lease: b.lease})
		if res.Settle != job.RateLimited || b.w.calls["patch"] != 0 {
			t.Errorf("settled %v, %d patches", res.Settle, b.w.calls["patch"])
		}
	})
}

// goneAfterItWasSeen looks at a Job that is not synced, deletes it, and looks again.
func goneAfterItWasSeen(t *testing.T, set func(*batchv1.Job), manual bool) {
	b := newBench(t)
	j := newJob(b.w, 1, 1, 6)
	set(j)
	if manual {
		j.Spec.ManualSelector = new(true)
		j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
		j.Spec.Template.Labels = map[string]string{"app": "x"} // by which nobody finds the Job's name
	}
	b.w.putJob(j)
	p := b.w.addPod(j, inPhase(corev1.PodRunning))
	if res := b.sync("default/work"); res.Err != nil || len(b.w.pods[p.Name].Finalizers) != 1 {
		t.Fatalf("%v; finalizers %v of a pod whose Job is there", res.Err, b.w.pods[p.Name].Finalizers)
	}
	if err := b.w.DeleteJob(t.Context(), ns, "work", j.UID); err != nil {
		t.Fatal(err)
	}
	if res := b.sync("default/work"); res.Err != nil || len(b.w.pods[p.Name].Finalizers) != 0 {
		t.Errorf("%v; finalizers %v of a pod whose Job is gone", res.Err, b.w.pods[p.Name].Finalizers)
	}
	if len(b.lease.state) != 0 {
		t.Errorf("the queue keeps %s for a Job that is gone", b.lease.state)
	}
}

// A selector without requirements selects every pod, as the API server has it.
func TestASelectorWithoutRequirementsSelectsEveryPod(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{false, true} {
		b := newBench(t)
		j := newJob(b.w, 2, 2, 6)
		j.Spec.ManualSelector, j.Spec.Selector = new(true), &metav1.LabelSelector{}
		b.w.putJob(j)
		free := b.w.addPod(j, ownerless, untracked, func(p *corev1.Pod) { p.Labels = nil })
		if live {
			b.lease.state = []byte(`{"x":true}`)
		}
		for range 3 {
			if res := b.sync("default/work"); res.Err != nil {
				t.Fatalf("live %v: %v", live, res.Err)
			}
		}
		if got := b.w.pods[free.Name]; len(got.OwnerReferences) != 1 || len(b.w.born) != 1 || b.status("work").Active != 2 {
			t.Errorf("live %v: the free pod is owned by %v, %d pods made, status %s; want it adopted and one made", live, got.OwnerReferences, len(b.w.born), show(b.status("work")))
		}
	}
}

// kubernetes/kubernetes#131917: a Job deleted and recreated at once starts
// without waiting, and nothing of the old one is left behind.
func TestImmediateJobRecreation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.w.putJob(newJob(b.w, 2, 2, 0))
	b.sync("default/work")
	b.lease.expected.Deletions = []string{"uid-never-seen"}
	for _, p := range b.w.pods { // failures of the old one are not the new one's
		p = p.DeepCopy()
		inPhase(corev1.PodFailed)(p)
		b.w.putPod(p, false)
	}
	fresh := newJob(b.w, 2, 2, 0)
	b.w.putJob(fresh)
	for range 2 {
		if res := b.sync("default/work"); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	if got := show(b.status("work")); got != "a2 r0 s0 f0 t0" || len(b.w.born) != 4 {
		t.Errorf("%s, %d pods born", got, len(b.w.born))
	}
	for _, p := range b.w.pods {
		if p.OwnerReferences[0].UID != fresh.UID && len(p.Finalizers) > 0 {
			t.Errorf("pod %s of the old Job keeps its finalizer", p.Name)
		}
	}
}
