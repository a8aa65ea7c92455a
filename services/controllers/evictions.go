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
		rec:     &evictionAdapter{reads: newReads(s, "tainteviction"), rec: rec, queue: q, nodes: nodes.String(), pods: pods.String()},
	}, nil
}

// evictionAdapter is the taint eviction reconciler as a [client.Reconciler].
type evictionAdapter struct {
	*reads

	rec         *tainteviction.Reconciler
	queue       *client.Queue
	nodes, pods string
}

// Reconcile implements [client.Reconciler].
func (a *evictionAdapter) Reconcile(ctx context.Context, item client.Item) (client.Result, error) {
	look := &evictionLook{look: a.look(item), of: a}
	after, err := a.rec.Reconcile(ctx, tainteviction.Request{Key: item.Key, State: item.State, Retries: item.NumRequeues, Reader: look, Lease: look})
	return settled(client.Result{After: after, ReadAt: look.read}, err)
}

// evictionLook is one look at a key, and the lease.
type evictionLook struct {
	look
	of *evictionAdapter
}

func (l *evictionLook) Pod(ctx context.Context, key string) ([]byte, error) {
	return l.find(ctx, l.of.pods, key)
}

func (l *evictionLook) Node(ctx context.Context, name string) ([]byte, error) {
	return l.find(ctx, l.of.nodes, name)
}

func (l *evictionLook) PodsOn(ctx context.Context, node string) ([]string, error) {
	keys, at, err := l.index.IndexKeys(ctx, l.of.pods, "node", node, client.ReadOptions{AtLeast: l.least(l.of.pods)})
	if err := l.heard(ctx, err); err != nil {
		return nil, err
	}
	l.read.Raise(l.of.pods, at)
	return keys, nil
}

func (l *evictionLook) Alive() error { return l.item.Alive() }

func (l *evictionLook) Save(ctx context.Context, state []byte) error {
	return l.of.queue.SaveState(ctx, l.item.Key, l.item.Token, state)
}

// Wake adds pods behind the state in which their node was read.
func (l *evictionLook) Wake(ctx context.Context, keys []string) error {
	seen := client.Barrier{}
	if at, ok := l.read[l.of.nodes]; ok {
		seen.Raise(l.of.nodes, at.Upper)
	}
	items := make([]client.AddItem, len(keys))
	for i, key := range keys {
		items[i] = client.AddItem{Key: key, Barrier: seen}
		if n := len(l.item.Traces); n > 0 {
			items[i].Trace = l.item.Traces[n-1]
		}
	}
	_, err := l.of.queue.Add(ctx, items...) // no items, no call
	return err
}
