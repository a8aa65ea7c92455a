package controllers

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/tainteviction"
)

func nodesOf(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Version: "v1", Resource: "nodes"}
}

// buildTaintEviction wires the taint eviction controller: pods and nodes by their
// own keys, which differ by the slash.
func buildTaintEviction(s *Service, q *client.Queue) (plan, error) {
	nodes, pods := nodesOf(s.cfg.Cluster), podsOf(s.cfg.Cluster)
	recorder := kube.NewRecorder(s.deps.Kube, "taint-eviction-controller", s.cfg.Identity, s.log)
	s.events = append(s.events, recorder)
	rec, err := tainteviction.New(tainteviction.Config{Rules: s.cfg.Taints, Metrics: s.deps.Telemetry.Registry}, s.deps.Kube, recorder, s.log)
	if err != nil {
		return plan{}, err
	}
	return plan{
		name: "tainteviction", primary: pods, others: map[delta.Collection]client.Mapper{nodes: client.Self()},
		limiter: client.Exponential(100*time.Millisecond, 10*time.Second),
		rec:     &evictionAdapter{podReads: newPodReads(s, "tainteviction", q), rec: rec},
	}, nil
}

// evictionAdapter is the taint eviction reconciler as a [client.Reconciler].
type evictionAdapter struct {
	*podReads

	rec *tainteviction.Reconciler
}

// Reconcile implements [client.Reconciler].
func (a *evictionAdapter) Reconcile(ctx context.Context, item client.Item) (client.Result, error) {
	look := a.podLook(item)
	after, err := a.rec.Reconcile(ctx, tainteviction.Request{Key: item.Key, State: item.State, Retries: item.NumRequeues, Reader: look, Lease: look})
	return settled(client.Result{After: after, ReadAt: look.read}, err)
}
