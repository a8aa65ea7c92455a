package job

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// syncJob is one turn of a Job that is there, unfinished and ours.
func (s *run) syncJob(ctx context.Context, j *batchv1.Job) error {
	j, pods, err := s.pods(ctx, j)
	if err != nil {
		return err
	}
	if finished(j) { // which only the live read shows
		return s.sweep(ctx, j)
	}
	if pods, err = s.claim(ctx, j, pods); err != nil {
		return err
	}
	s.settleExpectations(j, pods)
	if pods, err = s.dropSurplus(ctx, j, pods); err != nil {
		return err
	}
	s.status = *j.Status.DeepCopy()
	t := begin(facts{
		job: j, pods: pods, satisfied: len(s.deleting) == 0, ignored: s.stripped,
		failures: s.memory.failures(), accounted: s.memory.Accounted, now: s.now(),
	})
	done, actErr := s.act(ctx, t)
	if lost(actErr) {
		return actErr
	}
	t.acted(done)
	s.wake = t.wake
	if err := s.track(ctx, t); err != nil {
		return err
	}
	return actErr
}

// settleExpectations compares what earlier syncs expected with what the pods
// show. In a live read everything is known. In the
// index, at the barrier, every creation that was answered is to be seen or was
// deleted since; of deletions only those are outstanding whose pod is still
// there.
func (s *run) settleExpectations(j *batchv1.Job, pods []*corev1.Pod) {
	byUID := map[types.UID]*corev1.Pod{}
	byOrdinal := map[int64]*corev1.Pod{}
	for _, p := range pods {
		byUID[p.UID] = p
		if c, ok := childOf(j, p); ok {
			byOrdinal[c.Ordinal] = p
			s.memory.Seen(c.Ordinal)
		}
	}
	if !s.remembered { // nothing better is known
		s.memory.Next = max(s.memory.Next, int64(j.Status.Succeeded)+int64(j.Status.Failed))
	}
	s.deleting, s.stripped = map[types.UID]bool{}, map[types.UID]bool{}
	e := s.req.Expected
	if e.Owner != string(j.UID) {
		s.seen, s.ended = append(s.seen, e.Creations...), append(s.ended, e.Deletions...)
		return
	}
	for _, name := range e.Creations {
		c, ok := replica.Parse(j.Name, string(j.UID), name, indexed(j))
		if ok {
			s.memory.Seen(c.Ordinal)
		}
		switch p := byOrdinal[c.Ordinal]; {
		case !ok || !s.live:
		case p == nil:
			s.open = append(s.open, c)
			continue
		default:
			s.memory.Won(c.Ordinal, tokenOf(p))
		}
		s.seen = append(s.seen, name)
	}
	slices.SortFunc(s.open, byAge)
	for _, name := range e.Deletions {
		strip, isStrip := strings.CutPrefix(name, stripMark)
		p := byUID[types.UID(strip)]
		switch {
		case s.live || p == nil:
		case isStrip && tracked(p):
			s.stripped[p.UID] = true
			continue
		case !isStrip && p.DeletionTimestamp == nil:
			s.deleting[p.UID] = true
			continue
		}
		s.ended = append(s.ended, name)
	}
}

// stripMark begins an expected deletion that stands for the finalizer of a pod
// that is vanishing.
const stripMark = "finalizer:"

// expect stores what is outstanding beside what is about to be done. It replaces
// what was stored.
func (s *run) expect(ctx context.Context, j *batchv1.Job, creations []replica.Child, deletions []*corev1.Pod) error {
	if err := s.req.Lease.Alive(); err != nil {
		return err
	}
	var create, remove []string
	for _, c := range union(creations, s.open) {
		create = append(create, nameOf(j, c))
	}
	for u := range s.deleting {
		remove = append(remove, string(u))
	}
	for u := range s.stripped {
		remove = append(remove, stripMark+string(u))
	}
	for _, p := range deletions {
		remove = append(remove, string(p.UID))
	}
	if err := s.req.Lease.Expect(ctx, string(j.UID), create, remove); err != nil {
		return err
	}
	s.seen = without(s.seen, keysOf(create))
	return nil
}

func union(a, b []replica.Child) []replica.Child {
	out := slices.Concat(a, b)
	slices.SortFunc(out, byAge)
	return slices.Compact(out)
}

// byAge orders children as they were given out.
func byAge(a, b replica.Child) int { return cmp.Compare(a.Ordinal, b.Ordinal) }

func keysOf(names []string) map[string]bool {
	m := map[string]bool{}
	for _, n := range names {
		m[n] = true
	}
	return m
}

// dropSurplus removes pods whose creation lost the contest for its ordinal. They
// are never counted.
func (s *run) dropSurplus(ctx context.Context, j *batchv1.Job, pods []*corev1.Pod) ([]*corev1.Pod, error) {
	var kept, surplus []*corev1.Pod
	for _, p := range pods {
		if c, ok := childOf(j, p); ok && s.memory.Surplus(c.Ordinal, tokenOf(p)) {
			surplus = append(surplus, p)
		} else {
			kept = append(kept, p)
		}
	}
	return kept, s.forEach(surplus, func(p *corev1.Pod) error {
		if tracked(p) {
			if gone, err := s.strip(ctx, p); gone || err != nil {
				return err
			}
		}
		if p.DeletionTimestamp != nil {
			return nil
		}
		return s.deletePod(ctx, p)
	})
}

// act carries out the turn's action.
func (s *run) act(ctx context.Context, t *turn) (acted, error) {
	if t.managed {
		s.action = "tracking"
	}
	switch t.action.kind {
	case finishing:
		return s.deletePods(ctx, t, false)
	case waiting:
		s.action = "pods_created" // as upstream counts it
	case removing:
		s.action = "pods_deleted"
		if err := s.expect(ctx, t.job, nil, t.action.pods); err != nil {
			return acted{}, err
		}
		return s.deletePods(ctx, t, true)
	case creating:
		s.action = "pods_created"
		return s.create(ctx, t)
	}
	return acted{}, nil
}

// deletePods deletes the action's pods in parallel. When
// scaling down the finalizer goes first, so that the pods are not counted as
// failed; that patch holds only for a version in which the pod is
// active, so that one that has ended meanwhile is counted after all.
func (s *run) deletePods(ctx context.Context, t *turn, stripFirst bool) (acted, error) {
	var mu sync.Mutex
	var done acted
	err := s.forEach(t.action.pods, func(p *corev1.Pod) error {
		err := s.remove(ctx, p, stripFirst)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			if stripFirst { // what failed is not going to be seen
				s.ended = append(s.ended, string(p.UID))
			}
			if !lost(err) && !errors.Is(err, errChanged) {
				s.events.Event(about(t.job), kube.Warning, "FailedDelete", "Error deleting: "+said(err))
			}
			return err
		}
		done.deleted++
		if ready(p) {
			done.deletedReady++
		}
		s.events.Event(about(t.job), kube.Normal, "SuccessfulDelete", "Deleted pod: "+p.Name)
		return nil
	})
	return done, err
}

func (s *run) remove(ctx context.Context, p *corev1.Pod, stripFirst bool) error {
	if stripFirst {
		if gone, err := s.giveUp(ctx, p); gone || err != nil {
			return err
		}
	}
	return s.deletePod(ctx, p)
}

// track counts each ended pod exactly once: it lists the pod as uncounted, removes
// the finalizer, and only then moves the counters. See
// docs/rules.md#job-pods-are-counted-exactly-once.
func (s *run) track(ctx context.Context, t *turn) error {
	remove, write := t.track()
	if write {
		if err := s.writeStatus(ctx, t); err != nil {
			return err
		}
		s.flushEvents(t)
	}
	s.metrics.tracked(t)
	s.memory.setFailures(t.failures)
	s.memory.Accounted = new(tallyOf(&t.job.Status))
	gone, rmErr := s.removeFinalizers(ctx, t, remove)
	if lost(rmErr) {
		return rmErr
	}
	write = t.counted(gone)
	if rmErr != nil {
		if write {
			if err := s.writeStatus(ctx, t); err != nil {
				return err
			}
		}
		return rmErr
	}
	ended := t.end()
	if !ended && !write {
		return nil
	}
	if err := s.writeStatus(ctx, t); err != nil {
		return err
	}
	s.flushEvents(t)
	if ended {
		s.metrics.finished(t.job, t.finish)
		s.memory, s.wake = memory{}, 0
	}
	return nil
}

func (s *run) flushEvents(t *turn) {
	for _, e := range t.events {
		s.events.Event(about(t.job), e.kind, e.reason, e.message)
	}
	t.events = nil
}

// removeFinalizers is the second step of counting. It returns the UIDs of the pods
// whose finalizer is gone.
func (s *run) removeFinalizers(ctx context.Context, t *turn, pods []*corev1.Pod) ([]types.UID, error) {
	var mu sync.Mutex
	var done []types.UID
	un := t.job.Status.UncountedTerminatedPods
	listed := setOf(slices.Concat(un.Succeeded, un.Failed))
	vanishing := false
	err := s.forEach(pods, func(p *corev1.Pod) error {
		gone, err := s.strip(ctx, p)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		done = append(done, p.UID)
		if terminal(p) {
			s.metrics.released(listed[p.UID])
		}
		if gone { // its last version in the index may be one with the finalizer
			s.stripped[p.UID] = true
			vanishing = true
		}
		return nil
	})
	if vanishing && !lost(err) {
		if expErr := s.expect(ctx, t.job, nil, nil); expErr != nil {
			return done, expErr
		}
	}
	return done, err
}
