package podgc

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/core/podgc"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Config is the settings of a [Reconciler]. The zero value is Kubernetes' behaviour.
type Config struct {
	Rules podgc.Rules
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Metrics is where metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
}

// TerminatedKey is the key of the pods that have ended. No object can have it.
const TerminatedKey = "@terminated"

// Reconciler collects pods. It holds nothing between calls and is safe for
// concurrent use.
type Reconciler struct {
	cfg     Config
	api     API
	log     *slog.Logger
	metrics *metrics
}

// New returns a reconciler.
func New(cfg Config, api API, log *slog.Logger) (*Reconciler, error) {
	if err := cfg.Rules.Validate(); err != nil {
		return nil, err
	}
	cfg.Rules = cfg.Rules.WithDefaults()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("podgc: metrics: %w", err)
	}
	return &Reconciler{cfg: cfg, api: api, log: log, metrics: m}, nil
}

// Next is when to look at a key again.
type Next struct {
	// After is in how long; zero for not before something changes.
	After time.Duration
	// Reason is [podgc.Gone] while a quarantine lasts.
	Reason string
}

// Reconcile looks at one key. An error means to try again as the limiter says,
// [ErrStale] uncounted.
func (r *Reconciler) Reconcile(ctx context.Context, req Request) (next Next, err error) {
	switch {
	case req.Key == TerminatedKey:
		next.After, err = r.terminated(ctx, req)
	case strings.Contains(req.Key, "/"):
		err = r.pod(ctx, req)
	default:
		next, err = r.node(ctx, req)
	}
	return next, err
}

// pod collects a pod that its own look shows to be due. The quarantine of a missing
// node is the node's: it is the same for all its pods, and ends when it returns.
func (r *Reconciler) pod(ctx context.Context, req Request) error {
	p, err := kube.Decode[podgc.Pod](req.Reader.Pod(ctx, req.Key))
	if err != nil {
		return fmt.Errorf("podgc: pod %s: %w", req.Key, err)
	}
	if p == nil {
		return nil
	}
	var n *nodelifecycle.Node
	if p.Spec.NodeName != "" {
		if n, err = kube.Decode[nodelifecycle.Node](req.Reader.Node(ctx, p.Spec.NodeName)); err != nil {
			return fmt.Errorf("podgc: node %s: %w", p.Spec.NodeName, err)
		}
	}
	switch why := podgc.Judge(p, n); why {
	case "":
		return nil
	case podgc.Orphaned:
		return req.Lease.Wake(ctx, []string{p.Spec.NodeName})
	default:
		if err := req.Reader.Fresh(ctx); err != nil {
			return err
		}
		return r.collect(ctx, req, req.Key, p.Spec.NodeName, why)
	}
}

// nodeState is what is kept of a node between looks.
type nodeState struct {
	// Missing is since when it is.
	Missing time.Time `json:"missing"`
}

func (r *Reconciler) node(ctx context.Context, req Request) (Next, error) {
	n, err := kube.Decode[nodelifecycle.Node](req.Reader.Node(ctx, req.Key))
	if err != nil {
		return Next{}, fmt.Errorf("podgc: node %s: %w", req.Key, err)
	}
	if n != nil {
		after, err := r.present(ctx, req, n)
		return Next{After: after}, err
	}
	var was nodeState
	if err := json.Unmarshal(req.State, &was); err != nil {
		was = nodeState{} // none, or of another version: the quarantine begins
	}
	since, left := r.cfg.Rules.Missing(was.Missing, r.cfg.Now())
	if !since.Equal(was.Missing) {
		state, err := json.Marshal(nodeState{Missing: since.UTC()})
		if err != nil {
			return Next{}, fmt.Errorf("podgc: state of %s: %w", req.Key, err)
		}
		if err := req.Lease.Save(ctx, state); err != nil {
			return Next{}, err
		}
	}
	if left > 0 {
		return Next{left, podgc.Gone}, nil
	}
	if err := r.orphans(ctx, req); err != nil {
		return Next{}, err
	}
	return Next{}, clearState(ctx, req)
}

// present ends a quarantine. While the node is out of service its pods are looked at
// again and again: those that are deleted later may have been bound only since.
func (r *Reconciler) present(ctx context.Context, req Request, n *nodelifecycle.Node) (time.Duration, error) {
	if err := clearState(ctx, req); err != nil || !podgc.Shut(n) {
		return 0, err
	}
	keys, err := req.Reader.PodsOn(ctx, req.Key)
	if err != nil {
		return 0, err
	}
	return r.cfg.Rules.Every, req.Lease.Wake(ctx, keys)
}

func clearState(ctx context.Context, req Request) error {
	if len(req.State) == 0 {
		return nil
	}
	return req.Lease.Save(ctx, nil)
}
