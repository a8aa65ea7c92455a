package controllers

import (
	"context"

	"github.com/deltaplane/deltaplane/client"
)

// podReads is the index as a controller reads it whose queue holds pods and nodes,
// each by their own keys.
type podReads struct {
	*reads

	queue       *client.Queue
	nodes, pods string
}

func newPodReads(s *Service, controller string, q *client.Queue) *podReads {
	return &podReads{reads: newReads(s, controller), queue: q, nodes: nodesOf(s.cfg.Cluster).String(), pods: podsOf(s.cfg.Cluster).String()}
}

// podLook is one look at a key, and the lease.
type podLook struct {
	look
	of *podReads
}

func (r *podReads) podLook(item client.Item) *podLook {
	return &podLook{look: r.look(item), of: r}
}

func (l *podLook) Pod(ctx context.Context, key string) ([]byte, error) {
	return l.find(ctx, l.of.pods, key)
}

func (l *podLook) Node(ctx context.Context, name string) ([]byte, error) {
	return l.find(ctx, l.of.nodes, name)
}

func (l *podLook) PodsOn(ctx context.Context, node string) ([]string, error) {
	keys, at, err := l.index.IndexKeys(ctx, l.of.pods, "node", node, client.ReadOptions{AtLeast: l.least(l.of.pods)})
	if err := l.heard(ctx, err); err != nil {
		return nil, err
	}
	l.read.Raise(l.of.pods, at)
	return keys, nil
}

func (l *podLook) Alive() error { return l.item.Alive() }

func (l *podLook) Save(ctx context.Context, state []byte) error {
	return l.of.queue.SaveState(ctx, l.item.Key, l.item.Token, state)
}

// Wake adds keys behind the state in which nodes were read.
func (l *podLook) Wake(ctx context.Context, keys []string) error {
	seen := client.Barrier{}
	if at, ok := l.read[l.of.nodes]; ok {
		seen.Raise(l.of.nodes, at.Upper)
	}
	items := make([]client.AddItem, len(keys))
	for i, key := range keys {
		items[i] = client.AddItem{Key: key, Barrier: seen, Trace: client.TraceOf(ctx)}
	}
	_, err := l.of.queue.Add(ctx, items...) // no items, no call
	return err
}
