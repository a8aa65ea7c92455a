package job

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Config is how a [Reconciler] runs. Zero values mean defaults.
type Config struct {
	// Parallel is how many calls one sync has in flight; default 32.
	Parallel int
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Metrics is where metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
}

func (c Config) validate() error {
	if c.Parallel < 0 {
		return fmt.Errorf("job: Parallel is %d, must not be negative", c.Parallel)
	}
	return nil
}

// Reconciler syncs Jobs. It keeps nothing between syncs, so any number of them,
// in any processes, may work one queue. It is safe for concurrent use.
type Reconciler struct {
	parallel int
	now      func() time.Time
	api      Writer
	events   kube.EventRecorder
	log      *slog.Logger
	metrics  *metrics
}

// New returns a reconciler that writes through api and records events.
func New(cfg Config, api Writer, events kube.EventRecorder, log *slog.Logger) (*Reconciler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reconciler{parallel: cmp.Or(cfg.Parallel, 32), now: cfg.Now, api: api, events: events, log: log, metrics: m}, nil
}

// Reconcile syncs the Job of one leased key and says how to end
// the lease. It returns after every call it started has ended.
func (r *Reconciler) Reconcile(ctx context.Context, req Request) Result {
	namespace, name, err := delta.Key(req.Key).Split()
	if err == nil && namespace == "" {
		err = fmt.Errorf("job: key %q has no namespace", req.Key)
	}
	if err != nil {
		return Result{Settle: Dead, Err: err}
	}
	s := &run{Reconciler: r, req: req, namespace: namespace, name: name}
	s.memory, s.remembered = decodeMemory(req.State)
	// Only a live read ends the doubt.
	s.unsure = req.Attempt > 1 || s.memory.Unsure
	started := r.now()
	res := s.guarded(ctx)
	r.metrics.synced(s.mode, s.action, res, r.now().Sub(started))
	return res
}

// guarded makes a panic a lost lease: what was written is not known any more.
func (s *run) guarded(ctx context.Context) (res Result) {
	defer func() {
		if p := recover(); p != nil {
			res = Result{Settle: Lost, Err: fmt.Errorf("job: sync of %s panicked: %v\n%s", s.req.Key, p, debug.Stack())}
		}
	}()
	return s.conclude(ctx, s.sync(ctx))
}

// run is one sync of one key.
type run struct {
	*Reconciler
	req             Request
	namespace, name string
	memory          memory
	remembered      bool // there was a memory
	live            bool // the index is not to be trusted in this sync
	wake            time.Duration
	read            Revisions
	action, mode    string            // of the sync, for its metrics
	status          batchv1.JobStatus // as the server has it

	open               []replica.Child // may exist, and nobody has seen them
	deleting, stripped map[types.UID]bool

	mu          sync.Mutex // guards what follows
	wrote       Revisions
	unsure      bool
	seen, ended []string // to be observed
}

// sync makes upstream's first checks, in its order. The consistency gate is the
// barrier, which the caller that leased the key has waited for.
func (s *run) sync(ctx context.Context) error {
	s.action, s.mode = "reconciling", modeOf(nil)
	s.live = s.unsure
	j, err := s.job(ctx)
	if err != nil {
		return err
	}
	s.mode = modeOf(j)
	if s.memory.UID != "" && (j == nil || j.UID != s.memory.UID) {
		if err := s.sweepGone(ctx, s.memory.UID); err != nil {
			return err
		}
		s.memory, s.remembered = memory{}, false
	}
	switch {
	case j == nil:
		return s.sweepGone(ctx, "")
	case j.Spec.ManagedBy != nil && *j.Spec.ManagedBy != batchv1.JobControllerName:
		return s.external(ctx, j)
	case finished(j):
		return s.sweep(ctx, j)
	}
	if j.Spec.Selector == nil {
		return fmt.Errorf("job %s/%s has no selector", s.namespace, s.name)
	}
	if unknownMode(j) {
		return s.unmanaged(ctx, j)
	}
	if indexed(j) && j.Spec.Completions == nil {
		return fmt.Errorf("job %s/%s is indexed and has no spec.completions", s.namespace, s.name)
	}
	s.memory.UID = j.UID
	if !s.remembered && !s.live && touched(&j.Status) {
		s.live = true // what was known about this Job is lost
		if j, err = s.sameJob(ctx, j.UID); err != nil {
			return err
		}
	}
	return s.syncJob(ctx, j)
}

// external is a Job that another controller manages: of it only the TTL is
// kept, as upstream does for every Job.
func (s *run) external(ctx context.Context, j *batchv1.Job) error {
	first, err := s.leaveAlone(ctx, j)
	if err != nil {
		return err
	}
	if first {
		s.metrics.externals.WithLabelValues(s.metrics.managers.Of(*j.Spec.ManagedBy)).Inc()
	}
	if finished(j) {
		return s.expire(ctx, j)
	}
	return nil
}

// unmanaged is a Job that this controller cannot run. While it is being deleted its
// pods have nobody else to take their finalizers off.
func (s *run) unmanaged(ctx context.Context, j *batchv1.Job) error {
	const message = "Skipped Job sync because completion mode is unknown"
	if _, err := s.leaveAlone(ctx, j); err != nil {
		return err
	}
	if s.memory.Told != message {
		s.events.Event(about(j), kube.Warning, "UnknownCompletionMode", message)
		s.memory.Told = message
	}
	if j.DeletionTimestamp == nil {
		return nil
	}
	return s.sweepDeleting(ctx, j)
}

// leaveAlone remembers a Job that is not synced, so that its pods are found once it is
// gone, and frees those of earlier Jobs of its name when it is seen first.
func (s *run) leaveAlone(ctx context.Context, j *batchv1.Job) (first bool, err error) {
	if first = s.memory.UID != j.UID; first {
		if err := s.sweepOthers(ctx, j); err != nil {
			return false, err
		}
	}
	s.memory = memory{UID: j.UID, Told: s.memory.Told}
	s.unsure = false // nothing is decided by the index
	return first, nil
}

// touched reports whether a Job has been synced before, by anybody.
func touched(st *batchv1.JobStatus) bool {
	return st.StartTime != nil || st.UncountedTerminatedPods != nil || len(st.Conditions) > 0 ||
		st.Active+st.Succeeded+st.Failed > 0
}

// unknownMode reports whether a Job has a completion mode that nobody knows here.
func unknownMode(j *batchv1.Job) bool {
	mode := j.Spec.CompletionMode
	return mode != nil && *mode != batchv1.NonIndexedCompletion && *mode != batchv1.IndexedCompletion
}

// job reads the Job, from the index or live.
func (s *run) job(ctx context.Context) (*batchv1.Job, error) {
	raw, rev, err := s.req.Reader.Job(ctx, s.namespace, s.name)
	if err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	s.read.Jobs = rev
	if s.live {
		return s.liveJob(ctx)
	}
	if raw == nil {
		return nil, nil //nolint:nilnil // absent
	}
	return decodeJob(raw)
}

func (s *run) liveJob(ctx context.Context) (*batchv1.Job, error) {
	j, err := s.api.Job(ctx, s.namespace, s.name)
	switch {
	case kube.IsNotFound(err):
		return nil, nil //nolint:nilnil // absent
	case err != nil:
		return nil, fmt.Errorf("read job live: %w", err)
	}
	setDefaults(j)
	s.sawJob(j.ResourceVersion)
	return j, nil
}

// sameJob reads the Job live and fails if it is not the one meant.
func (s *run) sameJob(ctx context.Context, uid types.UID) (*batchv1.Job, error) {
	j, err := s.liveJob(ctx)
	if err == nil && (j == nil || j.UID != uid) {
		err = fmt.Errorf("job %s/%s with UID %s is gone", s.namespace, s.name, uid)
	}
	return j, err
}

func (s *run) sawJob(rv delta.RV) { s.saw(&s.wrote.Jobs, rv) }
func (s *run) sawPod(rv delta.RV) { s.saw(&s.wrote.Pods, rv) }

func (s *run) saw(r *delta.Revision, rv delta.RV) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.RV = delta.MaxRV(r.RV, rv)
}

// doubt makes the next sync read live.
func (s *run) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsure = true
}

// conclude saves what must not be forgotten and maps the outcome.
func (s *run) conclude(ctx context.Context, err error) Result {
	// Not only its own writes: the next sync may meet another indexer, and must
	// not see an older world than this one decided on.
	s.sawJob(s.read.Jobs.RV)
	s.sawPod(s.read.Pods.RV)
	s.wrote.Jobs.Epoch, s.wrote.Pods.Epoch = s.read.Jobs.Epoch, s.read.Pods.Epoch
	res := Result{ReadAt: s.read, Wrote: s.wrote, Err: err}
	if errors.Is(err, ErrLeaseLost) || ctx.Err() != nil {
		res.Settle = Lost
		return res
	}
	if saveErr := s.remember(ctx, err != nil); saveErr != nil {
		res.Settle, res.Err = Lost, errors.Join(err, saveErr)
		return res
	}
	switch {
	case err != nil:
		res.Settle = RateLimited
	case s.wake > 0:
		res.Settle, res.After = After, s.wake
	}
	return res
}

// remember saves what the next sync must know. One that failed before it knew
// which Job it was about hands its doubt on.
func (s *run) remember(ctx context.Context, failed bool) error {
	var state []byte
	if s.memory.UID != "" || s.unsure && failed {
		// Names that may yet appear are looked for live, as long as the queue
		// keeps them.
		s.memory.Unsure = s.unsure || len(s.open) > 0
		var err error
		if state, err = s.memory.encode(); err != nil {
			return err
		}
	}
	if len(s.seen)+len(s.ended) > 0 && s.req.Lease.Alive() == nil {
		// Left standing they would only be looked at again.
		if err := s.req.Lease.Observe(ctx, "", s.seen, s.ended); errors.Is(err, ErrLeaseLost) {
			return err
		}
	}
	if bytes.Equal(state, s.req.State) {
		return nil
	}
	if err := s.req.Lease.Save(ctx, state); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	s.req.State = state
	return nil
}
