package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Zones is a replica's view of the zones. All replicas see the same index and set
// the same rates; what they set is kept by the queues. Safe for concurrent use.
type Zones struct {
	rules   nodelifecycle.Rules
	waiting Waiting
	metrics *metrics
	log     *slog.Logger

	round chan struct{} // holds one while a refresh is under way

	mu    sync.Mutex // guards what follows
	view  nodelifecycle.View
	known bool
	at    time.Time                      // when the view was made
	set   map[nodelifecycle.Zone]float64 // rates this replica set last
}

// refreshTimeout bounds a refresh: meanwhile no other one can be made.
const refreshTimeout = 10 * time.Second

// View is what was last seen; false before anything was, or when it is too old.
func (z *Zones) View() (nodelifecycle.View, bool) {
	z.mu.Lock()
	defer z.mu.Unlock()
	return z.view, z.known
}

// Forget makes a view that is older than d unknown: nothing is stopped by it.
func (z *Zones) Forget(d time.Duration) {
	z.mu.Lock()
	z.known = z.known && time.Since(z.at) <= d
	z.mu.Unlock()
}

// Again makes the next refresh set every rate, as after a loss of the queue's store.
func (z *Zones) Again() {
	z.mu.Lock()
	clear(z.set)
	z.mu.Unlock()
}

// Refresh judges the zones by the index's nodes, which list gives each as JSON,
// and sets the rates of their queues. The rates are set before the
// view is shown, so that nobody acts on a new view under an old rate. One refresh
// is under way at a time, and ends within 10 s; a list must not be of an earlier
// state than the one before.
func (z *Zones) Refresh(ctx context.Context, list func(context.Context) ([][]byte, error)) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	select {
	case z.round <- struct{}{}:
		defer func() { <-z.round }()
	case <-ctx.Done():
		return ctx.Err()
	}
	began := time.Now()
	defer func() { z.metrics.refreshed.Observe(time.Since(began).Seconds()) }()
	raws, err := list(ctx)
	if err != nil {
		return err
	}
	nodes := make([]*nodelifecycle.Node, 0, len(raws))
	for _, raw := range raws {
		n, err := kube.Decode[nodelifecycle.Node](raw, nil)
		if err != nil {
			return fmt.Errorf("nodelifecycle: a node of the index: %w", err)
		}
		nodes = append(nodes, n)
	}
	view := z.rules.View(nodes)
	var faults []error
	for _, zone := range z.all(nodes) {
		rate := z.rules.RateOf(view, zone)
		if err := z.limit(ctx, zone, rate); err != nil {
			faults = append(faults, fmt.Errorf("nodelifecycle: rate of zone %q: %w", zone, err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	z.mu.Lock()
	old := z.view
	z.view, z.known, z.at = view, true, time.Now()
	z.mu.Unlock()
	z.metrics.counted(view.Counts, old.Counts)
	for zone, state := range view.States {
		c := view.Counts[zone]
		if old.States[zone] != state {
			z.log.InfoContext(ctx, "zone state", slog.String("zone", zone.String()), slog.String("state", string(state)), slog.Int("not_ready", c.NotReady), slog.Int("nodes", c.Size()))
		}
	}
	if old.Stopped != view.Stopped {
		z.log.WarnContext(ctx, "all zones are down, or no longer", slog.Bool("stopped", view.Stopped))
	}
	return nil
}

// all are the zones of all nodes, also of those that are not counted.
func (z *Zones) all(nodes []*nodelifecycle.Node) []nodelifecycle.Zone {
	seen := map[nodelifecycle.Zone]bool{}
	var out []nodelifecycle.Zone
	for _, n := range nodes {
		if zone := nodelifecycle.ZoneOf(n.Metadata.Labels); !seen[zone] {
			seen[zone] = true
			out = append(out, zone)
		}
	}
	return out
}

func (z *Zones) limit(ctx context.Context, zone nodelifecycle.Zone, rate float64) error {
	z.mu.Lock()
	was, known := z.set[zone]
	same := known && was == rate
	if !same {
		delete(z.set, zone) // until it is set for certain: a call that fails may have been carried out
	}
	z.mu.Unlock()
	if same {
		return nil
	}
	if err := z.waiting.Limit(ctx, zone, rate); err != nil {
		return err
	}
	z.mu.Lock()
	z.set[zone] = rate
	z.mu.Unlock()
	return nil
}

// Turn is a node that its zone's queue handed out.
type Turn struct {
	Zone nodelifecycle.Zone
	Name string
	// Nodes are the index's nodes, as of a resource version or later.
	Nodes func(ctx context.Context, least string) ([][]byte, error)
	// Alive is nil while the turn is this worker's.
	Alive func() error
}

// Taint places the NoExecute taint on a node whose turn it is. It reads the
// node live: one that is ready again, tainted already, gone or in another zone by
// now is left alone. The zones are judged again with the node as it is: what took it
// may have taken every zone since they were. It returns when to try again
// while the zone is stopped.
func (r *Reconciler) Taint(ctx context.Context, t Turn) (after time.Duration, err error) {
	for try := 1; ; try++ {
		// A conflict is tried again here: it must not cost the zone another token.
		if after, err = r.taint(ctx, t); !kube.IsConflict(err) || try == tries {
			return after, err
		}
	}
}

// tries is how often a node that changes under our hands is read again.
const tries = 5

func (r *Reconciler) taint(ctx context.Context, t Turn) (after time.Duration, err error) {
	n, err := kube.DecodeFound[nodelifecycle.Node](r.api.Get(ctx, kube.Nodes.Ref("", t.Name)))
	if err != nil || n == nil {
		return 0, err
	}
	plan := nodelifecycle.Taints(n, false, r.cfg.Now())
	if !plan.Wait || nodelifecycle.ZoneOf(n.Metadata.Labels) != t.Zone {
		return 0, nil
	}
	if err := r.zones.Refresh(ctx, func(ctx context.Context) ([][]byte, error) { return t.Nodes(ctx, n.Metadata.ResourceVersion) }); err != nil {
		return 0, err
	}
	if view, _ := r.zones.View(); r.cfg.Rules.RateOf(view, t.Zone) == 0 {
		return r.cfg.Rules.Gap / 2, nil
	}
	key := nodelifecycle.Executing(n)
	plan.Place(key, r.cfg.Now())
	if err := t.Alive(); err != nil {
		return 0, err
	}
	next, err := r.patch(ctx, n, plan, nil)
	if err != nil || next == nil {
		return 0, err
	}
	r.metrics.evictions.WithLabelValues(r.metrics.zones.Of(t.Zone.String())).Inc()
	r.log.InfoContext(ctx, "node tainted", slog.String("node", t.Name), slog.String("zone", t.Zone.String()), slog.String("taint", key))
	return 0, nil
}
