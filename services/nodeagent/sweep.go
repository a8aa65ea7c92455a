package nodeagent

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
)

const (
	// lookEvery is the time between two looks for pods that should not be here.
	lookEvery = 10 * time.Second
	// lookLeast is the least time between two: it costs as much as the node has pods.
	lookLeast = time.Second
	// clearLeast is the least time between two rounds of clearing away.
	clearLeast = 5 * time.Second
)

func (a *Agent) sweepSoon() {
	select {
	case a.sweep <- struct{}{}:
	default:
	}
}

// sweeping clears away what pods left, until ctx ends. It is beside the loop
// because it waits for the runtime and for disks.
func (a *Agent) sweeping(ctx context.Context) {
	collect := time.NewTicker(a.cfg.Collect)
	defer collect.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	wait := time.NewTimer(0) // the end of the least pause between two rounds
	defer wait.Stop()
	var last, looked time.Time
	clearing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-collect.C:
			clearing = true
		case <-a.sweep:
			clearing = true
		case <-look.C:
		case <-wait.C:
		}
		if _, synced := a.wanted(); !synced || a.runtimeError() != nil {
			wait.Reset(time.Second)
			continue
		}
		if rest := lookLeast - time.Since(looked); rest > 0 {
			wait.Reset(rest)
			continue
		}
		a.lookForOrphans(ctx)
		looked = time.Now()
		if rest := clearLeast - time.Since(last); clearing && rest > 0 {
			wait.Reset(rest)
		} else if clearing {
			a.clear(ctx)
			clearing, last = false, time.Now()
		}
	}
}

// lookForOrphans lists the runtime and raises doubt about pods that are neither of
// this node nor being ended. Only the API server settles it.
func (a *Agent) lookForOrphans(ctx context.Context) {
	pods, err := a.runtime.Pods(ctx, true)
	if err != nil {
		return // the PLEG lists too, and tells
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	there := make(map[types.UID]bool, len(pods))
	a.orphans = map[types.UID]container.Pod{}
	for i := range pods {
		uid := pods[i].UID
		there[uid] = true
		if a.pods[uid] != nil {
			continue
		}
		if _, worker := a.pool.State(uid); worker {
			continue
		}
		switch {
		case !a.gone[uid]:
			a.source.doubt(pods[i].Namespace, pods[i].Name, uid)
		case pods[i].Running():
			a.orphans[uid] = pods[i]
		}
	}
	for uid := range a.gone {
		if _, worker := a.pool.State(uid); !there[uid] && !worker {
			delete(a.gone, uid)
		}
	}
}

// killOrphans ends what runs and is no pod of this node. The loop calls it, as no
// pod may be made known meanwhile.
func (a *Agent) killOrphans() {
	a.mu.Lock()
	orphans := a.orphans
	a.orphans = nil
	a.mu.Unlock()
	for uid, running := range orphans {
		if a.pod(uid) != nil {
			continue
		}
		if a.pool.Update(podworker.Update{Kind: podsync.KindKill, RunningPod: &running}) == podsync.None {
			a.metrics.orphans.Inc()
		}
	}
}

// clear removes dead containers, what is kept of restarts, and the volumes of pods that are gone.
func (a *Agent) clear(ctx context.Context) {
	if err := a.runtime.CollectGarbage(ctx, a.keep, false); err != nil && ctx.Err() == nil {
		a.log.Warn("dead containers could not all be removed", telemetry.Err(err))
	}
	running, err := a.runtime.Pods(ctx, true)
	if err != nil {
		return
	}
	a.clearVolumes(ctx, running)
}

// clearVolumes removes the volumes of pods that are gone, and of which the runtime has nothing.
func (a *Agent) clearVolumes(ctx context.Context, running []container.Pod) {
	uids, err := a.volumes.Pods()
	if err != nil {
		a.log.Warn("volumes could not be listed", telemetry.Err(err))
		return
	}
	// A sandbox may have files open; its end comes first.
	uids = slices.DeleteFunc(uids, func(uid types.UID) bool {
		return a.keepVolumes(uid) || slices.ContainsFunc(running, func(p container.Pod) bool { return p.UID == uid })
	})
	removed := 0
	defer func() { a.metrics.volumes.Set(float64(removed)) }()
	if len(uids) == 0 {
		return
	}
	// That the index does not have a pod says little; its name, to ask for it, is not known.
	bound, err := a.source.list(ctx)
	if err != nil {
		return // the next round asks again
	}
	lives := make(map[types.UID]bool, len(bound))
	for _, pod := range bound {
		lives[pod.UID] = true
	}
	for _, uid := range uids {
		if _, ends := a.pool.State(uid); lives[uid] && !ends {
			continue
		}
		if err := a.volumes.Teardown(uid); err != nil {
			a.log.Warn("volumes of a pod that is gone could not be removed", telemetry.Err(err))
			continue
		}
		removed++
	}
}

// keep reports whether the containers of a pod must stay, dead as they may be: it
// is a pod of the node, or nobody knows yet that it is not.
func (a *Agent) keep(uid types.UID) bool {
	a.mu.Lock()
	wanted, gone, synced := a.pods[uid] != nil, a.gone[uid], a.synced
	a.mu.Unlock()
	if _, worker := a.pool.State(uid); worker {
		return !a.pool.Removable(uid)
	}
	return !synced || wanted || !gone
}

// keepVolumes is the same for the volumes of a pod of which the runtime has nothing, as far as it
// is known here.
func (a *Agent) keepVolumes(uid types.UID) bool {
	a.mu.Lock()
	wanted, synced := a.pods[uid] != nil, a.synced
	a.mu.Unlock()
	if _, worker := a.pool.State(uid); worker {
		return !a.pool.Removable(uid)
	}
	return !synced || wanted || a.source.doubted(uid)
}
