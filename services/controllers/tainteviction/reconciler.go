package tainteviction

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/taint"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Config is the settings of a [Reconciler]. The zero value is Kubernetes' behaviour.
type Config struct {
	// Rules are the matching rules in force.
	Rules taint.Rules
	// Now is the clock; time.Now when nil.
	Now func() time.Time
	// Metrics is where metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
}

const (
	// longestDelay bounds one wait: a far deadline is planned again on the way.
	longestDelay = 6 * time.Hour
	// lookAgain is when a node's pods are listed a second time after its taints
	// changed: two indexers that are each behind in one collection could make both
	// the pod's own look and the node's first one miss the pair.
	lookAgain = 10 * time.Second
	// untilShown is when a pod is looked at again whose countdown is over and whose
	// node has other taints than the index shows.
	untilShown = time.Second
	// maxState is what the queue keeps with a key.
	maxState = 4096
)

// Reconciler judges pods. It holds nothing between calls and is safe for
// concurrent use.
type Reconciler struct {
	cfg     Config
	api     API
	events  kube.EventRecorder
	log     *slog.Logger
	metrics *metrics
}

// New returns a reconciler.
func New(cfg Config, api API, e kube.EventRecorder, log *slog.Logger) (*Reconciler, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("tainteviction: metrics: %w", err)
	}
	return &Reconciler{cfg: cfg, api: api, events: e, log: log, metrics: m}, nil
}

// Reconcile looks at one key. It returns when to look again, zero for not before
// something changes; an error means to try again as the limiter says.
func (r *Reconciler) Reconcile(ctx context.Context, req Request) (after time.Duration, err error) {
	if strings.Contains(req.Key, "/") {
		return r.pod(ctx, req)
	}
	return r.node(ctx, req)
}

// nodeState is what is kept of a node between looks.
type nodeState struct {
	UID    string `json:"uid"`
	Taints string `json:"taints,omitempty"` // fingerprint
	Again  bool   `json:"again,omitempty"`  // its pods are to be listed once more
}

// node wakes a node's pods when its NoExecute taints are not those of the last
// look.
func (r *Reconciler) node(ctx context.Context, req Request) (time.Duration, error) {
	raw, err := req.Reader.Node(ctx, req.Key)
	if err != nil {
		return 0, err
	}
	if raw == nil { // countdowns go on without it
		return 0, save(ctx, req, nil)
	}
	n, err := decode[node]("node "+req.Key, raw)
	if err != nil {
		return 0, err
	}
	was := readState[nodeState](req.State)
	is := nodeState{UID: n.Metadata.UID, Taints: taint.Fingerprint(n.Spec.Taints)}
	changed := is.Taints != was.Taints || is.UID != was.UID && was.UID != ""
	if !changed && !was.Again {
		return 0, nil
	}
	keys, err := req.Reader.PodsOn(ctx, req.Key)
	if err != nil {
		return 0, err
	}
	if err := req.Lease.Wake(ctx, keys); err != nil {
		return 0, err
	}
	is.Again = changed
	if err := save(ctx, req, is); err != nil {
		return 0, err
	}
	if is.Again {
		return lookAgain, nil
	}
	return 0, nil
}

// podState is what is kept of a pod between looks.
type podState struct {
	UID  string     `json:"uid"`
	Node string     `json:"node"`
	Ends *time.Time `json:"ends,omitempty"` // of the countdown that runs
	// By is what the countdown was planned by: the node's UID and the tolerations.
	By   string     `json:"by,omitempty"`
	Seen taint.Seen `json:"seen,omitempty"`
}

// ends is when the countdown that runs ends; zero for none.
func (s podState) ends() time.Time {
	if s.Ends == nil {
		return time.Time{}
	}
	return *s.Ends
}

func (r *Reconciler) pod(ctx context.Context, req Request) (time.Duration, error) {
	raw, err := req.Reader.Pod(ctx, req.Key)
	if err != nil {
		return 0, err
	}
	if raw == nil {
		return 0, save(ctx, req, nil)
	}
	p, err := decode[pod]("pod "+req.Key, raw)
	if err != nil {
		return 0, err
	}
	if p.Metadata.DeletionTimestamp != nil {
		return 0, save(ctx, req, nil)
	}
	was := readState[podState](req.State)
	if was.UID != p.Metadata.UID || was.Node != p.Spec.NodeName {
		was = podState{} // another pod of the name: nothing of it holds for this one
	}
	raw, err = r.nodeOf(ctx, p, req.Reader.Node)
	if err != nil {
		return 0, err
	}
	j, err := r.judge(p, raw, was)
	if err != nil {
		return 0, err
	}
	if !j.stay.Due(r.cfg.Now()) {
		return r.plan(ctx, req, p, was, j)
	}
	return r.evict(ctx, req, was, j)
}

func (r *Reconciler) nodeOf(ctx context.Context, p *pod, read func(context.Context, string) ([]byte, error)) ([]byte, error) {
	if p.Spec.NodeName == "" {
		return nil, nil
	}
	return read(ctx, p.Spec.NodeName)
}

// judgement is how long a pod may stay on its node.
type judgement struct {
	stay taint.Stay
	// continued says that a running countdown ends it, before the taints that stand would.
	continued bool
	seen      taint.Seen
	taints    string // their fingerprint
	by        string // what the stay was judged by, besides taints
}

// judge says how long a pod may stay on its node; raw is nil when there is none.
// A running countdown goes on only under the tolerations and on the node that it
// was planned by.
func (r *Reconciler) judge(p *pod, raw []byte, was podState) (judgement, error) {
	if raw == nil { // the node is gone: what was planned holds
		return judgement{stay: taint.Stay{Ends: was.ends()}, seen: was.Seen, by: was.By}, nil
	}
	n, err := decode[node]("node "+p.Spec.NodeName, raw)
	if err != nil {
		return judgement{}, err
	}
	j := judgement{taints: taint.Fingerprint(n.Spec.Taints), by: n.Metadata.UID + "/" + taint.FingerprintOf(p.Spec.Tolerations)}
	j.stay, j.seen = r.cfg.Rules.Stay(r.cfg.Now(), n.Spec.Taints, p.judged(), was.Seen)
	if j.by == was.By {
		fresh := j.stay.Ends
		j.stay = j.stay.Continue(was.ends())
		j.continued = j.stay.Ends.Before(fresh)
	}
	return j, nil
}

// plan keeps what the next look must know and says when that is.
func (r *Reconciler) plan(ctx context.Context, req Request, p *pod, was podState, j judgement) (time.Duration, error) {
	stay := j.stay
	if stay.Forever() {
		if was.Ends != nil {
			r.events.Event(p.involved(), kube.Normal, eventReason, "Cancelling deletion of Pod "+p.key())
		}
		if len(j.seen) == 0 {
			return 0, save(ctx, req, nil)
		}
	}
	is := podState{UID: p.Metadata.UID, Node: p.Spec.NodeName, Seen: j.seen}
	if !stay.Forever() {
		is.Ends, is.By = &stay.Ends, j.by
	}
	if err := save(ctx, req, is); err != nil || stay.Forever() {
		return 0, err
	}
	return min(max(stay.Ends.Sub(r.cfg.Now()), time.Millisecond), longestDelay), nil
}

const eventReason = "TaintManagerEviction"

// evict reads the pod and its node as they are, judges again, and deletes.
func (r *Reconciler) evict(ctx context.Context, req Request, was podState, indexed judgement) (time.Duration, error) {
	namespace, name, _ := strings.Cut(req.Key, "/")
	raw, err := r.api.Get(ctx, kube.Pods.Ref(namespace, name))
	if kube.IsNotFound(err) {
		return 0, save(ctx, req, nil)
	}
	if err != nil {
		return 0, err
	}
	p, err := decode[pod]("pod "+req.Key, raw)
	if err != nil || p.Metadata.DeletionTimestamp != nil {
		return 0, err
	}
	if p.Metadata.UID != was.UID || p.Spec.NodeName != was.Node {
		was = podState{}
	} else {
		was.Seen = indexed.seen
	}
	raw, err = r.nodeOf(ctx, p, func(ctx context.Context, node string) ([]byte, error) {
		return r.api.Get(ctx, kube.Nodes.Ref("", node))
	})
	if err != nil && !kube.IsNotFound(err) {
		return 0, err
	}
	live, err := r.judge(p, raw, was)
	if err != nil {
		return 0, err
	}
	now := r.cfg.Now()
	stay := live.stay
	if !stay.Due(now) {
		return r.plan(ctx, req, p, was, live)
	}
	if live.continued && live.taints != indexed.taints {
		return untilShown, nil // the node may have been well in between: what the index tells of that decides
	}
	if err := req.Lease.Alive(); err != nil {
		return 0, err
	}
	if req.Retries == 0 {
		r.events.Event(p.involved(), kube.Normal, eventReason, "Marking for deletion Pod "+req.Key)
	}
	if c := p.condition(disruptionTarget); c.Status != "True" || c.Reason != disruptionReason {
		patch, err := disruptionPatch(p.Metadata.UID, now)
		if err == nil {
			_, err = r.api.Patch(ctx, kube.Pods.Ref(namespace, name).Status(), kube.StrategicPatch, patch, kube.WriteOptions{})
		}
		if kube.IsNotFound(err) {
			return 0, save(ctx, req, nil)
		}
		if err != nil { // a conflict too: the present owner of the name is judged by itself
			return 0, fmt.Errorf("tainteviction: mark pod %s: %w", req.Key, err)
		}
	}
	switch _, err := r.api.Delete(ctx, kube.Pods.Ref(namespace, name), kube.DeleteOptions{UID: p.Metadata.UID}); {
	case kube.IsNotFound(err):
		return 0, save(ctx, req, nil)
	case err != nil:
		return 0, fmt.Errorf("tainteviction: delete pod %s: %w", req.Key, err)
	}
	r.metrics.deleted(r.cfg.Now().Sub(stay.Ends))
	r.log.InfoContext(ctx, "pod evicted", slog.String("key", req.Key), slog.String("node", p.Spec.NodeName), slog.String("taint", stay.Because.Key))
	return 0, nil
}

// save keeps v with the key, unless that is what is kept; nil clears it.
func save(ctx context.Context, req Request, v any) error {
	var state []byte
	if v != nil {
		var err error
		if state, err = json.Marshal(v); err != nil {
			return fmt.Errorf("tainteviction: state of %s: %w", req.Key, err)
		}
	}
	if string(state) == string(req.State) {
		return nil
	}
	if len(state) > maxState {
		return fmt.Errorf("tainteviction: %s has too many taints that do not say when they were placed", req.Key)
	}
	return req.Lease.Save(ctx, state)
}

// readState reads what was saved; what cannot be read is as good as nothing, for
// it only saves work or belongs to an older version.
func readState[T any](state []byte) T {
	var v T
	if err := json.Unmarshal(state, &v); err != nil {
		var none T
		return none
	}
	return v
}
