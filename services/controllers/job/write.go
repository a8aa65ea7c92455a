package job

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// Every write goes through one of the methods below: the lease is looked at
// immediately before it, what the server answers becomes part of the next
// barrier, and an answer that never came makes the next sync read live.

func (s *run) patchPod(ctx context.Context, p *corev1.Pod, patch []byte) (*corev1.Pod, error) {
	if err := s.req.Lease.Alive(); err != nil {
		return nil, err
	}
	got, err := s.api.PatchPod(ctx, p.Namespace, p.Name, patch)
	if err != nil {
		s.blame(err)
		return nil, fmt.Errorf("patch pod %s: %w", p.Name, err)
	}
	s.sawPod(got.ResourceVersion)
	return got, nil
}

// errChanged is that a pod is not as it was when its removal was decided on. The
// next sync decides again; nothing has failed.
var errChanged = errors.New("the pod has changed meanwhile")

// giveUpTries bounds how often a pod that changes all the time is read.
const giveUpTries = 5

// giveUp takes the tracking finalizer off an active pod that is to be deleted and not
// counted. An index that is behind shows versions that are not the pod's any more:
// what a read of it shows decides, as long as the pod is active in it.
func (s *run) giveUp(ctx context.Context, p *corev1.Pod) (gone bool, err error) {
	for range giveUpTries {
		if !tracked(p) {
			return false, nil
		}
		_, err := s.patchPod(ctx, p, stripPatch(p, true))
		switch {
		case err == nil:
			return false, nil
		case kube.IsNotFound(err):
			return true, nil
		case !kube.IsConflict(err) && !kube.IsInvalid(err):
			return false, err
		}
		fresh, err := s.api.Pod(ctx, p.Namespace, p.Name)
		if kube.IsNotFound(err) || err == nil && fresh.UID != p.UID {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("read pod %s: %w", p.Name, err)
		}
		s.sawPod(fresh.ResourceVersion)
		if !active(fresh) {
			return false, fmt.Errorf("remove pod %s: %w", p.Name, errChanged)
		}
		p = fresh
	}
	return false, fmt.Errorf("remove pod %s: %w", p.Name, errChanged)
}

// strip takes the tracking finalizer off a pod. gone says that the pod has
// vanished or is about to vanish, so that no later version of it will show the
// finalizer missing.
func (s *run) strip(ctx context.Context, p *corev1.Pod) (gone bool, err error) {
	got, err := s.patchPod(ctx, p, stripPatch(p, false))
	switch {
	case err == nil:
		return got.DeletionTimestamp != nil, nil
	case kube.IsNotFound(err):
		return true, nil
	case kube.IsConflict(err) || kube.IsInvalid(err):
		fresh, getErr := s.api.Pod(ctx, p.Namespace, p.Name)
		if kube.IsNotFound(getErr) || getErr == nil && fresh.UID != p.UID {
			return true, nil
		}
	}
	return false, err
}

// deletePod deletes a pod; one that is gone, or another of its name, is fine.
func (s *run) deletePod(ctx context.Context, p *corev1.Pod) error {
	if err := s.req.Lease.Alive(); err != nil {
		return err
	}
	rv, err := s.api.DeletePod(ctx, p.Namespace, p.Name, p.UID)
	switch {
	case kube.IsNotFound(err) || kube.IsConflict(err):
		return nil
	case err != nil:
		s.blame(err)
		return fmt.Errorf("delete pod %s: %w", p.Name, err)
	}
	s.sawPod(rv)
	return nil
}

func (s *run) writeStatus(ctx context.Context, t *turn) error {
	patch, err := statusPatch(t.job, &s.status, &t.job.Status)
	if err != nil {
		return err
	}
	if err := s.req.Lease.Alive(); err != nil {
		return err
	}
	got, err := s.api.PatchJobStatus(ctx, s.namespace, s.name, patch)
	if err != nil {
		s.blame(err)
		if kube.IsConflict(err) {
			s.doubt() // somebody else has written; the index may not show it yet
		}
		return fmt.Errorf("write status: %w", err)
	}
	s.sawJob(got.ResourceVersion)
	t.job.ResourceVersion = got.ResourceVersion
	s.metrics.counted(t.job, &s.status)
	s.status = *t.job.Status.DeepCopy()
	return nil
}

// blame notes a call whose outcome is unknown.
func (s *run) blame(err error) {
	if kube.IsUnresolved(err) && !lost(err) {
		s.doubt()
	}
}

// each calls f for 0..n-1, at most limit at a time, and waits for all.
func each(n, limit int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, min(n, limit))
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}
