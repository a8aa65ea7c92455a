package podworker

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
)

// Known is a worker as [Pool.SyncKnown] found it.
type Known struct {
	State podsync.State
	// Orphan says that its pod is wanted no longer.
	Orphan bool
	// Pod is the configuration it goes by; nil for a pod of which only the runtime knows.
	Pod *corev1.Pod
}

// SyncKnown compares the workers with the pods that are wanted: a finished worker
// whose pod is not is forgotten, one that has not ended begins to. It returns the
// workers that are left. A pod that is wanted and not among them needs a create.
//
// The first call says that every source has told its pods: from then on a pod
// without a worker is known not to run. Who calls it must not give new pods to
// Update at the same time.
func (p *Pool) SyncKnown(wanted map[types.UID]*corev1.Pod) map[types.UID]Known {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.synced = true
	left := make(map[types.UID]Known, len(p.workers))
	for uid, w := range p.workers {
		_, want := wanted[uid]
		if !want || w.life.Restart() {
			gone, cancel := w.life.Purge(!want)
			if gone {
				p.forget(w, true)
				continue
			}
			if cancel {
				w.cancel()
			}
			p.wake(w)
		}
		k := Known{State: w.life.State(), Orphan: !want}
		if u, ok := w.life.Latest(); ok {
			k.Pod = u.Body.pod
		}
		left[uid] = k
	}
	p.m.count(left)
	return left
}

// Due returns the pods that fell due, and forgets when.
func (p *Pool) Due() []types.UID {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Take(p.cfg.Now())
}

// NextDue is when the next pod falls due; ok is false when none will.
func (p *Pool) NextDue() (at time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Next()
}

// Earlier is told when a pod falls due before all others, so that a timer can be set again.
func (p *Pool) Earlier() <-chan struct{} { return p.due }

// setDue writes down when a worker is to be looked at again. The mutex is held.
func (p *Pool) setDue(w *worker, at time.Time) {
	before, had := p.queue.Next()
	p.queue.Set(w.uid, at)
	if !had || at.Before(before) {
		select {
		case p.due <- struct{}{}:
		default:
		}
	}
}

// Again makes a worker repeat its last update: that is how due work of a pod whose configuration is
// gone is not lost. ok is false for a UID without a worker, or a finished one.
func (p *Pool) Again(uid types.UID) (ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[uid]
	if w == nil || !w.life.Again() {
		return false
	}
	p.wake(w)
	return true
}

// State is where a pod's worker is; known is false without one.
func (p *Pool) State(uid types.UID) (s podsync.State, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[uid]; w != nil {
		return w.life.State(), true
	}
	return 0, false
}

// Removable reports whether whatever a pod left on the node may be removed: it has ended, and was
// deleted or evicted.
func (p *Pool) Removable(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if w := p.workers[uid]; w != nil {
		return w.life.Removable()
	}
	return p.synced // before the sources have told their pods nothing is known of such a UID
}
