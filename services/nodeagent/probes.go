package nodeagent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/core/probe"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/kuberuntime"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
	"github.com/deltaplane/deltaplane/services/nodeagent/prober"
)

// buildProber makes what probes the containers.
func (a *Agent) buildProber() (err error) {
	made := a.deps.Probe
	if made == nil {
		made = prober.Over(a.runtime.Exec)
	}
	a.prober, err = prober.New(prober.Deps{
		Status: a.statuses.Get, Probe: made, Warn: a.warn, Settled: a.settledProbe, Log: a.log, Metrics: a.deps.Telemetry.Registry,
	})
	return err
}

// settledProbe takes in what the probes of a container came to. A pod that is being ended is synced
// no more, and its readiness still counts: that is noted at once.
func (a *Agent) settledProbe(c prober.Change) {
	if c.Kind == probe.Readiness {
		a.noting.Lock() // a status that was made before this must not replace it
		a.statuses.SetReady(c.Pod.UID, c.Container, c.ID, c.Result == probe.Success)
		a.noting.Unlock()
	}
	if c.Kind == probe.Liveness && c.Result == probe.Success {
		return // it was taken to be alive
	}
	a.mu.Lock()
	a.probed[c.Pod.UID] = true
	a.mu.Unlock()
	select {
	case a.probes <- struct{}{}:
	default:
	}
}

// syncProbed syncs the pods whose probes came to something new.
func (a *Agent) syncProbed() {
	a.mu.Lock()
	var pods []*corev1.Pod
	for uid := range a.probed {
		if pod := a.pods[uid]; pod != nil {
			pods = append(pods, pod)
		}
	}
	clear(a.probed)
	a.mu.Unlock()
	for _, pod := range pods {
		a.pool.Update(podworker.Update{Kind: podsync.KindSync, Pod: pod})
	}
}

// probesOf are what the probes of a pod's containers that run came to, by its status.
func (a *Agent) probesOf(uid types.UID, s *corev1.PodStatus) kuberuntime.Probes {
	found := kuberuntime.Probes{}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			id := container.ID(list[i].ContainerID)
			if id == "" || list[i].State.Running == nil {
				continue
			}
			v := kuberuntime.Verdict{Started: list[i].Started != nil && *list[i].Started}
			for _, kind := range []probe.Kind{probe.Startup, probe.Liveness} {
				if a.prober.Result(uid, id, kind) == probe.Failure {
					v.Failed = kind
				}
			}
			found[id] = v
		}
	}
	return found
}
