package job

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job/policy"
)

// pods reads the pods that are or may become the Job's, from the index, or live
// when the index cannot be trusted: an earlier holder did not say what it wrote,
// the outcome of a write is unknown, the index is older than the last live list,
// or it shows pods as counted of which the Job knows nothing.
func (s *run) pods(ctx context.Context, j *batchv1.Job) (*batchv1.Job, []*corev1.Pod, error) {
	selector, err := candidates(j)
	if err != nil {
		return nil, nil, err
	}
	pods, rev, err := s.indexedPods(ctx, j.UID, selector)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case s.live: // and so was the Job read
	case s.below(rev), behind(j, pods):
		s.live = true
		if j, err = s.sameJob(ctx, j.UID); err != nil {
			return nil, nil, err
		}
	default:
		return j, pods, nil
	}
	if pods, err = s.livePods(ctx, j, pods); err != nil {
		return nil, nil, err
	}
	s.unsure = false
	return j, pods, nil
}

// below reports whether an index is older than the last live list.
func (s *run) below(rev delta.Revision) bool {
	if s.memory.Floor == "" {
		return false
	}
	if rev.Compare(delta.Revision{Epoch: s.memory.FloorEpoch, RV: s.memory.Floor}) < 0 {
		return true
	}
	s.memory.Floor, s.memory.FloorEpoch = "", 0
	return false
}

// behind reports whether more of a Job's pods have ended and lost their finalizer
// than its status accounts for. The status is always written first, so this Job
// is older than its pods: a barrier was lost with the queue's store, or somebody
// else counts too.
func behind(j *batchv1.Job, pods []*corev1.Pod) bool {
	st := &j.Status
	n := int(st.Succeeded) + int(st.Failed)
	if u := st.UncountedTerminatedPods; u != nil {
		n += len(u.Succeeded) + len(u.Failed)
	}
	var completed replica.Indexes
	if indexed(j) {
		n -= int(st.Succeeded)
		completed = completedIndexesOf(j, st)
	}
	for _, p := range pods {
		// One that is being deleted has lost its finalizer to that, maybe uncounted.
		if !ownedBy(j, p) || !terminal(p) || tracked(p) || p.DeletionTimestamp != nil {
			continue
		}
		switch {
		case indexed(j) && indexOf(p, int(*j.Spec.Completions)) == replica.NoIndex: // counts as nothing
		case indexed(j) && p.Status.Phase == corev1.PodSucceeded:
			if !completed.Has(indexOf(p, int(*j.Spec.Completions))) {
				return true
			}
		case p.Status.Phase == corev1.PodFailed && !policy.OfFailure(j.Spec.PodFailurePolicy, p).Counts():
		default:
			n--
		}
	}
	return n < 0
}

// candidates selects pods the Job may adopt or has to clean up: those that carry
// its name, or those a selector chosen by the user matches.
func candidates(j *batchv1.Job) (string, error) {
	if j.Spec.ManualSelector != nil && *j.Spec.ManualSelector {
		return selectorOf(j)
	}
	return named(j.Name), nil
}

// selectorOf is a Job's selector as the API server reads it. One without
// requirements is empty, and selects every pod.
func selectorOf(j *batchv1.Job) (string, error) {
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return "", fmt.Errorf("selector of job: %w", err)
	}
	return selector.String(), nil
}

// nobody selects no pod.
const nobody = "<nobody>"

func named(job string) string {
	if len(job) > 63 { // not a label value: no pod can carry it
		return nobody
	}
	return batchv1.JobNameLabel + "=" + job
}

// indexedPods are the pods owned by uid and those the selector matches.
func (s *run) indexedPods(ctx context.Context, uid types.UID, selector string) ([]*corev1.Pod, delta.Revision, error) {
	var raw [][]byte
	var err error
	rev := delta.Revision{}
	if uid != "" {
		if raw, rev, err = s.req.Reader.OwnedPods(ctx, s.namespace, uid); err != nil {
			return nil, rev, fmt.Errorf("read pods: %w", err)
		}
	}
	pods, err := decodePods(raw)
	if err != nil {
		return nil, rev, err
	}
	if selector != nobody {
		have := map[string]bool{}
		for _, p := range pods {
			have[p.Name] = true
		}
		names, at, err := s.req.Reader.PodKeys(ctx, s.namespace, selector)
		if err != nil {
			return nil, rev, fmt.Errorf("read pod keys: %w", err)
		}
		rev = earlier(rev, at)
		names = without(names, have)
		if len(names) > 0 {
			raw, at, err := s.req.Reader.Pods(ctx, s.namespace, names)
			if err != nil {
				return nil, rev, fmt.Errorf("read pods: %w", err)
			}
			rev = earlier(rev, at)
			more, err := decodePods(raw)
			if err != nil {
				return nil, rev, err
			}
			pods = append(pods, more...)
		}
	}
	s.read.Pods = earlier(s.read.Pods, rev)
	return pods, rev, nil
}

func earlier(a, b delta.Revision) delta.Revision {
	if a.IsZero() || !b.IsZero() && b.Compare(a) < 0 {
		return b
	}
	return a
}

func without(names []string, have map[string]bool) []string {
	var out []string
	for _, n := range names {
		if !have[n] {
			out = append(out, n)
		}
	}
	return out
}

// livePods reads the same pods from the API server. Pods that only the index
// knows are read one by one: gone, or not selected any more.
func (s *run) livePods(ctx context.Context, j *batchv1.Job, indexed []*corev1.Pod) ([]*corev1.Pod, error) {
	selector, err := selectorOf(j)
	if err != nil {
		return nil, err
	}
	list, rv, err := s.api.ListPods(ctx, j.Namespace, selector)
	if err != nil {
		return nil, fmt.Errorf("list pods live: %w", err)
	}
	if epoch := s.read.Pods.Epoch; epoch != s.memory.FloorEpoch {
		s.memory.Floor, s.memory.FloorEpoch = "", epoch // versions of two epochs cannot be compared
	}
	s.memory.Floor = delta.MaxRV(s.memory.Floor, rv)
	pods := make([]*corev1.Pod, 0, len(list))
	have := map[string]bool{}
	for i := range list {
		have[list[i].Name] = true
		pods = append(pods, &list[i])
		s.sawPod(list[i].ResourceVersion)
	}
	for _, p := range indexed {
		if have[p.Name] {
			continue
		}
		switch fresh, err := s.api.Pod(ctx, p.Namespace, p.Name); {
		case kube.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read pod live: %w", err)
		default:
			pods = append(pods, fresh)
			s.sawPod(fresh.ResourceVersion)
		}
	}
	return pods, nil
}

// claim adopts and releases pods, and returns those that are the Job's. Along the
// way the tracking finalizer is taken off pods whose controller is gone.
func (s *run) claim(ctx context.Context, j *batchv1.Job, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	selector, err := metav1.LabelSelectorAsSelector(j.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("selector of job: %w", err)
	}
	var live *batchv1.Job
	stillThere := func() error { // one live read for all
		if live == nil {
			if live, err = s.sameJob(ctx, j.UID); err != nil {
				return err
			}
		}
		if live.DeletionTimestamp != nil {
			return fmt.Errorf("job %s/%s has just been deleted", j.Namespace, j.Name)
		}
		return nil
	}
	var claimed []*corev1.Pod
	for _, p := range pods {
		ref := metav1.GetControllerOfNoCopy(p)
		matches := selector.Matches(labels.Set(p.Labels))
		switch {
		case ref != nil && ref.UID == j.UID && matches:
			claimed = append(claimed, p)
		case ref != nil && ref.UID == j.UID:
			if j.DeletionTimestamp == nil {
				err = s.release(ctx, j, p)
			}
		case ref != nil:
			if isJobRef(ref) && ref.Name == j.Name && tracked(p) {
				if err = stillThere(); err == nil {
					_, err = s.strip(ctx, p)
				}
			}
		case matches && p.DeletionTimestamp == nil && j.DeletionTimestamp == nil:
			var adopted *corev1.Pod
			if err = stillThere(); err == nil {
				adopted, err = s.adopt(ctx, j, p)
			}
			if adopted != nil {
				claimed = append(claimed, adopted)
			}
		case tracked(p):
			_, err = s.strip(ctx, p)
		}
		if err != nil {
			return nil, err
		}
	}
	return claimed, nil
}

func isJobRef(ref *metav1.OwnerReference) bool {
	return ref.Kind == "Job" && ref.APIVersion == batchv1.SchemeGroupVersion.String()
}

func (s *run) adopt(ctx context.Context, j *batchv1.Job, p *corev1.Pod) (*corev1.Pod, error) {
	got, err := s.patchPod(ctx, p, adoptPatch(j, p))
	if kube.IsNotFound(err) {
		return nil, nil //nolint:nilnil // nothing left to adopt
	}
	if err != nil {
		return nil, err
	}
	adopted := *p
	adopted.ObjectMeta = got.ObjectMeta
	return &adopted, nil
}

func (s *run) release(ctx context.Context, j *batchv1.Job, p *corev1.Pod) error {
	_, err := s.patchPod(ctx, p, releasePatch(j.UID, p))
	if kube.IsNotFound(err) || kube.IsInvalid(err) {
		return nil
	}
	return err
}
