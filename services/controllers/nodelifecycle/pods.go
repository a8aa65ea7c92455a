package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
)

// pod is what matters of a pod.
type pod struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (p *pod) ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == nodelifecycle.Ready {
			return c.Status == nodelifecycle.True
		}
	}
	return false
}

// podWriters is how many of a node's pods are written at once.
const podWriters = 4

// markPods makes the Ready condition of a silent node's pods False (c.7). It goes
// by what they say, not by what was done before: pods that were missed, or came
// later (c.8), are marked by the next look.
func (r *Reconciler) markPods(ctx context.Context, req Request, n *nodelifecycle.Node) error {
	raws, err := req.Reader.PodsOn(ctx, n.Metadata.Name)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(podWriters)
	for _, raw := range raws {
		p, err := read[pod](raw, nil)
		if err != nil {
			return errors.Join(fmt.Errorf("nodelifecycle: pod on node %s: %w", n.Metadata.Name, err), g.Wait())
		}
		if !p.ready() {
			continue
		}
		g.Go(func() error { return r.markPod(ctx, p) })
	}
	return g.Wait()
}

func (r *Reconciler) markPod(ctx context.Context, p *pod) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.Metadata.UID},
		"status": map[string]any{"conditions": []any{map[string]any{
			"type": nodelifecycle.Ready, "status": nodelifecycle.False, "lastTransitionTime": r.cfg.Now().UTC().Format(time.RFC3339),
		}}},
	})
	if err != nil {
		return err
	}
	err = r.writer.PatchPodStatus(ctx, p.Metadata.Namespace, p.Metadata.Name, patch)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nodelifecycle: mark pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	r.events.Pod(p.Metadata.Namespace, p.Metadata.Name, p.Metadata.UID, notReadyReason, "Node is not ready")
	return nil
}
