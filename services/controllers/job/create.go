package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
)

func lost(err error) bool { return errors.Is(err, ErrLeaseLost) }

// create makes the pods the turn wants. The mark
// and the names are stored before the first call, so that the next worker
// knows every name that may exist.
func (s *run) create(ctx context.Context, t *turn) (acted, error) {
	j := t.job
	if len(j.Spec.Template.Labels) == 0 {
		return acted{}, errors.New("unable to create pods, no labels")
	}
	children, contested := s.children(t)
	if err := s.announce(ctx, j, children, len(contested) < len(children)); err != nil {
		return acted{}, err
	}
	b := &births{run: s, turn: t, job: j, children: children, contested: contested, used: map[int64]bool{}}
	s.open = slices.Clone(s.open)
	replica.SlowStart(len(children), func(first, size int) bool {
		each(size, s.parallel, func(i int) { b.make(ctx, first+i) })
		return b.err == nil && !b.closed
	})
	if lost(b.err) {
		return acted{}, b.err
	}
	if err := b.giveBack(ctx); err != nil {
		return acted{}, err
	}
	s.metrics.created(t.creates(), b.created, b.failed)
	return acted{created: b.created}, b.err
}

// children are those that the turn wants, and which of them may have been claimed before: what may
// exist is tried again before another is made in its place.
func (s *run) children(t *turn) (all []replica.Child, contested map[replica.Child]bool) {
	wanted := t.action.indexes
	if !indexed(t.job) {
		wanted = slices.Repeat([]int{replica.NoIndex}, t.action.create)
	}
	contested = map[replica.Child]bool{}
	for _, ix := range wanted {
		c := replica.Child{Ordinal: -1, Index: ix}
		for _, o := range s.open {
			if o.Index == ix && !contested[o] {
				c = o
				contested[c] = true
				break
			}
		}
		all = append(all, c)
	}
	fresh := s.memory.Take(len(all) - len(contested))
	for i := range all {
		if all[i].Ordinal < 0 {
			all[i].Ordinal, fresh = fresh[0], fresh[1:]
		}
	}
	return all, contested
}

// announce saves the mark and stores the expected names, in that order: names
// above the saved mark must never be on record.
func (s *run) announce(ctx context.Context, j *batchv1.Job, children []replica.Child, marked bool) error {
	if marked {
		state, err := s.memory.encode()
		if err != nil {
			return err
		}
		if err := s.req.Lease.Alive(); err != nil {
			return err
		}
		if err := s.req.Lease.Save(ctx, state); err != nil {
			return fmt.Errorf("save the mark: %w", err)
		}
		s.req.State = state
	}
	if err := s.expect(ctx, j, children, nil); err != nil {
		return fmt.Errorf("store expected names: %w", err)
	}
	return nil
}

// births is the creation of the pods of one sync.
type births struct {
	*run
	turn      *turn
	job       *batchv1.Job
	children  []replica.Child
	contested map[replica.Child]bool // may have been claimed before

	lock            sync.Mutex // guards what follows
	err             error      // the first
	closed          bool       // the namespace is being deleted
	created, failed int32
	used            map[int64]bool // ordinals that have a pod, may have one, or are taken by another's
}

// make creates one pod and files what came of it.
func (b *births) make(ctx context.Context, i int) {
	c := b.children[i]
	p, err := b.try(ctx, c)
	b.lock.Lock()
	defer b.lock.Unlock()
	switch {
	case err == nil:
		b.used[c.Ordinal] = true
		b.sawPod(p.ResourceVersion)
		if b.contested[c] || tokenOf(p) != b.req.Token {
			b.memory.Won(c.Ordinal, tokenOf(p))
		}
		b.open = slices.DeleteFunc(b.open, func(o replica.Child) bool { return o == c })
		if active(p) {
			b.created++
		}
		return
	case kube.IsTerminating(err): // nothing more can be created, and that is no fault (51)
		b.closed = true
		return
	case kube.IsAlreadyExists(err): // another's pod
		b.used[c.Ordinal] = true
	case (kube.IsUnresolved(err) || kube.IsConflict(err)) && !lost(err): // counts as failed, but may exist
		b.used[c.Ordinal] = true
		b.open = union(b.open, []replica.Child{c})
	}
	b.failed++
	if b.err == nil || lost(err) {
		b.err = err
	}
	if !lost(err) {
		b.events.Event(about(b.job), kube.Warning, "FailedCreate", "Error creating: "+said(err))
	}
}

// try creates the pod of a child. A name that is taken by a pod of this Job
// counts as created.
func (b *births) try(ctx context.Context, c replica.Child) (*corev1.Pod, error) {
	if err := b.req.Lease.Alive(); err != nil {
		return nil, err
	}
	want := newPod(b.job, c, b.req.Token)
	if perIndex(b.job) {
		b.turn.inherit(want, c.Index)
	}
	p, err := b.api.CreatePod(ctx, want)
	if err == nil {
		b.events.Event(about(b.job), kube.Normal, "SuccessfulCreate", "Created pod: "+p.Name)
		return p, nil
	}
	if !kube.IsAlreadyExists(err) {
		b.blame(err)
		return nil, err
	}
	p, err = b.api.Pod(ctx, want.Namespace, want.Name)
	if err == nil && ownedBy(b.job, p) {
		return p, nil
	}
	if err == nil { // another's pod: the ordinal is burnt
		return nil, fmt.Errorf("pod %s belongs to somebody else: %w", want.Name, kube.ErrAlreadyExists)
	}
	b.doubt()
	return nil, fmt.Errorf("read pod %s that exists: %v", want.Name, err) //nolint:errorlint // the creation is unresolved, whatever the read says
}

// giveBack lowers the mark over ordinals that certainly have no pod. Their names
// are taken off the record first.
func (b *births) giveBack(ctx context.Context) error {
	var unused []int64
	var names []string
	for _, c := range b.children {
		if !b.contested[c] && !b.used[c.Ordinal] {
			unused = append(unused, c.Ordinal)
			names = append(names, nameOf(b.job, c))
		}
	}
	if len(unused) == 0 {
		return nil
	}
	if err := b.req.Lease.Alive(); err != nil {
		return err
	}
	switch err := b.req.Lease.Observe(ctx, string(b.job.UID), names, nil); {
	case lost(err):
		return err
	case err == nil:
		b.memory.GiveBack(unused)
	}
	return nil
}
