package nodelifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Config is the settings of a [Reconciler]. The zero value is Kubernetes' behaviour.
type Config struct {
	Rules nodelifecycle.Rules
	// Now is the clock that taints and conditions are stamped by; time.Now when nil.
	// Silence is not measured by it.
	Now func() time.Time
	// Metrics is where metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
}

// Reconciler looks at nodes. It is safe for concurrent use.
type Reconciler struct {
	cfg     Config
	api     API
	waiting Waiting
	events  kube.EventRecorder
	zones   *Zones
	log     *slog.Logger
	metrics *metrics
}

// New returns a reconciler.
func New(cfg Config, api API, q Waiting, e kube.EventRecorder, log *slog.Logger) (*Reconciler, error) {
	if err := cfg.Rules.Validate(); err != nil {
		return nil, err
	}
	cfg.Rules = cfg.Rules.WithDefaults()
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("nodelifecycle: metrics: %w", err)
	}
	return &Reconciler{
		cfg: cfg, api: api, waiting: q, events: e, log: log, metrics: m,
		zones: &Zones{rules: cfg.Rules, waiting: q, metrics: m, log: log, round: make(chan struct{}, 1), set: map[nodelifecycle.Zone]float64{}},
	}, nil
}

// Zones is this replica's view of the zones.
func (r *Reconciler) Zones() *Zones { return r.zones }

// memory is what is kept of a node between looks.
type memory struct {
	nodelifecycle.Memory

	// Waits is the zone in whose queue the node was put; nil for none.
	Waits *nodelifecycle.Zone `json:"waits,omitempty"`
	// Late are the pods seen that were bound since the node says that it is not
	// ready, by [short] UIDs.
	Late []uint32 `json:"late,omitempty"`
}

// Look is what a look at a node came to.
type Look struct {
	// After is when to look again; zero for not before something changes.
	After time.Duration
	// Silence is how long nothing was heard of the node; zero when it was not judged.
	Silence nodelifecycle.Silence
}

// Node looks at a node. An error means to try again as the limiter says,
// [ErrStale] uncounted.
func (r *Reconciler) Node(ctx context.Context, req Request) (look Look, err error) {
	look.After, err = r.node(ctx, req, &look.Silence)
	return look, err
}

func (r *Reconciler) node(ctx context.Context, req Request, told *nodelifecycle.Silence) (time.Duration, error) {
	began := time.Now()
	defer func() { r.metrics.looked.Observe(time.Since(began).Seconds()) }()
	fresh, err := req.Reader.Fresh(ctx)
	if err != nil {
		return 0, err
	}
	var m memory
	if err := json.Unmarshal(req.State, &m); err != nil && len(req.State) > 0 {
		m = memory{} // of another version: the node is looked at as for the first time
	}
	n, err := kube.Decode[nodelifecycle.Node](req.Reader.Node(ctx, req.Name))
	if err != nil {
		return 0, fmt.Errorf("nodelifecycle: node %s: %w", req.Name, err)
	}
	if n == nil {
		if err := r.leave(ctx, &m, req.Name); err != nil {
			return 0, err
		}
		return 0, r.save(ctx, req, nil)
	}
	lease, err := kube.Decode[nodelifecycle.Lease](req.Reader.Lease(ctx, req.Name))
	if err != nil {
		return 0, fmt.Errorf("nodelifecycle: lease of node %s: %w", req.Name, err)
	}
	view, known := r.zones.View()
	var silence nodelifecycle.Silence
	defer func() {
		*told = silence
		told.Since = m.Since // which a live look may have moved
	}()
	m.Memory, silence = r.cfg.Rules.Look(m.Memory, n, lease, fresh, known && view.Stopped)
	if silence.Over() {
		if n, err = r.expire(ctx, req, &m, n, silence); err != nil || n == nil {
			return r.next(silence, fresh), errors.Join(err, r.save(ctx, req, &m))
		}
	}
	if n, err = r.place(ctx, n, &m, known, view); err != nil {
		return 0, errors.Join(err, r.save(ctx, req, &m))
	}
	if err := r.markPods(ctx, req, &m, n); err != nil {
		return 0, errors.Join(err, r.save(ctx, req, &m))
	}
	return r.next(silence, fresh), r.save(ctx, req, &m)
}

// next is when to look again at a node: always well within the gap, so that its
// silence is measured without one, and when its grace will be over. By then the
// collections may not be known that far; what they lag is waited for in short
// steps. A heartbeat makes it earlier.
func (r *Reconciler) next(s nodelifecycle.Silence, f nodelifecycle.Fresh) time.Duration {
	every := r.cfg.Rules.Gap * 3 / 5
	if s.Left <= 0 {
		return every
	}
	return min(every, max(s.Left-f.Heard.Sub(f.Known), r.cfg.Rules.Gap/50))
}

// expire makes the conditions of a silent node unknown. It reads node and lease
// live first: nobody is called dead by a cache. The node is nil when it is not
// silent, or gone.
func (r *Reconciler) expire(ctx context.Context, req Request, m *memory, n *nodelifecycle.Node, silence nodelifecycle.Silence) (*nodelifecycle.Node, error) {
	if len(nodelifecycle.Expire(n, r.cfg.Now())) == 0 {
		return n, nil // it is known to be silent
	}
	live, err := kube.DecodeFound[nodelifecycle.Node](r.api.Get(ctx, kube.Nodes.Ref("", req.Name)))
	if err != nil || live == nil {
		return nil, err
	}
	lease, err := kube.DecodeFound[nodelifecycle.Lease](r.api.Get(ctx, kube.Leases.Ref(kube.NodeLeaseNamespace, req.Name)))
	if err != nil {
		return nil, err
	}
	if live.Metadata.UID != m.UID || m.Heartbeat(live, lease) {
		m.Since = m.Known // what was heard will come by the log; until then it is not silent
		return nil, nil
	}
	conditions := nodelifecycle.Expire(live, r.cfg.Now())
	if len(conditions) == 0 {
		return live, nil
	}
	if err := req.Lease.Alive(); err != nil {
		return nil, err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": live.Metadata.UID, "resourceVersion": live.Metadata.ResourceVersion},
		"status":   map[string]any{"conditions": conditions},
	})
	if err != nil {
		return nil, err
	}
	after, err := kube.DecodeFound[nodelifecycle.Node](r.api.Patch(ctx, kube.Nodes.Ref("", req.Name).Status(), kube.StrategicPatch, patch, kube.WriteOptions{}))
	if err != nil || after == nil {
		return nil, err
	}
	r.log.InfoContext(ctx, "node is silent", slog.String("node", req.Name), slog.Duration("silence", silence.For))
	if live.Ready() == nodelifecycle.True {
		// As upstream does: about the node's name and UID, in no namespace.
		r.events.Event(kube.Nodes.Involved("", req.Name, live.Metadata.UID), kube.Normal, notReadyReason, "Node "+req.Name+" status is now: NodeNotReady")
	}
	return after, nil
}

// notReadyReason is the reason of the Events about a node that is not ready and its pods.
const notReadyReason = "NodeNotReady"

// place gives a node its taints and labels, and a place in its zone's queue while
// it waits for its first NoExecute taint.
func (r *Reconciler) place(ctx context.Context, n *nodelifecycle.Node, m *memory, known bool, view nodelifecycle.View) (*nodelifecycle.Node, error) {
	plan := nodelifecycle.Taints(n, known && view.Stopped, r.cfg.Now())
	labels := nodelifecycle.Labels(n)
	if plan.Changed || labels != nil {
		next, err := r.patch(ctx, n, plan, labels)
		if err != nil || next == nil {
			return n, err
		}
		n = next
	}
	if !plan.Wait || n.Metadata.UID != m.UID {
		return n, r.leave(ctx, m, n.Metadata.Name)
	}
	zone := nodelifecycle.ZoneOf(n.Metadata.Labels)
	if m.Waits != nil && *m.Waits != zone { // relabelled meanwhile
		if err := r.leave(ctx, m, n.Metadata.Name); err != nil {
			return n, err
		}
	}
	// Also when it waits there already: the queue's store may have lost it.
	if err := r.waiting.Add(ctx, zone, n.Metadata.Name); err != nil {
		return n, err
	}
	m.Waits = &zone
	return n, nil
}

// leave takes a node that need not wait any more out of the queue, so that it
// costs its zone nothing.
func (r *Reconciler) leave(ctx context.Context, m *memory, name string) error {
	if m.Waits == nil {
		return nil
	}
	if err := r.waiting.Remove(ctx, *m.Waits, name); err != nil {
		return err
	}
	m.Waits = nil
	return nil
}

func (r *Reconciler) patch(ctx context.Context, n *nodelifecycle.Node, plan nodelifecycle.Plan, labels map[string]string) (*nodelifecycle.Node, error) {
	meta := map[string]any{"uid": n.Metadata.UID, "resourceVersion": n.Metadata.ResourceVersion}
	body := map[string]any{"metadata": meta}
	if labels != nil {
		meta["labels"] = labels
	}
	if plan.Changed {
		body["spec"] = map[string]any{"taints": plan.Taints}
	}
	patch, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	next, err := kube.DecodeFound[nodelifecycle.Node](r.api.Patch(ctx, kube.Nodes.Ref("", n.Metadata.Name), kube.MergePatch, patch, kube.WriteOptions{}))
	if err != nil {
		return nil, fmt.Errorf("nodelifecycle: patch node %s: %w", n.Metadata.Name, err)
	}
	return next, nil
}

// save keeps m with the key, unless that is what is kept; nil clears it.
func (r *Reconciler) save(ctx context.Context, req Request, m *memory) error {
	var state []byte
	if m != nil {
		var err error
		if state, err = json.Marshal(m); err != nil {
			return fmt.Errorf("nodelifecycle: state of %s: %w", req.Name, err)
		}
	}
	if string(state) == string(req.State) {
		return nil
	}
	return req.Lease.Save(ctx, state)
}
