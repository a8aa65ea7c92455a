package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// API is the API server: the node and its lease are read and written.
type API interface {
	kube.Getter
	kube.Creator
	kube.Updater
	kube.Patcher
}

// Health says what keeps the node from being ready: every error is in the condition's
// message. None when it is ready. It is called at each check and must not block for long.
type Health func(ctx context.Context) []error

// Registrar keeps one node. Its methods may be called at any time, Run once.
type Registrar struct {
	cfg     Config
	api     API
	sources Sources
	health  Health
	log     *slog.Logger

	registered chan struct{}
	once       sync.Once
	wake       chan struct{}
	node       atomic.Pointer[corev1.Node]

	held   *held                // belongs to the goroutine that renews
	lastOn map[string]time.Time // pressure by condition; belongs to the one that checks
	told   time.Time            // of the last report; belongs to the one that checks
}

// New returns a registrar; nothing is contacted. Errors name every field that is wrong.
func New(cfg Config, api API, sources Sources, health Health, log *slog.Logger) (*Registrar, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if health == nil {
		health = func(context.Context) []error { return nil }
	}
	return &Registrar{
		cfg: cfg, api: api, sources: sources, health: health, log: log,
		registered: make(chan struct{}), wake: make(chan struct{}, 1), lastOn: map[string]time.Time{},
	}, nil
}

// Registered is closed once this agent is the node and its object is there: nothing may be run
// in its name before.
func (r *Registrar) Registered() <-chan struct{} { return r.registered }

// Check looks at the node's condition now instead of at the next tick.
func (r *Registrar) Check() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Node is the node's object as it was last read or written, not to be changed; nil
// before it is registered.
func (r *Registrar) Node() *corev1.Node { return r.node.Load() }

// HostIPs are the node's own addresses, the primary first.
func (r *Registrar) HostIPs() []string {
	var out []string
	for _, a := range r.cfg.Addresses {
		if a.Type == corev1.NodeInternalIP {
			out = append(out, a.Address)
		}
	}
	return out
}

// Run keeps the node until ctx ends, then gives the lease up and returns nil. It returns an
// error wrapping [ErrNodeTaken] when another agent is the node, at the start or
// later: the caller must stop at once whatever it does in the node's name. An API server that is
// away is waited for.
func (r *Registrar) Run(ctx context.Context) error {
	if err := r.claim(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return r.renewing(running) })
	g.Go(func() error { return r.checking(running) })
	err := g.Wait()
	if !errors.Is(err, ErrNodeTaken) {
		r.release(ctx)
	}
	if ctx.Err() != nil && !errors.Is(err, ErrNodeTaken) {
		return nil
	}
	return err
}

// checking looks at the node at every tick until ctx ends.
func (r *Registrar) checking(ctx context.Context) error {
	tick := time.NewTicker(r.cfg.CheckEvery)
	defer tick.Stop()
	failures := 0
	for {
		err := r.check(ctx)
		if err != nil && ctx.Err() == nil {
			if failures++; failures == 1 {
				r.log.Warn("node not reported", slog.Any("error", err))
			}
		} else {
			failures = 0
		}
		// Until the node is there for the first time nothing can run: try sooner.
		var soon <-chan time.Time
		if err != nil && r.Node() == nil {
			soon = time.After(min(time.Second<<min(failures, 4), r.cfg.CheckEvery))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-r.wake:
		case <-soon:
		}
	}
}

// tries is how often a report that met a newer version is recreated at once.
const tries = 5

// check brings the node's object to what it should be, and makes it when it is not there.
func (r *Registrar) check(ctx context.Context) error {
	var err error
	for range tries {
		if err = r.report(ctx); !kube.IsConflict(err) && !kube.IsInvalid(err) {
			break
		}
	}
	if err == nil {
		r.once.Do(func() { close(r.registered) })
	}
	return err
}

func (r *Registrar) report(ctx context.Context) error {
	ref := kube.Nodes.Ref("", r.cfg.Name)
	raw, err := r.api.Get(ctx, ref)
	if kube.IsNotFound(err) {
		return r.create(ctx)
	}
	if err != nil {
		return err
	}
	node, err := decode[corev1.Node](raw)
	if err != nil {
		return err
	}
	if patch := r.labelPatch(node); patch != nil {
		if raw, err = r.api.Patch(ctx, ref, kube.MergePatch, patch, kube.WriteOptions{}); err != nil {
			return err
		}
		if node, err = decode[corev1.Node](raw); err != nil {
			return err
		}
	}
	now := r.cfg.Now()
	want := r.status(ctx, node, now)
	patch, err := statusPatch(node, want, now.Sub(r.told) >= r.cfg.ReportEvery)
	if err != nil || patch == nil {
		if err == nil {
			r.node.Store(node)
		}
		return err
	}
	ref.Subresource = "status"
	if raw, err = r.api.Patch(ctx, ref, kube.MergePatch, patch, kube.WriteOptions{}); err != nil {
		return err
	}
	before := node.Status
	if node, err = decode[corev1.Node](raw); err != nil {
		return err
	}
	r.tell(&before, &node.Status)
	r.told = now
	r.node.Store(node)
	return nil
}

// create makes the node; a node that appeared meanwhile is adopted by the next look.
func (r *Registrar) create(ctx context.Context) error {
	now := r.cfg.Now()
	node := r.object()
	node.Status = r.status(ctx, node, now)
	body, err := encode(node)
	if err != nil {
		return err
	}
	raw, err := r.api.Create(ctx, kube.Nodes.Ref("", ""), body, kube.WriteOptions{})
	if err != nil {
		return fmt.Errorf("node: create %q: %w", r.cfg.Name, err)
	}
	if node, err = decode[corev1.Node](raw); err != nil {
		return err
	}
	r.log.Info("node registered", slog.String("uid", string(node.UID)))
	r.told = now
	r.node.Store(node)
	return nil
}
