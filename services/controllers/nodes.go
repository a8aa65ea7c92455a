package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

func leasesOf(cluster string) delta.Collection {
	return delta.Collection{Cluster: cluster, Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
}

// buildNodeLifecycle wires the node lifecycle controller: nodes by their own key,
// leases and pods by their node's.
func buildNodeLifecycle(s *Service, q *client.Queue) (plan, error) {
	nodes, leases, pods := nodesOf(s.cfg.Cluster), leasesOf(s.cfg.Cluster), podsOf(s.cfg.Cluster)
	recorder := kube.NewRecorder(s.deps.Kube, "node-controller", s.cfg.Identity, s.log)
	s.events = append(s.events, recorder)
	zones := &zoneQueues{s: s, queues: map[rules.Zone]*client.Queue{}, started: make(chan rules.Zone, 64)}
	rec, err := nodelifecycle.New(nodelifecycle.Config{Rules: s.cfg.Nodes, Metrics: s.deps.Telemetry.Registry}, s.deps.Kube, zones, recorder, s.log)
	if err != nil {
		return plan{}, err
	}
	a := &nodeAdapter{reads: newReads(s, "nodelifecycle"), rec: rec, queue: q, nodes: nodes.String(), leases: leases.String(), pods: pods.String()}
	zones.adapter = a
	return plan{
		name: "nodelifecycle", primary: nodes,
		others:  map[delta.Collection]client.Mapper{leases: leaseOwner, pods: client.Hint("node")},
		limiter: client.Exponential(100*time.Millisecond, 10*time.Second),
		absorb:  true, rec: a, run: zones.run,
		ready: func(ctx context.Context) error { _, _, err := a.freshness(ctx); return err },
	}, nil
}

// leaseOwner maps a node's lease to its node; other leases concern nobody.
func leaseOwner(r *delta.Record) ([]string, bool) {
	namespace, name, err := r.Key.Split()
	if err != nil || namespace != kube.NodeLeaseNamespace {
		return nil, false
	}
	return []string{name}, false
}

// nodeAdapter is the node lifecycle reconciler as a [client.Reconciler].
type nodeAdapter struct {
	*reads

	rec                 *nodelifecycle.Reconciler
	queue               *client.Queue
	nodes, leases, pods string

	mu     sync.Mutex
	judged client.Barrier // of the last list of all nodes; guarded by mu
}

// Reconcile implements [client.Reconciler].
func (a *nodeAdapter) Reconcile(ctx context.Context, item client.Item) (client.Result, error) {
	look := &nodeLook{look: a.look(item), of: a}
	seen, err := a.rec.Node(ctx, nodelifecycle.Request{Name: item.Key, State: item.State, Reader: look, Lease: &nodeLease{a.queue, item}})
	res := client.Result{After: seen.After, ReadAt: look.read}
	if err == nil && !seen.Silence.Since.IsZero() {
		res.Reason = seen.Silence.String() // "describe node" reads it
	}
	return settled(res, err, nodelifecycle.ErrStale)
}

// nodeLook is one look at a node, not below the freshness it was given.
type nodeLook struct {
	look
	of *nodeAdapter
}

// Fresh implements [nodelifecycle.Reader].
func (l *nodeLook) Fresh(ctx context.Context) (rules.Fresh, error) {
	f, at, err := l.of.freshness(ctx)
	l.floor = at
	return f, err
}

// freshness asks a replica of the index until when it knows nodes and leases
// completely, and at which revisions.
func (a *nodeAdapter) freshness(ctx context.Context) (rules.Fresh, client.Barrier, error) {
	served, err := a.index.Collections(ctx)
	if err := a.heard(ctx, err); err != nil {
		return rules.Fresh{}, nil, err
	}
	return freshOf(served, a.nodes, a.leases)
}

// freshOf is how current both collections are: known until the older of the times at
// which they were live, heard of until the newer.
func freshOf(served []client.CollectionStatus, nodes, leases string) (rules.Fresh, client.Barrier, error) {
	var f rules.Fresh
	at := client.Barrier{}
	for _, c := range served {
		if name := c.Collection; name != nodes && name != leases {
			continue
		}
		live := c.LiveAt
		if !c.Synced || c.Stale || live.IsZero() {
			return rules.Fresh{}, nil, fmt.Errorf("%w: %s was last heard of at %v", nodelifecycle.ErrStale, c.Collection, live)
		}
		if f.Known.IsZero() || live.Before(f.Known) {
			f.Known = live
		}
		if live.After(f.Heard) {
			f.Heard = live
		}
		at[c.Collection] = c.Bounds.Revision
	}
	for _, name := range []string{nodes, leases} {
		if _, ok := at[name]; !ok {
			return rules.Fresh{}, nil, fmt.Errorf("%w: collection %s is not mirrored", nodelifecycle.ErrStale, name)
		}
	}
	return f, at, nil
}

// all are the nodes of the index as far as zones are judged by them: as of a
// resource version or later, and never of an earlier state than before, whichever
// replica answers.
func (a *nodeAdapter) all(ctx context.Context, least string) ([][]byte, error) {
	_, at, err := a.freshness(ctx)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	at.Merge(a.judged)
	a.mu.Unlock()
	if least != "" {
		at.Raise(a.nodes, client.Revision{RV: least})
	}
	objs, read, err := a.index.List(ctx, a.nodes, client.ListOptions{ReadOptions: client.ReadOptions{
		AtLeast: at[a.nodes], Fields: []string{"metadata.name", "metadata.labels", "status.conditions"},
	}})
	if err := a.heard(ctx, err); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.judged == nil {
		a.judged = client.Barrier{}
	}
	a.judged.Raise(a.nodes, read.Upper)
	return payloads(objs), nil
}

// Node implements [nodelifecycle.Reader].
func (l *nodeLook) Node(ctx context.Context, name string) ([]byte, error) {
	return l.find(ctx, l.of.nodes, name)
}

// Lease implements [nodelifecycle.Reader].
func (l *nodeLook) Lease(ctx context.Context, name string) ([]byte, error) {
	return l.find(ctx, l.of.leases, string(delta.NewKey(kube.NodeLeaseNamespace, name)))
}

// PodsOn implements [nodelifecycle.Reader].
func (l *nodeLook) PodsOn(ctx context.Context, node string) ([][]byte, error) {
	pods := l.of.pods
	objs, at, err := l.index.ByIndex(ctx, pods, "node", []string{node}, client.ReadOptions{
		AtLeast: l.least(pods), Fields: []string{"metadata.namespace", "metadata.name", "metadata.uid", "metadata.resourceVersion", "metadata.creationTimestamp", "status.conditions"},
	})
	if err := l.heard(ctx, err); err != nil {
		return nil, err
	}
	l.read.Raise(pods, at)
	return payloads(objs), nil
}

// payloads are those of the objects that have one: of what is quarantined nothing is
// known, neither that it is well nor that it is not.
func payloads(objs []client.Object) [][]byte {
	out := make([][]byte, 0, len(objs))
	for _, obj := range objs {
		if !obj.Quarantined {
			out = append(out, obj.Payload)
		}
	}
	return out
}

// nodeLease is the item's lease.
type nodeLease struct {
	queue *client.Queue
	item  client.Item
}

func (l *nodeLease) Alive() error { return l.item.Alive() }

func (l *nodeLease) Save(ctx context.Context, state []byte) error {
	return l.queue.SaveState(ctx, l.item.Key, l.item.Token, state)
}
