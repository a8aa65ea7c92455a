package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
)

const ns = "default"

// world is a model of the API server: it keeps Jobs and pods as a real one
// would as far as a Job controller can tell, refuses what a real one refuses, and
// keeps the whole history, so that an index may lag behind it.
type world struct {
	mu         sync.Mutex
	now        func() time.Time
	rv         int64
	uids       int
	jobs       map[string]*batchv1.Job
	pods       map[string]*corev1.Pod
	jobLog     []change
	podLog     []change
	fault      func(op, name string) fault // nil: none
	statuses   []batchv1.JobStatus         // every status written
	born       []birth                     // every pod ever created, in order
	calls      map[string]int              // by operation, failed ones included
	violations []string
}

type birth struct {
	name string
	uid  types.UID
	job  types.UID
}

type change struct {
	rv  int64
	key string
	raw []byte // nil: deleted
}

// fault is what goes wrong with a call: before it is done, or only its answer.
type fault struct {
	before, after error
}

func newWorld(now func() time.Time) *world {
	return &world{now: now, rv: 100, jobs: map[string]*batchv1.Job{}, pods: map[string]*corev1.Pod{}, calls: map[string]int{}}
}

func (w *world) violate(format string, args ...any) {
	w.violations = append(w.violations, fmt.Sprintf(format, args...))
}

func (w *world) uid() types.UID {
	w.uids++
	return types.UID("uid-" + strconv.Itoa(w.uids))
}

func (w *world) putJob(j *batchv1.Job) {
	w.rv++
	j.ResourceVersion = strconv.FormatInt(w.rv, 10)
	w.jobs[j.Name] = j
	raw, err := json.Marshal(j)
	if err != nil {
		panic(err)
	}
	w.jobLog = append(w.jobLog, change{w.rv, j.Name, raw})
}

// putPod stores a pod, or removes it when nothing holds it any more.
func (w *world) putPod(p *corev1.Pod, gone bool) {
	w.rv++
	p.ResourceVersion = strconv.FormatInt(w.rv, 10)
	if gone && len(p.Finalizers) == 0 {
		delete(w.pods, p.Name)
		w.podLog = append(w.podLog, change{w.rv, p.Name, nil})
		return
	}
	w.pods[p.Name] = p
	raw, err := json.Marshal(p)
	if err != nil {
		panic(err)
	}
	w.podLog = append(w.podLog, change{w.rv, p.Name, raw})
}

func (w *world) call(op, name string) fault {
	w.calls[op]++
	if w.fault == nil {
		return fault{}
	}
	return w.fault(op, name)
}

// vanishes says whether a deleted pod is gone at once: it is when no kubelet has
// it, or when that kubelet is done with it.
func vanishes(p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil &&
		(p.Spec.NodeName == "" || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed)
}

// The methods below are job.Writer.

func (w *world) Job(_ context.Context, _, name string) (*batchv1.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.call("get job", name); f.before != nil {
		return nil, f.before
	}
	j, ok := w.jobs[name]
	if !ok {
		return nil, kube.ErrNotFound
	}
	return j.DeepCopy(), nil
}

func (w *world) Pod(_ context.Context, _, name string) (*corev1.Pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.call("get pod", name); f.before != nil {
		return nil, f.before
	}
	p, ok := w.pods[name]
	if !ok {
		return nil, kube.ErrNotFound
	}
	return p.DeepCopy(), nil
}

func (w *world) ListPods(_ context.Context, _, selector string) ([]corev1.Pod, delta.RV, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.call("list pods", selector); f.before != nil {
		return nil, "", f.before
	}
	sel, err := labels.Parse(selector)
	if err != nil {
		return nil, "", err
	}
	var out []corev1.Pod
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		if p := w.pods[name]; sel.Matches(labels.Set(p.Labels)) {
			out = append(out, *p.DeepCopy())
		}
	}
	return out, strconv.FormatInt(w.rv, 10), nil
}

func (w *world) CreatePod(_ context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.call("create", p.Name)
	if f.before != nil {
		return nil, f.before
	}
	if _, ok := w.pods[p.Name]; ok {
		return nil, kube.ErrAlreadyExists
	}
	p = p.DeepCopy()
	p.UID, p.CreationTimestamp = w.uid(), metav1.NewTime(w.now())
	p.Status.Phase = corev1.PodPending
	w.putPod(p, false)
	w.born = append(w.born, birth{p.Name, p.UID, metav1.GetControllerOf(p).UID})
	if f.after != nil {
		return nil, f.after
	}
	return &corev1.Pod{ObjectMeta: *p.ObjectMeta.DeepCopy()}, nil
}

type podPatch struct {
	Metadata struct {
		UID             types.UID       `json:"uid"`
		ResourceVersion string          `json:"resourceVersion"`
		Finalizers      []string        `json:"finalizers"`
		Remove          []string        `json:"$deleteFromPrimitiveList/finalizers"`
		OwnerReferences []ownerRefPatch `json:"ownerReferences"`
	} `json:"metadata"`
}

type ownerRefPatch struct {
	Patch string `json:"$patch"`
	metav1.OwnerReference
}

func (w *world) PatchPod(_ context.Context, _, name string, raw []byte) (*corev1.Pod, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.call("patch", name)
	if f.before != nil {
		return nil, f.before
	}
	var patch podPatch
	if err := json.Unmarshal(raw, &patch); err != nil {
		return nil, err
	}
	old, ok := w.pods[name]
	if !ok {
		return nil, kube.ErrNotFound
	}
	m := patch.Metadata
	if m.UID != "" && m.UID != old.UID {
		return nil, fmt.Errorf("%w: %w", kube.ErrRefused, kube.ErrInvalid)
	}
	if m.ResourceVersion != "" && m.ResourceVersion != old.ResourceVersion {
		return nil, kube.ErrConflict
	}
	p := old.DeepCopy()
	for _, ref := range m.OwnerReferences {
		if ref.Patch == "delete" {
			p.OwnerReferences = slices.DeleteFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == ref.UID })
		} else {
			p.OwnerReferences = append(p.OwnerReferences, ref.OwnerReference)
		}
	}
	for _, fin := range m.Finalizers {
		if !slices.Contains(p.Finalizers, fin) {
			p.Finalizers = append(p.Finalizers, fin)
		}
	}
	p.Finalizers = slices.DeleteFunc(p.Finalizers, func(fin string) bool { return slices.Contains(m.Remove, fin) })
	answer := p.DeepCopy()
	w.putPod(p, vanishes(p))
	if w.pods[name] != nil {
		answer = p.DeepCopy()
	} else {
		answer.ResourceVersion = old.ResourceVersion // as a real server: not the deletion's
	}
	return &corev1.Pod{ObjectMeta: answer.ObjectMeta}, f.after
}

func (w *world) DeletePod(_ context.Context, _, name string, uid types.UID) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.call("delete", name)
	if f.before != nil {
		return "", f.before
	}
	old, ok := w.pods[name]
	switch {
	case !ok:
		return "", kube.ErrNotFound
	case old.UID != uid:
		return "", kube.ErrConflict
	}
	p := old.DeepCopy()
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp = new(metav1.NewTime(w.now()))
		p.DeletionGracePeriodSeconds = new(int64(0))
	}
	w.putPod(p, vanishes(p))
	if w.pods[name] == nil {
		return "", f.after
	}
	return p.ResourceVersion, f.after
}

func (w *world) DeleteJob(_ context.Context, _, name string, uid types.UID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.call("delete job", name)
	if f.before != nil {
		return f.before
	}
	switch j, ok := w.jobs[name]; {
	case !ok:
		return kube.ErrNotFound
	case j.UID != uid:
		return kube.ErrConflict
	}
	w.rv++
	delete(w.jobs, name)
	w.jobLog = append(w.jobLog, change{w.rv, name, nil})
	return f.after
}

func (w *world) PatchJobStatus(_ context.Context, _, name string, raw []byte) (*batchv1.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := w.call("status", name)
	if f.before != nil {
		return nil, f.before
	}
	var patch struct {
		Metadata struct {
			UID             types.UID `json:"uid"`
			ResourceVersion string    `json:"resourceVersion"`
		} `json:"metadata"`
		Status map[string]any `json:"status"`
	}
	if err := json.Unmarshal(raw, &patch); err != nil {
		return nil, err
	}
	old, ok := w.jobs[name]
	switch {
	case !ok:
		return nil, kube.ErrNotFound
	case patch.Metadata.UID != old.UID || patch.Metadata.ResourceVersion != old.ResourceVersion:
		return nil, kube.ErrConflict
	}
	j := old.DeepCopy()
	j.Status = batchv1.JobStatus{}
	was, err := json.Marshal(old.Status)
	if err != nil {
		return nil, err
	}
	var st map[string]any
	if err := json.Unmarshal(was, &st); err != nil {
		return nil, err
	}
	merge(st, patch.Status)
	is, err := json.Marshal(st)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(is, &j.Status); err != nil {
		return nil, err
	}
	if err := validStatus(old, j); err != nil {
		w.violate("status of %s: %v", name, err)
		return nil, fmt.Errorf("%w: %w: %w", kube.ErrRefused, kube.ErrInvalid, err)
	}
	w.putJob(j)
	w.statuses = append(w.statuses, *j.Status.DeepCopy())
	return &batchv1.Job{ObjectMeta: *j.ObjectMeta.DeepCopy()}, f.after
}

func merge(into, patch map[string]any) {
	for k, v := range patch {
		switch v := v.(type) {
		case nil:
			delete(into, k)
		case map[string]any:
			sub, ok := into[k].(map[string]any)
			if !ok {
				sub = map[string]any{}
			}
			merge(sub, v)
			into[k] = sub
		default:
			into[k] = v
		}
	}
}

// validStatus refuses the status changes that the API server refuses.
func validStatus(old, j *batchv1.Job) error {
	st := &j.Status
	has := func(j *batchv1.Job, t batchv1.JobConditionType) bool {
		return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == t && c.Status == corev1.ConditionTrue
		})
	}
	done := has(j, batchv1.JobComplete) || has(j, batchv1.JobFailed)
	un := st.UncountedTerminatedPods
	for i, a := range st.Conditions {
		for _, b := range st.Conditions[i+1:] {
			if a.Type == b.Type {
				return fmt.Errorf("condition %s twice", a.Type)
			}
		}
	}
	var completions int
	var elastic bool
	if j.Spec.CompletionMode != nil && *j.Spec.CompletionMode == batchv1.IndexedCompletion {
		completions, elastic = int(*j.Spec.Completions), *j.Spec.Completions == *j.Spec.Parallelism
	}
	completed := replica.ParseIndexes(st.CompletedIndexes, completions)
	var lost replica.Indexes
	if st.FailedIndexes != nil {
		lost = replica.ParseIndexes(*st.FailedIndexes, completions)
	}
	switch {
	case st.CompletedIndexes != completed.String() || st.FailedIndexes != nil && *st.FailedIndexes != lost.String():
		return fmt.Errorf("indexes %q, failed %v below %d", st.CompletedIndexes, st.FailedIndexes, completions)
	case completed.Common(lost) > 0:
		return fmt.Errorf("indexes %v have succeeded and %v failed", completed, lost)
	case st.Succeeded < old.Status.Succeeded && !elastic || st.Failed < old.Status.Failed:
		return fmt.Errorf("counters fell: %d/%d to %d/%d", old.Status.Succeeded, old.Status.Failed, st.Succeeded, st.Failed)
	case st.Ready != nil && *st.Ready > st.Active:
		return fmt.Errorf("ready %d above active %d", *st.Ready, st.Active)
	case has(j, batchv1.JobComplete) && !has(j, batchv1.JobSuccessCriteriaMet):
		return errors.New("complete without SuccessCriteriaMet")
	case has(j, batchv1.JobFailed) && !has(j, batchv1.JobFailureTarget):
		return errors.New("failed without FailureTarget")
	case done && (st.Active > 0 || st.Terminating != nil && *st.Terminating > 0 || un != nil && len(un.Succeeded)+len(un.Failed) > 0):
		return fmt.Errorf("finished with %d active, uncounted %v", st.Active, un)
	case has(j, batchv1.JobSuccessCriteriaMet) && has(j, batchv1.JobFailureTarget):
		return errors.New("both SuccessCriteriaMet and FailureTarget")
	case (has(old, batchv1.JobComplete) || has(old, batchv1.JobFailed)) && !done:
		return errors.New("finished Job not finished any more")
	}
	return nil
}

// view is the index: the world as of one resource version of each collection. It
// is job.Reader.
type view struct {
	w          *world
	jobs, pods int64
}

func (w *world) current() *view {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &view{w, w.rv, w.rv}
}

func at(log []change, rv int64) map[string][]byte {
	m := map[string][]byte{}
	for _, c := range log {
		if c.rv > rv {
			break
		}
		if c.raw == nil {
			delete(m, c.key)
		} else {
			m[c.key] = c.raw
		}
	}
	return m
}

func revision(rv int64) delta.Revision {
	return delta.Revision{Epoch: 1, RV: strconv.FormatInt(rv, 10)}
}

func (v *view) Job(_ context.Context, _, name string) ([]byte, delta.Revision, error) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	return at(v.w.jobLog, v.jobs)[name], revision(v.jobs), nil
}

func (v *view) selectPods(match func(*corev1.Pod) bool) ([]string, [][]byte) {
	v.w.mu.Lock()
	defer v.w.mu.Unlock()
	all := at(v.w.podLog, v.pods)
	var names []string
	var raws [][]byte
	for _, name := range slices.Sorted(maps.Keys(all)) {
		var p corev1.Pod
		if err := json.Unmarshal(all[name], &p); err != nil {
			panic(err)
		}
		if match(&p) {
			names, raws = append(names, name), append(raws, all[name])
		}
	}
	return names, raws
}

func (v *view) OwnedPods(_ context.Context, _ string, uid types.UID) ([][]byte, delta.Revision, error) {
	_, raws := v.selectPods(func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == uid })
	})
	return raws, revision(v.pods), nil
}

func (v *view) PodKeys(_ context.Context, _, selector string) ([]string, delta.Revision, error) {
	sel, err := labels.Parse(selector)
	if err != nil {
		return nil, delta.Revision{}, err
	}
	names, _ := v.selectPods(func(p *corev1.Pod) bool { return sel.Matches(labels.Set(p.Labels)) })
	return names, revision(v.pods), nil
}

func (v *view) Pods(_ context.Context, _ string, names []string) ([][]byte, delta.Revision, error) {
	_, raws := v.selectPods(func(p *corev1.Pod) bool { return slices.Contains(names, p.Name) })
	return raws, revision(v.pods), nil
}

// recorder is a [kube.EventRecorder].
type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) Event(_ kube.Involved, kind, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, kind+" "+reason+" "+message)
}

type podUID = types.UID

func metaNow() metav1.Time { return metav1.NewTime(time.Now()) }

func decode(raw []byte) *corev1.Pod {
	if raw == nil {
		return nil
	}
	var p corev1.Pod
	if err := json.Unmarshal(raw, &p); err != nil {
		panic(err)
	}
	return &p
}

// frozen is a view that answers from memory, for benchmarks.
type frozen struct {
	*view
	owned [][]byte
	names []string
}

func (f *frozen) freeze() {
	f.names, f.owned = f.selectPods(func(*corev1.Pod) bool { return true })
}

func (f *frozen) OwnedPods(ctx context.Context, n string, uid types.UID) ([][]byte, delta.Revision, error) {
	if f.owned == nil {
		return f.view.OwnedPods(ctx, n, uid)
	}
	return f.owned, revision(f.pods), nil
}

func (f *frozen) PodKeys(ctx context.Context, n, sel string) ([]string, delta.Revision, error) {
	if f.names == nil {
		return f.view.PodKeys(ctx, n, sel)
	}
	return f.names, revision(f.pods), nil
}
