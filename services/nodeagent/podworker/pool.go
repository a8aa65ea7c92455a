package podworker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Cache is where the statuses of pods come from: pleg.Cache.
type Cache interface {
	// Get returns what is known now; a status without a time for a pod nobody has looked at.
	Get(uid types.UID) (*container.PodStatus, error)
	// GetNewerThan waits until the pod was looked at after a time.
	GetNewerThan(ctx context.Context, uid types.UID, after time.Time) (*container.PodStatus, error)
}

// Config of a pool; the zero value is the kubelet's.
type Config struct {
	// Waits are the times between syncs. Default 1 min, 10 s, 1 s.
	Waits podsync.Waits
	// Grace is how long steps may go on after the pool was stopped. Default 5 s.
	Grace time.Duration
	// Now is the clock, Random uniform in [0, 1). Defaults time.Now, rand.Float64.
	Now    func() time.Time
	Random func() float64
	// Refresh, when set, asks for a new look at a pod. It is called before a step
	// waits for a status that is newer than the last step, and must not block.
	Refresh func(types.UID)
	// Failed, when set, is notified of every step that failed and of its pod, nil for an
	// orphan. It must not block.
	Failed func(pod *corev1.Pod, err error)
	// Metrics, when set, gets kubelet_pod_worker_duration_seconds and others.
	Metrics prometheus.Registerer
	// Log is where failed steps are told. Default nowhere.
	Log *slog.Logger
}

// Pool holds the workers, one per pod UID. It is safe for concurrent use.
// Updates may come before Run; they are acted on once it runs.
type Pool struct {
	cfg    Config
	syncer Syncer
	cache  Cache
	m      *metrics
	due    chan struct{} // told when something falls due earlier than before

	mu      sync.Mutex // guards what follows
	workers map[types.UID]*worker
	queue   podsync.Due[types.UID]
	synced  bool
	spawn   func(*worker) // nil before Run and after it
	abort   func()        // cancels every step; nil before Run
}

// worker is one UID. The pool's mutex guards it.
type worker struct {
	uid    types.UID
	life   *podsync.Worker[body]
	signal chan struct{} // one slot: an update waits
	stop   chan struct{} // closed when the worker is done
	runs   bool          // its goroutine was started
	cancel context.CancelFunc
	status StatusFunc // of the last kill that brought one
	done   []func()   // to call once nothing runs
	seen   time.Time  // when the UID was first heard of
	begun  bool       // its first step has begun
}

// body is what an update carries for the syncer.
type body struct {
	pod     *corev1.Pod
	running *container.Pod
}

// New returns a pool without workers. The error says which metrics exist already.
func New(cfg Config, syncer Syncer, cache Cache) (*Pool, error) {
	cfg.Waits.Resync = cmp.Or(cfg.Waits.Resync, time.Minute)
	cfg.Waits.Error = cmp.Or(cfg.Waits.Error, 10*time.Second)
	cfg.Waits.Transient = cmp.Or(cfg.Waits.Transient, time.Second)
	cfg.Grace = cmp.Or(cfg.Grace, 5*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	return &Pool{cfg: cfg, syncer: syncer, cache: cache, m: m, due: make(chan struct{}, 1), workers: map[types.UID]*worker{}}, nil
}

// Run runs the workers until ctx ends. Steps under way get [Config.Grace] to come
// to their end, then they are cancelled; no other begins. It returns nil.
func (p *Pool) Run(ctx context.Context) error {
	steps, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var wg sync.WaitGroup
	p.mu.Lock()
	p.abort = cancel
	p.spawn = func(w *worker) {
		w.runs = true
		wg.Go(func() { p.loop(ctx, steps, w) })
	}
	for _, w := range p.workers {
		if w.life.State() != podsync.Finished {
			p.spawn(w)
		}
	}
	p.mu.Unlock()

	<-ctx.Done()
	p.mu.Lock()
	p.spawn = nil
	p.mu.Unlock()
	late := time.AfterFunc(p.cfg.Grace, cancel)
	defer late.Stop()
	wg.Wait()
	return nil
}

// Abort cancels the steps under way, without [Config.Grace]. The pool is of no use afterwards: the
// caller stops Run as well.
func (p *Pool) Abort() {
	p.mu.Lock()
	abort := p.abort
	p.mu.Unlock()
	if abort != nil {
		abort()
	}
}

// Update gives a pod's worker an update, and makes the worker when there is
// none. It returns why the update was not taken, if it was not.
func (p *Pool) Update(u Update) podsync.Refusal {
	if u.Pod == nil && u.RunningPod == nil {
		return podsync.OrphanNotKilled
	}
	uid, now := u.uid(), p.cfg.Now()
	update := podsync.Update[body]{Kind: u.Kind, Body: body{u.Pod, u.RunningPod}, Begin: now}
	if u.Pod != nil {
		update.Body.running = nil
		update.Facts = factsOf(u.Pod)
	} else {
		update.Orphan = true
	}
	if u.Kill != nil {
		update.Kill = &podsync.Kill{Grace: u.Kill.Grace, Evict: u.Kill.Evict}
	}

	p.mu.Lock()
	w, refused := p.offer(uid, update, now)
	var done func() // to call at once: nothing runs, or nothing will be told of this kill
	if u.Kill != nil {
		done = u.Kill.Done
		if refused == podsync.None && w.life.State() == podsync.Terminating {
			if u.Kill.Status != nil {
				w.status = u.Kill.Status
			}
			if done != nil {
				w.done = append(w.done, done)
			}
			done = nil
		}
	}
	if refused == podsync.None {
		p.wake(w)
	}
	p.mu.Unlock()
	if done != nil {
		done()
	}
	return refused
}

func (p *Pool) offer(uid types.UID, u podsync.Update[body], now time.Time) (*worker, podsync.Refusal) {
	if w := p.workers[uid]; w != nil {
		cancel, refused := w.life.Offer(u)
		if cancel {
			w.cancel()
		}
		return w, refused
	}
	quiet := false
	if u.Facts.Ended {
		status, err := p.cache.Get(uid)
		// A status without a time is nobody's answer: the first looks may be under way, and containers
		// run.
		quiet = err == nil && status != nil && !status.At.IsZero() && !status.Running()
	}
	life, refused := podsync.NewWorker(u, quiet)
	if refused != podsync.None {
		return nil, refused
	}
	w := &worker{uid: uid, life: life, signal: make(chan struct{}, 1), stop: make(chan struct{}), seen: now}
	p.workers[uid] = w
	if p.spawn != nil {
		p.spawn(w)
	}
	return w, podsync.None
}

// wake tells a worker that an update waits. The mutex is held.
func (p *Pool) wake(w *worker) {
	if !w.life.Waiting() {
		return
	}
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// forget ends a worker's goroutine; drop also takes it out of the pool, so that its UID may start
// over. The mutex is held.
func (p *Pool) forget(w *worker, drop bool) {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	p.queue.Drop(w.uid)
	if drop {
		delete(p.workers, w.uid)
	}
}

// factsOf are what the rules look at.
func factsOf(pod *corev1.Pod) podsync.Facts {
	return podsync.Facts{
		Deleting:      pod.DeletionTimestamp != nil,
		Ended:         pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		DeletionGrace: pod.DeletionGracePeriodSeconds,
		SpecGrace:     pod.Spec.TerminationGracePeriodSeconds,
	}
}

// cancelled reports whether a step ended because it was instructed to.
func cancelled(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
