package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// InstanceAnnotation on a node's lease names the agent that is the node. Empty, it was
// given up; missing, some other program is the node.
const InstanceAnnotation = "deltaplane.io/agent-instance"

// ErrNodeTaken says that another agent is this node and alive.
var ErrNodeTaken = errors.New("node: another agent is this node")

func decode[T any](raw []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(raw, v); err != nil {
		return nil, fmt.Errorf("node: the API server's answer: %w", err)
	}
	return v, nil
}

func encode(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	return body, nil
}

// held is the lease as this agent wrote it last, and the renewals it tried since, in microseconds:
// the answer of one that was written may have been lost.
type held struct {
	lease *coordinationv1.Lease
	tried map[int64]bool
}

// copied reports whether a lease of this instance was renewed by somebody else: a copy of this
// agent's directory is at work elsewhere.
func (h *held) copied(l *coordinationv1.Lease) bool {
	return l.Spec.RenewTime != nil && !h.tried[l.Spec.RenewTime.UnixMicro()]
}

// observation is what was seen of a lease that is another's, and for how long it stood still.
type observation struct {
	holder, rv string
	last       time.Time
	silent     time.Duration
}

// claim makes this agent the node. A lease that names another is watched for as long as it lasts,
// by this clock: renewed meanwhile, its agent lives, and the node is taken; untouched, it is taken
// over. Only changes count, never the times written in it, and of a time without looks little: an
// API server that is away takes no renewals either.
func (r *Registrar) claim(ctx context.Context) error {
	var seen observation
	for failures := 0; ; {
		wait, err := r.tryClaim(ctx, &seen)
		switch {
		case errors.Is(err, ErrNodeTaken):
			return err
		case err == nil && wait == 0:
			return nil
		case kube.IsConflict(err) || kube.IsAlreadyExists(err):
			wait = 10 * time.Millisecond // somebody was faster: look at who
		case err != nil:
			if failures++; failures == 1 && ctx.Err() == nil {
				r.log.Warn("lease not to be had", slog.Any("error", err))
			}
			wait = min(time.Second<<min(failures-1, 4), r.cfg.HeartbeatEvery)
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tryClaim takes the lease, or says how long to wait before the next look.
func (r *Registrar) tryClaim(ctx context.Context, seen *observation) (time.Duration, error) {
	raw, err := r.api.Get(ctx, r.leaseRef())
	if kube.IsNotFound(err) {
		return 0, r.writeLease(ctx, nil)
	}
	if err != nil {
		return 0, err
	}
	lease, err := decode[coordinationv1.Lease](raw)
	if err != nil {
		return 0, err
	}
	holder, named := lease.Annotations[InstanceAnnotation]
	if named && (holder == "" || holder == r.cfg.Instance) {
		return 0, r.writeLease(ctx, lease)
	}
	if !named {
		holder = "a program that is no agent of ours"
	}
	now := r.cfg.Now()
	switch {
	case seen.holder != holder:
		*seen = observation{holder: holder, rv: lease.ResourceVersion, last: now}
		r.log.Info("the node's lease is another's, watching it", slog.String("instance", holder))
	case seen.rv != lease.ResourceVersion:
		return 0, fmt.Errorf("%w: node %q is run by %s, which renewed its lease", ErrNodeTaken, r.cfg.Name, holder)
	}
	lasts := r.duration()
	if s := lease.Spec.LeaseDurationSeconds; s != nil && *s > 0 {
		lasts = time.Duration(*s) * time.Second
	}
	seen.silent += min(now.Sub(seen.last), lasts/8)
	seen.last = now
	if left := lasts - seen.silent; left > 0 {
		return min(left, max(lasts/16, time.Millisecond)), nil
	}
	r.log.Info("taking the node over from a silent agent", slog.String("instance", holder))
	return 0, r.writeLease(ctx, lease)
}

func (r *Registrar) leaseRef() kube.Ref {
	return kube.Leases.Ref(kube.NodeLeaseNamespace, r.cfg.Name)
}

// duration of the lease: a whole number of seconds, four heartbeats.
func (r *Registrar) duration() time.Duration {
	return max((4*r.cfg.HeartbeatEvery + time.Second - 1).Truncate(time.Second), time.Second)
}

// writeLease renews the lease, or creates it when was is nil, for this agent.
func (r *Registrar) writeLease(ctx context.Context, was *coordinationv1.Lease) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.cfg.Name, Namespace: kube.NodeLeaseNamespace}}
	if was != nil {
		lease = was.DeepCopy()
	}
	lease.TypeMeta = metav1.TypeMeta{Kind: kube.Leases.Kind, APIVersion: kube.Leases.APIVersion()}
	annotations := maps.Clone(lease.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[InstanceAnnotation] = r.cfg.Instance
	lease.Annotations = annotations
	if node := r.Node(); node != nil {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	}
	lease.Spec.HolderIdentity = &r.cfg.Name
	lease.Spec.LeaseDurationSeconds = new(int32(r.duration() / time.Second))
	lease.Spec.RenewTime = new(metav1.NewMicroTime(r.cfg.Now()))
	if r.held != nil {
		r.held.tried[lease.Spec.RenewTime.UnixMicro()] = true
	}
	return r.putLease(ctx, lease, was == nil)
}

func (r *Registrar) putLease(ctx context.Context, lease *coordinationv1.Lease, create bool) error {
	body, err := encode(lease)
	if err != nil {
		return err
	}
	var raw []byte
	if create {
		raw, err = r.api.Create(ctx, kube.Leases.Ref(kube.NodeLeaseNamespace, ""), body, kube.WriteOptions{})
	} else {
		raw, err = r.api.Update(ctx, r.leaseRef(), body, kube.WriteOptions{})
	}
	if err != nil {
		return fmt.Errorf("node: lease %q: %w", r.cfg.Name, err)
	}
	lease, err = decode[coordinationv1.Lease](raw)
	if err == nil {
		r.held = &held{lease: lease, tried: map[int64]bool{}}
		if t := lease.Spec.RenewTime; t != nil {
			r.held.tried[t.UnixMicro()] = true
		}
	}
	return err
}

// renewing renews the lease at every heartbeat until ctx ends, or another has it.
func (r *Registrar) renewing(ctx context.Context) error {
	tick := time.NewTicker(r.cfg.HeartbeatEvery)
	defer tick.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		err := r.renew(ctx)
		switch {
		case errors.Is(err, ErrNodeTaken):
			return err
		case err == nil:
			failures = 0
		case ctx.Err() == nil:
			if failures++; failures == 1 {
				r.log.Warn("lease not renewed", slog.Any("error", err))
			}
		}
	}
}

// renew renews the lease once, within a heartbeat. A lease that changed is read: still
// ours, or gone, it is written again; another's, it is lost.
func (r *Registrar) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.HeartbeatEvery)
	defer cancel()
	lease := r.held.lease
	var err error
	for range tries {
		if err = r.writeLease(ctx, lease); err == nil {
			return nil
		}
		raw, readErr := r.api.Get(ctx, r.leaseRef())
		switch {
		case kube.IsNotFound(readErr):
			lease = nil
			continue
		case readErr != nil:
			return errors.Join(err, readErr)
		}
		if lease, readErr = decode[coordinationv1.Lease](raw); readErr != nil {
			return readErr
		}
		if holder, named := lease.Annotations[InstanceAnnotation]; named && holder != r.cfg.Instance && holder != "" {
			return fmt.Errorf("%w: node %q was taken over by %s", ErrNodeTaken, r.cfg.Name, holder)
		} else if holder == r.cfg.Instance && r.held.copied(lease) {
			return fmt.Errorf("%w: node %q is run by an agent on a copy of this one's directory, instance %s", ErrNodeTaken, r.cfg.Name, holder)
		}
	}
	return err
}

// releaseWithin bounds the last write of an agent that stops.
const releaseWithin = 2 * time.Second

// release gives the lease up without renewing it, so that the next agent need not wait
// while the node is seen as silent from now on.
func (r *Registrar) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	lease := r.held.lease
	var err error
	for range tries {
		lease = lease.DeepCopy()
		lease.TypeMeta = metav1.TypeMeta{Kind: kube.Leases.Kind, APIVersion: kube.Leases.APIVersion()}
		lease.Annotations[InstanceAnnotation] = ""
		if err = r.putLease(ctx, lease, false); !kube.IsConflict(err) {
			break
		}
		// Perhaps the renewal that the stop interrupted was written.
		raw, readErr := r.api.Get(ctx, r.leaseRef())
		if readErr != nil {
			err = readErr
			break
		}
		if lease, readErr = decode[coordinationv1.Lease](raw); readErr != nil || lease.Annotations[InstanceAnnotation] != r.cfg.Instance {
			return // it is another's
		}
	}
	if err != nil {
		r.log.Debug("lease not released", slog.Any("error", err))
	}
}
