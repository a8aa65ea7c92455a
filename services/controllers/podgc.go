package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/core/delta"
	rules "github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/podgc"
)

// buildPodGC wires the pod garbage collection: pods and nodes by their own keys,
// and the ended pods by one that is none of either.
func buildPodGC(s *Service, q *client.Queue) (plan, error) {
	rec, err := podgc.New(podgc.Config{Rules: s.cfg.PodGC, Metrics: s.deps.Telemetry.Registry}, s.deps.Kube, s.log)
	if err != nil {
		return plan{}, err
	}
	a := &collectAdapter{podReads: newPodReads(s, "podgc", q), rec: rec, rules: s.cfg.PodGC.WithDefaults()}
	return plan{
		name: "podgc", primary: podsOf(s.cfg.Cluster), others: map[delta.Collection]client.Mapper{nodesOf(s.cfg.Cluster): client.Self()},
		limiter: client.Exponential(100*time.Millisecond, 10*time.Second),
		rec:     a, run: a.plant,
	}, nil
}

// collectAdapter is the pod garbage collection as a [client.Reconciler].
type collectAdapter struct {
	*podReads

	rec   *podgc.Reconciler
	rules rules.Rules
}

// Reconcile implements [client.Reconciler].
func (a *collectAdapter) Reconcile(ctx context.Context, item client.Item) (client.Result, error) {
	look := &collectLook{a.podLook(item)}
	next, err := a.rec.Reconcile(ctx, podgc.Request{Key: item.Key, State: item.State, Reader: look, Lease: look})
	return settled(client.Result{After: next.After, Reason: next.Reason, ReadAt: look.read}, err, podgc.ErrStale, client.ErrIndexBuilding)
}

// plantRetry is when the key of the ended pods is added again after a failure.
const plantRetry = 2 * time.Second

// plant adds the key of the ended pods as often as it comes up by itself, which
// changes nothing unless the queue's store has lost it.
func (a *collectAdapter) plant(ctx context.Context) error {
	if *a.rules.Threshold <= 0 {
		return nil
	}
	for {
		wait := a.rules.Every
		if _, err := a.queue.AddAfter(ctx, a.rules.Every, client.AddItem{Key: podgc.TerminatedKey}); err != nil {
			a.log.DebugContext(ctx, "the key of the ended pods cannot be added", telemetry.Err(err))
			wait = min(wait, plantRetry) // the trigger may not have made the queue yet
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// collectLook is one look at a key, not below the freshness it was given.
type collectLook struct{ *podLook }

// Fresh implements [podgc.Reader].
func (l *collectLook) Fresh(ctx context.Context) error {
	served, err := l.index.Collections(ctx)
	if err := l.heard(ctx, err); err != nil {
		return err
	}
	l.floor, err = followed(served, l.of.pods, l.of.nodes)
	return err
}

// followed is at which revisions collections are that are followed at present.
func followed(served []client.CollectionStatus, names ...string) (client.Barrier, error) {
	at := client.Barrier{}
	for _, name := range names {
		i := slices.IndexFunc(served, func(c client.CollectionStatus) bool { return c.Collection == name })
		if i < 0 {
			return nil, fmt.Errorf("%w: collection %s is not mirrored", podgc.ErrStale, name)
		}
		if c := served[i]; !c.Synced || c.Stale || c.LiveAt.IsZero() {
			return nil, fmt.Errorf("%w: %s was last heard of at %v", podgc.ErrStale, name, c.LiveAt)
		}
		at[name] = served[i].Bounds.Revision
	}
	return at, nil
}

// phaseIndex files pods under their phase. It is declared when a cluster first has
// more pods than may have ended.
const phaseIndex = "podgc-phase"

// Ended implements [podgc.Reader].
func (l *collectLook) Ended(ctx context.Context, above int) ([][]byte, error) {
	pods := l.of.pods
	o := client.ListOptions{ReadOptions: client.ReadOptions{AtLeast: l.least(pods)}}
	if few, err := l.atMost(ctx, o, above); few || err != nil {
		return nil, err
	}
	o.Index, o.Values = phaseIndex, []string{rules.Succeeded, rules.Failed}
	few, err := l.atMost(ctx, o, above)
	if errors.Is(err, client.ErrIndexNotFound) {
		if _, err := l.index.AddIndexers(ctx, pods, 0, client.ByField(phaseIndex, "status.phase")); err != nil {
			return nil, err
		}
		few, err = l.atMost(ctx, o, above)
	}
	if few || err != nil {
		return nil, err
	}
	o.Fields = rules.Fields()
	objs, at, err := l.index.List(ctx, pods, o)
	if err := l.heard(ctx, err); err != nil {
		return nil, err
	}
	l.read.Raise(pods, at)
	return payloads(objs), nil
}

func (l *collectLook) atMost(ctx context.Context, o client.ListOptions, most int) (bool, error) {
	n, _, err := l.index.Count(ctx, l.of.pods, o)
	return n <= int64(most), l.heard(ctx, err)
}
