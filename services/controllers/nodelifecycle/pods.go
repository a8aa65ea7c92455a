package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// pod is what matters of a pod.
type pod struct {
	Metadata struct {
		Namespace         string    `json:"namespace"`
		Name              string    `json:"name"`
		UID               string    `json:"uid"`
		ResourceVersion   string    `json:"resourceVersion"`
		CreationTimestamp time.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Status struct {
		Conditions []podCondition `json:"conditions"`
	} `json:"status"`
}

type podCondition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

func (p *pod) condition(kind string) podCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return podCondition{}
}

func (p *pod) ready() bool { return p.condition(nodelifecycle.Ready).Status == nodelifecycle.True }

// bound is when the pod came to its node, as the scheduler said, else when it was created.
func (p *pod) bound() time.Time {
	if c := p.condition("PodScheduled"); c.Status == nodelifecycle.True && !c.LastTransitionTime.IsZero() {
		return c.LastTransitionTime
	}
	return p.Metadata.CreationTimestamp
}

// podWriters is how many of a node's pods are written at once.
const podWriters = 4

// maxLate bounds how many late pods are remembered; a node runs fewer.
const maxLate = 256

// markPods makes the Ready condition of a node's pods False. Of a silent node it
// marks all, by what they say and not by what was done before: pods that were
// missed, or came later, are marked by the next look. Of a node that says itself
// that it is not ready it marks those bound to it since, when it first sees them:
// its kubelet lives, and what that says of them afterwards holds.
func (r *Reconciler) markPods(ctx context.Context, req Request, m *memory, n *nodelifecycle.Node) error {
	ready := n.Condition(nodelifecycle.Ready)
	if ready.Status != nodelifecycle.False {
		m.Late = nil
	}
	if ready.Status != nodelifecycle.False && ready.Status != nodelifecycle.Unknown {
		return nil
	}
	raws, err := req.Reader.PodsOn(ctx, n.Metadata.Name)
	if err != nil {
		return err
	}
	since, _ := time.Parse(time.RFC3339, ready.LastTransitionTime) // it may not say
	var mu sync.Mutex                                              // guards m
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(podWriters)
	for _, raw := range raws {
		p, err := kube.Decode[pod](raw, nil)
		if err != nil {
			return errors.Join(fmt.Errorf("nodelifecycle: pod on node %s: %w", n.Metadata.Name, err), g.Wait())
		}
		if ready.Status == nodelifecycle.False {
			mu.Lock()
			known := slices.Contains(m.Late, short(p.Metadata.UID)) || len(m.Late) >= maxLate
			mu.Unlock()
			if known || p.bound().Before(since) {
				continue
			}
		}
		g.Go(func() error {
			if p.ready() {
				if err := r.markPod(ctx, p); err != nil {
					return err
				}
			}
			if ready.Status == nodelifecycle.False {
				mu.Lock()
				defer mu.Unlock()
				m.Late = append(m.Late, short(p.Metadata.UID))
			}
			return nil
		})
	}
	return g.Wait()
}

// short tells the pods of one node from each other.
func short(uid string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(uid))
	return h.Sum32()
}

// markPod makes a pod's Ready condition False, as it was read: one that was marked since the index
// looked gets no second mark and no second Event.
func (r *Reconciler) markPod(ctx context.Context, p *pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": nodelifecycle.Ready, "status": nodelifecycle.False, "lastTransitionTime": r.cfg.Now().UTC().Format(time.RFC3339),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = r.api.Patch(ctx, kube.Pods.Ref(p.Metadata.Namespace, p.Metadata.Name).Status(), kube.StrategicPatch, patch, kube.WriteOptions{})
	if kube.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nodelifecycle: mark pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	r.events.Event(kube.Pods.Involved(p.Metadata.Namespace, p.Metadata.Name, p.Metadata.UID), kube.Warning, notReadyReason, "Node is not ready")
	return nil
}
