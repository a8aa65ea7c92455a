package nodeagent

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/pleg"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
)

// syncEvery is the time between two looks at what is due, when nothing is due before.
const syncEvery = time.Second

// loop takes in what happens and hands it to the pods' workers until ctx ends.
// It does no I/O itself: nothing that hangs can hold it up.
func (a *Agent) loop(ctx context.Context) {
	timer := time.NewTimer(syncEvery)
	defer timer.Stop()
	housekeeping := time.NewTicker(a.cfg.Housekeeping)
	defer housekeeping.Stop()
	pause := attempt.Wait{First: pauseFirst, Most: pauseMost}
	tick := time.Now().Add(syncEvery)
	for {
		if !a.paused(ctx, &pause) {
			return
		}
		timer.Reset(time.Until(a.nextSync(tick)))
		select {
		case <-ctx.Done():
			return
		case c := <-a.source.out:
			a.configured(c)
		case e := <-a.pleg.Events():
			a.happened(e)
		case <-timer.C:
			tick = time.Now().Add(syncEvery)
			a.syncDue()
		case <-a.pool.Earlier():
		case <-a.probes:
			a.syncProbed()
		case <-housekeeping.C:
			a.housekeep()
		}
	}
}

// The bounds of the pause between two looks at a runtime that is in error.
const (
	pauseFirst = 100 * time.Millisecond
	pauseMost  = 5 * time.Second
)

// paused waits while the runtime is in error; false when ctx ended meanwhile.
func (a *Agent) paused(ctx context.Context, pause *attempt.Wait) bool {
	for a.runtimeError() != nil {
		a.metrics.paused.Set(1)
		if !pause.Sleep(ctx, 0) {
			return false
		}
	}
	a.metrics.paused.Set(0)
	pause.Reset()
	return true
}

// nextSync is when pods that are due are looked at: with the next tick, or when the first of them
// falls due before that. A restart is not late by up to a second for want of a tick.
func (a *Agent) nextSync(tick time.Time) time.Time {
	if at, ok := a.pool.NextDue(); ok && at.Before(tick) {
		return at.Add(time.Millisecond) // due is what lies strictly before now
	}
	return tick
}

// configured takes in news of the pods bound to this node.
func (a *Agent) configured(c change) {
	switch c.kind {
	case changeSynced:
		a.mu.Lock()
		a.synced = true
		n := len(a.pods)
		a.mu.Unlock()
		a.log.Info("pods of the node are known", slog.Int(telemetry.KeyCount, n))
	case changeSet:
		a.podSet(c.pod)
	case changeRemoved:
		a.mu.Lock()
		pod := a.pods[c.uid]
		delete(a.pods, c.uid)
		delete(a.starting, c.uid)
		delete(a.told, c.uid)
		a.gone[c.uid] = true
		a.mu.Unlock()
		a.statuses.Forget(c.uid)
		if pod != nil {
			a.pool.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod})
		}
		a.sweepSoon()
	case changeOrphan:
		a.mu.Lock()
		a.gone[c.uid] = true
		a.mu.Unlock()
		a.sweepSoon()
	}
}

// podSet takes in a version of a pod. A change that only tells the agent what it wrote itself makes
// no sync.
func (a *Agent) podSet(pod *corev1.Pod) {
	a.mu.Lock()
	old := a.pods[pod.UID]
	delete(a.gone, pod.UID)
	a.pods[pod.UID] = pod
	if old == nil && pod.Status.Phase != corev1.PodRunning {
		a.starting[pod.UID] = time.Now()
	}
	a.mu.Unlock()
	a.statuses.Observe(pod)
	switch {
	case old == nil:
		a.pool.Update(podworker.Update{Kind: podsync.KindCreate, Pod: pod})
	case differ(old, pod):
		a.pool.Update(podworker.Update{Kind: podsync.KindUpdate, Pod: pod})
	}
}

// differ reports whether two versions of a pod ask for different things.
func differ(a, b *corev1.Pod) bool {
	ended := func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}
	return !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		!equality.Semantic.DeepEqual(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds) ||
		ended(a) != ended(b) || gates(a, b) || !equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// gates reports whether a condition that b's readiness waits for changed.
func gates(a, b *corev1.Pod) bool {
	of := func(p *corev1.Pod, t corev1.PodConditionType) corev1.ConditionStatus {
		for i := range p.Status.Conditions {
			if p.Status.Conditions[i].Type == t {
				return p.Status.Conditions[i].Status
			}
		}
		return corev1.ConditionUnknown
	}
	return slices.ContainsFunc(b.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool {
		return of(a, g.ConditionType) != of(b, g.ConditionType)
	})
}

// happened takes in an event of the runtime. What was removed needs no sync.
func (a *Agent) happened(e pleg.Event) {
	if e.Kind == pleg.ContainerDied {
		a.sweepSoon()
	}
	if e.Kind == pleg.ContainerRemoved {
		return
	}
	if pod := a.pod(e.PodUID); pod != nil {
		a.pool.Update(podworker.Update{Kind: podsync.KindSync, Pod: pod})
	}
}

// syncDue hands on the pods that fell due. One whose configuration is gone is still being ended by
// its worker, which tries again by what it knows: the kubelet loses such work.
func (a *Agent) syncDue() {
	for _, uid := range a.pool.Due() {
		if pod := a.pod(uid); pod != nil {
			a.pool.Update(podworker.Update{Kind: podsync.KindSync, Pod: pod})
		} else {
			a.pool.Again(uid)
		}
	}
	a.checkDeadlines()
}

// checkDeadlines wakes the pods that have been active for too long.
func (a *Agent) checkDeadlines() {
	now := time.Now()
	var late []*corev1.Pod
	a.mu.Lock()
	for uid, pod := range a.pods {
		if pod.Spec.ActiveDeadlineSeconds == nil {
			continue
		}
		if s, known := a.pool.State(uid); known && s == podsync.Syncing {
			late = append(late, pod)
		}
	}
	a.mu.Unlock()
	for _, pod := range late {
		if a.pastDeadline(pod, now) {
			a.pool.Update(podworker.Update{Kind: podsync.KindSync, Pod: pod})
		}
	}
}

// housekeep compares the workers with the pods of the node: workers of pods that are
// gone end, and a pod whose worker was purged starts over. Before the sources are
// ready it does nothing.
func (a *Agent) housekeep() {
	begin := time.Now()
	wanted, synced := a.wanted()
	if !synced {
		return
	}
	a.metrics.desired.Set(float64(len(wanted)))
	known := a.pool.SyncKnown(wanted)
	for uid, pod := range wanted {
		if _, has := known[uid]; !has {
			a.metrics.restarted.Inc()
			a.pool.Update(podworker.Update{Kind: podsync.KindCreate, Pod: pod})
		}
	}
	keep := func(uid types.UID) bool {
		_, has := known[uid]
		return has || wanted[uid] != nil
	}
	a.statuses.Retain(keep)
	a.prober.Retain(keep)
	a.forgetServices(wanted)
	a.killOrphans()
	took := time.Since(begin)
	a.metrics.housekeeping.Observe(took.Seconds())
	if took > time.Second {
		a.log.Warn("housekeeping took long", slog.Duration(telemetry.KeyDuration, took))
	}
}
