package podgc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// writers is how many pods are written at once.
const writers = 8

// orphans collects the pods of a node whose quarantine is over. A pod that fails
// keeps no other one from being collected.
func (r *Reconciler) orphans(ctx context.Context, req Request) error {
	if err := req.Reader.Fresh(ctx); err != nil {
		return err
	}
	keys, err := req.Reader.PodsOn(ctx, req.Key)
	if err != nil {
		return err
	}
	return each(ctx, keys, func(ctx context.Context, key string) error {
		return r.collect(ctx, req, key, req.Key, podgc.Orphaned)
	})
}

// terminated deletes the ended pods above the threshold.
func (r *Reconciler) terminated(ctx context.Context, req Request) (time.Duration, error) {
	threshold := *r.cfg.Rules.Threshold
	if threshold <= 0 {
		return 0, nil
	}
	if err := req.Reader.Fresh(ctx); err != nil {
		return 0, err
	}
	raws, err := req.Reader.Ended(ctx, threshold)
	if err != nil {
		return 0, err
	}
	pods := make([]*podgc.Pod, len(raws))
	for i, raw := range raws {
		if pods[i], err = kube.Decode[podgc.Pod](raw, nil); err != nil {
			return 0, fmt.Errorf("podgc: an ended pod: %w", err)
		}
	}
	err = each(ctx, podgc.Surplus(pods, threshold), func(ctx context.Context, p *podgc.Pod) error {
		if p.Collected() {
			return nil
		}
		return r.remove(ctx, req, p, podgc.Terminated)
	})
	return r.cfg.Rules.Every, err
}

// collect reads a pod and the node it was bound to as they are, and deletes the pod
// when it is to be collected for that reason indeed.
func (r *Reconciler) collect(ctx context.Context, req Request, key, node string, why podgc.Reason) error {
	namespace, name, _ := strings.Cut(key, "/")
	p, err := kube.DecodeFound[podgc.Pod](r.api.Get(ctx, kube.Pods.Ref(namespace, name)))
	if err != nil {
		return fmt.Errorf("podgc: read pod %s: %w", key, err)
	}
	if p == nil || p.Spec.NodeName != node {
		return nil // gone, or another one of its name, which is looked at by itself
	}
	var n *nodelifecycle.Node
	if node != "" {
		if n, err = kube.DecodeFound[nodelifecycle.Node](r.api.Get(ctx, kube.Nodes.Ref("", node))); err != nil {
			return fmt.Errorf("podgc: read node %s: %w", node, err)
		}
	}
	if podgc.Judge(p, n) != why {
		return nil // what changed meanwhile wakes its key
	}
	return r.remove(ctx, req, p, why)
}

// remove marks a pod as failed unless it has ended, and deletes it without grace.
// Either is done to the pod as it was read, or not at all.
func (r *Reconciler) remove(ctx context.Context, req Request, p *podgc.Pod, why podgc.Reason) error {
	if err := req.Lease.Alive(); err != nil {
		return err
	}
	err := r.write(ctx, p, why)
	if kube.IsNotFound(err) {
		err = nil
	}
	r.metrics.tried(p, why, err)
	if err != nil { // a conflict too: what the pod has become is judged by the next try
		return fmt.Errorf("podgc: delete pod %s (%s): %w", p.Key(), why, err)
	}
	r.log.InfoContext(ctx, "pod collected",
		slog.String(telemetry.KeyKey, p.Key()), slog.String(telemetry.KeyNode, p.Spec.NodeName), slog.String(telemetry.KeyReason, string(why)))
	return nil
}

func (r *Reconciler) write(ctx context.Context, p *podgc.Pod, why podgc.Reason) error {
	ref := kube.Pods.Ref(p.Metadata.Namespace, p.Metadata.Name)
	o := kube.DeleteOptions{UID: p.Metadata.UID, RV: p.Metadata.ResourceVersion, Grace: new(int64(0))}
	if !p.Ended() {
		patch, err := failedPatch(p, why, r.cfg.Now())
		if err != nil {
			return err
		}
		if _, err := r.api.Patch(ctx, ref.Status(), kube.StrategicPatch, patch, kube.WriteOptions{}); err != nil {
			return err
		}
		o.RV = "" // it is another one now, and an ended pod stays ended
	}
	_, err := r.api.Delete(ctx, ref, o)
	return err
}

// failedPatch ends a pod. Only a pod that lost its node is a disrupted one.
func failedPatch(p *podgc.Pod, why podgc.Reason, now time.Time) ([]byte, error) {
	status := map[string]any{"phase": podgc.Failed, "observedGeneration": p.Metadata.Generation}
	if why == podgc.Orphaned {
		status["conditions"] = []any{map[string]any{
			"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
			"lastTransitionTime": now.UTC().Format(time.RFC3339), "observedGeneration": p.Metadata.Generation,
		}}
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.Metadata.UID, "resourceVersion": p.Metadata.ResourceVersion}, "status": status,
	})
}

// each calls do with all of list, some at a time. Its error is the first, and says
// how many there are.
func each[T any](ctx context.Context, list []T, do func(context.Context, T) error) error {
	var failed atomic.Int64
	var g errgroup.Group
	g.SetLimit(writers)
	for _, one := range list {
		g.Go(func() error {
			err := do(ctx, one)
			if err != nil {
				failed.Add(1)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("%d of %d pods: %w", failed.Load(), len(list), err)
	}
	return nil
}
