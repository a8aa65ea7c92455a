package job_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// The simulation runs real reconcilers against the model of the API server, a
// model of the queue and indexes that lag, and lets a seeded scheduler decide
// when each single call takes effect. A call that is not let through for long is
// a stopped process (SIGSTOP); one that is let through after the lease is gone is
// a packet that arrives late.

const (
	leaseFor    = 30 * time.Second
	leaseMargin = 2 * time.Second
)

type plan struct {
	late        bool // calls may take effect after the caller's lease is gone
	calm        bool // pods always succeed, nobody meddles
	parallelism int32
	completions int32
	limit       int32
	faults      float64 // how often a call's outcome is unknown, or it is refused
	indexed     bool
	perIndex    bool // failures are counted for each index
	policy      bool // disruptions do not count as failures
}

// shape makes a Job one of the plan.
func (p plan) shape(j *batchv1.Job) {
	if p.indexed {
		j.Spec.CompletionMode = new(batchv1.IndexedCompletion)
	}
	if p.perIndex {
		j.Spec.BackoffLimitPerIndex = new(p.limit)
	}
	if p.policy {
		j.Spec.PodFailurePolicy = ignoreDisruptions
	}
}

var ignoreDisruptions = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
	Action:          batchv1.PodFailurePolicyActionIgnore,
	OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
}}}

func disrupted(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
}

type sim struct {
	t    *testing.T
	plan plan
	rnd  *rand.Rand
	w    *world

	mu      sync.Mutex
	pending []*pendingCall
	ending  bool // let everything through

	// the queue, one key
	token     uint64
	held      *simLease // nil: nobody holds the key
	attempt   int64
	state     []byte
	expected  job.Expected
	storedAt  time.Time
	barrier   job.Revisions
	notBefore time.Time

	workers    []*simWorker
	settled    map[job.Settle]int
	recoveries int  // leases after one that was lost
	expired    bool // names were forgotten that may still appear
}

type pendingCall struct {
	worker *simWorker
	op     string
	go_    chan struct{}
}

type simLease struct {
	s        *sim
	token    uint64
	deadline time.Time // by the queue's clock
}

type simWorker struct {
	s       *sim
	id      int
	r       *job.Reconciler
	lease   *simLease // of the reconcile that runs
	busy    bool
	stopped int // so many calls of release long
}

func (s *sim) gate(w *simWorker, op string) {
	c := &pendingCall{w, op, make(chan struct{})}
	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		return
	}
	s.pending = append(s.pending, c)
	s.mu.Unlock()
	<-c.go_
}

func (l *simLease) Alive() error {
	if time.Now().Before(l.deadline.Add(-leaseMargin)) {
		return nil
	}
	return job.ErrLeaseLost
}

// fenced runs f if the token is still the key's.
func (l *simLease) fenced(w *simWorker, op string, f func()) error {
	l.s.gate(w, op)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if l.s.token != l.token || l.s.held != l {
		return job.ErrLeaseLost
	}
	f()
	return nil
}

// boundLease is a lease as the reconciler sees it.
type boundLease struct {
	*simLease
	w *simWorker
}

func (l boundLease) Save(_ context.Context, state []byte) error {
	return l.fenced(l.w, "save", func() { l.s.state = slices.Clone(state) })
}

func (l boundLease) Expect(_ context.Context, owner string, creations, deletions []string) error {
	return l.fenced(l.w, "expect", func() {
		l.s.expected = job.Expected{Owner: owner, Creations: slices.Clone(creations), Deletions: slices.Clone(deletions), Token: l.token}
		l.s.storedAt = time.Now()
	})
}

func (l boundLease) Observe(_ context.Context, _ string, creations, deletions []string) error {
	l.s.gate(l.w, "observe")
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	e := &l.s.expected
	e.Creations = slices.DeleteFunc(slices.Clone(e.Creations), func(n string) bool { return slices.Contains(creations, n) })
	e.Deletions = slices.DeleteFunc(slices.Clone(e.Deletions), func(n string) bool { return slices.Contains(deletions, n) })
	return nil
}

// gated is job.Writer: every call waits for the scheduler, and a write may be
// refused, or its answer lost.
type gated struct {
	*simWorker
}

var errTimeout = errors.New("timeout")

func through[T any](g gated, op string, do func() (T, error)) (T, error) {
	var zero T
	lease := g.lease
	g.s.gate(g.simWorker, op)
	if !g.s.plan.late && lease.Alive() != nil {
		return zero, job.ErrLeaseLost // the look at the clock and the call are one
	}
	g.s.mu.Lock()
	dice, ending := g.s.rnd.Float64(), g.s.ending
	g.s.mu.Unlock()
	f := g.s.plan.faults
	switch {
	case ending && lease.Alive() != nil:
		return zero, job.ErrLeaseLost
	case ending:
	case dice < f:
		return zero, fmt.Errorf("%w: over quota", kube.ErrRefused)
	case dice < 2*f:
		return zero, errTimeout
	case dice < 3*f:
		_, _ = do()
		return zero, errTimeout
	}
	return do()
}

func (g gated) Job(ctx context.Context, n, name string) (*batchv1.Job, error) {
	return g.s.w.Job(ctx, n, name)
}

func (g gated) Pod(ctx context.Context, n, name string) (*corev1.Pod, error) {
	return through(g, "get", func() (*corev1.Pod, error) { return g.s.w.Pod(ctx, n, name) })
}

func (g gated) ListPods(ctx context.Context, n, sel string) ([]corev1.Pod, delta.RV, error) {
	g.s.gate(g.simWorker, "list")
	return g.s.w.ListPods(ctx, n, sel)
}

func (g gated) CreatePod(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	return through(g, "create", func() (*corev1.Pod, error) { return g.s.w.CreatePod(ctx, p) })
}

func (g gated) PatchPod(ctx context.Context, n, name string, patch []byte) (*corev1.Pod, error) {
	return through(g, "patch", func() (*corev1.Pod, error) { return g.s.w.PatchPod(ctx, n, name, patch) })
}

func (g gated) DeletePod(ctx context.Context, n, name string, uid podUID) (string, error) {
	return through(g, "delete", func() (string, error) { return g.s.w.DeletePod(ctx, n, name, uid) })
}

func (g gated) DeleteJob(ctx context.Context, n, name string, uid podUID) error {
	_, err := through(g, "delete", func() (any, error) { return nil, g.s.w.DeleteJob(ctx, n, name, uid) })
	return err
}

func (g gated) PatchJobStatus(ctx context.Context, n, name string, patch []byte) (*batchv1.Job, error) {
	return through(g, "status", func() (*batchv1.Job, error) { return g.s.w.PatchJobStatus(ctx, n, name, patch) })
}

func newSim(t *testing.T, seed uint64, p plan) *sim {
	t.Helper()
	s := &sim{t: t, plan: p, rnd: rand.New(rand.NewPCG(seed, 0)), w: newWorld(time.Now), settled: map[job.Settle]int{}}
	for id := range 3 {
		w := &simWorker{s: s, id: id}
		var err error
		w.r, err = job.New(job.Config{Now: time.Now, Parallel: 1 + id}, gated{w}, &recorder{}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		s.workers = append(s.workers, w)
	}
	return s
}

// grant leases the key to an idle worker if nobody holds it, as the queue would.
func (s *sim) grant() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.held != nil && now.Before(s.held.deadline) || now.Before(s.notBefore) {
		return
	}
	i := slices.IndexFunc(s.workers, func(w *simWorker) bool { return !w.busy })
	if i < 0 {
		return
	}
	w := s.workers[i]
	s.token += 1 + s.rnd.Uint64N(5)
	s.attempt++
	if s.attempt > 1 {
		s.recoveries++
	}
	s.held = &simLease{s, s.token, now.Add(leaseFor)}
	w.lease, w.busy = s.held, true
	expected := s.expected
	if now.Sub(s.storedAt) >= 5*time.Minute {
		s.expired = s.expired || len(expected.Creations) > 0 && s.attempt > 1
		expected = job.Expected{}
	}
	req := job.Request{
		Key: "default/work", Token: s.token, Attempt: s.attempt, State: slices.Clone(s.state), Expected: expected,
		Reader: s.index(), Lease: boundLease{s.held, w},
	}
	lease := s.held
	go func() {
		res := w.r.Reconcile(context.Background(), req)
		s.settle(w, lease, res)
	}()
}

// index is a snapshot that lags as far as the barrier allows.
func (s *sim) index() *view {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	lag := func(r delta.Revision) int64 {
		least := int64(0)
		if r.RV != "" {
			least, _ = strconv.ParseInt(r.RV, 10, 64)
		}
		if least >= s.w.rv || s.rnd.IntN(3) == 0 {
			return s.w.rv
		}
		return max(least, s.w.rv-s.rnd.Int64N(12))
	}
	return &view{s.w, lag(s.barrier.Jobs), lag(s.barrier.Pods)}
}

func (s *sim) settle(w *simWorker, lease *simLease, res job.Result) {
	s.gate(w, "settle")
	s.mu.Lock()
	defer s.mu.Unlock()
	w.busy = false
	s.settled[res.Settle]++
	if res.Settle == job.Lost || s.held != lease {
		return
	}
	s.held, s.attempt = nil, 0
	raise := func(b *delta.Revision, read, wrote delta.Revision) {
		if delta.Compare(b.RV, read.RV) <= 0 {
			b.RV = ""
		}
		b.RV = delta.MaxRV(b.RV, wrote.RV)
	}
	raise(&s.barrier.Jobs, res.ReadAt.Jobs, res.Wrote.Jobs)
	raise(&s.barrier.Pods, res.ReadAt.Pods, res.Wrote.Pods)
	if res.Settle == job.RateLimited {
		s.notBefore = time.Now().Add(time.Second)
	}
}

// stop stops the process that holds the key, in the middle of its calls, for
// longer than its lease.
func (s *sim) stop() {
	s.mu.Lock()
	i := slices.IndexFunc(s.pending, func(c *pendingCall) bool {
		return c.worker.lease == s.held && c.worker.stopped <= 0 && (c.op == "create" || s.rnd.IntN(4) == 0)
	})
	if i < 0 {
		s.mu.Unlock()
		return
	}
	s.pending[i].worker.stopped = s.rnd.IntN(300)
	s.mu.Unlock()
	time.Sleep(leaseFor + time.Second)
}

// release lets one call through.
func (s *sim) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.workers {
		w.stopped--
	}
	if len(s.pending) == 0 {
		return
	}
	i := s.rnd.IntN(len(s.pending))
	// Mostly in order, so that syncs get somewhere.
	if s.rnd.IntN(4) > 0 {
		i = 0
		for k, c := range s.pending {
			if c.worker.lease == s.held {
				i = k
				break
			}
		}
	}
	c := s.pending[i]
	if c.worker.stopped > 0 {
		return
	}
	s.pending = slices.Delete(s.pending, i, i+1)
	close(c.go_)
}

// live moves pods along, and collects finished ones nobody holds.
func (s *sim) live() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	names := make([]string, 0, len(s.w.pods))
	for n := range s.w.pods {
		names = append(names, n)
	}
	if len(names) == 0 {
		return
	}
	slices.Sort(names)
	p := s.w.pods[names[s.rnd.IntN(len(names))]].DeepCopy()
	switch {
	case p.DeletionTimestamp != nil:
		if p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning {
			p.Status.Phase = corev1.PodFailed
		}
		s.w.putPod(p, true)
	case p.Status.Phase == corev1.PodPending && p.Spec.NodeName == "":
		p.Spec.NodeName = "node-1"
		s.w.putPod(p, false)
	case p.Status.Phase == corev1.PodPending:
		p.Status.Phase = corev1.PodRunning
		s.w.putPod(p, false)
	case p.Status.Phase == corev1.PodRunning:
		p.Status.Phase = corev1.PodSucceeded
		if !s.plan.calm && s.rnd.IntN(6) == 0 {
			p.Status.Phase = corev1.PodFailed
			if s.rnd.IntN(2) == 0 {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
			}
		}
		s.w.putPod(p, false)
	case len(p.Finalizers) == 0 && s.rnd.IntN(2) == 0: // a finished pod is collected
		s.w.putPod(p, true)
	}
}

// meddle is what users do.
func (s *sim) meddle() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	j := s.w.jobs["work"].DeepCopy()
	switch s.rnd.IntN(3) {
	case 0:
		j.Spec.Parallelism = new(s.rnd.Int32N(s.plan.parallelism + 1))
		s.w.putJob(j)
	case 1:
		j.Spec.Suspend = new(s.rnd.IntN(2) == 0)
		s.w.putJob(j)
	case 2:
		for _, p := range s.w.pods {
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
				p = p.DeepCopy()
				p.DeletionTimestamp = new(metaNow())
				s.w.putPod(p, vanishes(p))
				break
			}
		}
	}
}

// check looks at what must hold at every moment.
func (s *sim) check() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	n := int32(0)
	for _, p := range s.w.pods {
		if p.DeletionTimestamp == nil && (p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning) {
			n++
		}
	}
	if !s.plan.late && n > s.plan.parallelism {
		s.w.violate("%d active pods, parallelism never above %d", n, s.plan.parallelism)
	}
}

func (s *sim) failed() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return len(s.w.violations) > 0
}

func (s *sim) run(steps int) {
	s.w.mu.Lock()
	j := newJob(s.w, s.plan.parallelism, s.plan.completions, s.plan.limit)
	s.plan.shape(j)
	s.w.putJob(j)
	s.w.mu.Unlock()
	for range steps {
		synctest.Wait()
		s.check()
		if s.failed() {
			return
		}
		switch d := s.rnd.IntN(100); {
		case d < 60:
			s.release()
		case d < 80:
			s.live()
		case d < 93:
			s.grant()
		case d < 95:
			time.Sleep(time.Duration(1+s.rnd.IntN(3)) * time.Second)
		case d < 98:
			s.stop()
		case d < 99 && !s.plan.calm && s.rnd.IntN(3) == 0:
			s.meddle()
		}
	}
}

// calmDown lets everything finish: no more faults, no delays.
func (s *sim) calmDown() {
	s.w.mu.Lock()
	j := s.w.jobs["work"].DeepCopy()
	j.Spec.Parallelism, j.Spec.Suspend = new(s.plan.parallelism), new(false)
	s.w.putJob(j)
	s.w.mu.Unlock()
	// Late calls arrive one after the other, with work going on between them.
	for !s.failed() {
		s.mu.Lock()
		n := len(s.pending)
		s.mu.Unlock()
		if n == 0 {
			break
		}
		s.release()
		synctest.Wait()
		s.live()
		s.check()
	}
	s.mu.Lock()
	s.ending = true
	for _, c := range s.pending {
		close(c.go_)
	}
	s.mu.Unlock()
	for range 400 {
		if s.failed() {
			break
		}
		time.Sleep(11 * time.Minute) // longer than any back-off
		s.mu.Lock()
		s.barrier = job.Revisions{Jobs: revision(s.w.rv), Pods: revision(s.w.rv)}
		s.mu.Unlock()
		s.grant()
		synctest.Wait()
		for range 2 * (len(s.w.pods) + 1) {
			s.live()
		}
		s.check()
	}
}

func (s *sim) verify(seed uint64) {
	st := s.w.jobs["work"].Status
	fail := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf("seed %d, %+v: %s; status %s %s, %d pods born, settled %v",
			seed, s.plan, fmt.Sprintf(format, args...), show(st), summary(st), len(s.w.born), s.settled)
	}
	if s.failed() {
		fail("violations %q", s.w.violations)
		return
	}
	complete := slices.ContainsFunc(st.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
	})
	if !complete {
		fail("the Job did not complete")
	}
	if n := len(st.UncountedTerminatedPods.Succeeded) + len(st.UncountedTerminatedPods.Failed); n > 0 {
		fail("%d pods uncounted", n)
	}
	for _, p := range s.w.pods {
		if len(p.Finalizers) > 0 {
			fail("pod %s keeps its finalizer", p.Name)
		}
		if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodPending {
			fail("pod %s is left %s", p.Name, p.Status.Phase)
		}
	}
	// What succeeded, by the history of each pod; a second pod of a name is the
	// late work of somebody who had lost the lease and must not be counted.
	// One whose finalizer was taken off to delete it, and whose deletion then
	// failed, may still succeed: it has given up its right to be counted.
	ended, broken, indexes := map[podUID]bool{}, map[podUID]bool{}, map[podUID]string{}
	for _, c := range s.w.podLog {
		p := decode(c.raw)
		switch {
		case p == nil || len(p.Finalizers) == 0:
		case p.Status.Phase == corev1.PodSucceeded:
			ended[p.UID] = true
			indexes[p.UID] = p.Annotations[batchv1.JobCompletionIndexAnnotation]
		case s.plan.policy && disrupted(p):
		case p.Status.Phase == corev1.PodFailed || p.DeletionTimestamp != nil && !s.plan.policy:
			broken[p.UID] = true
		}
	}
	names, done := map[string]bool{}, map[string]bool{}
	succeeded := int32(0)
	for _, b := range s.w.born {
		if ended[b.uid] && !names[b.name] && !(s.plan.indexed && done[indexes[b.uid]]) {
			succeeded++
			done[indexes[b.uid]] = true
		}
		names[b.name] = true
	}
	if all := "0-" + strconv.Itoa(int(s.plan.completions-1)); s.plan.indexed && st.CompletedIndexes != all {
		fail("completed indexes %q, want %q", st.CompletedIndexes, all)
	}
	if st.Succeeded != succeeded {
		fail("%d counted, %d succeeded", st.Succeeded, succeeded)
	}
	if !s.plan.late && int(st.Failed) != len(broken) {
		fail("%d counted as failed, %d failed", st.Failed, len(broken))
	}
	if s.plan.calm && !s.expired && len(names) != int(s.plan.completions) {
		fail("%d names used for %d completions", len(names), s.plan.completions)
	}
	if !s.plan.late && len(names) != len(s.w.born) {
		fail("%d pods of %d names", len(s.w.born), len(names))
	}
	if !s.plan.late && st.Succeeded != s.plan.completions {
		fail("%d succeeded of %d", st.Succeeded, s.plan.completions)
	}
}

// 300 of each were run when this was written, and after every change of the protocol
// as many should be.
var histories = flag.Uint("histories", 25, "random histories of each plan to play")

// Two and more workers, any of them stopped between its read and its writes for
// longer than its lease and continued: never a pod too many, counters never fall,
// every success is counted exactly once, and the Job completes.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	n := uint64(*histories)
	if testing.Short() {
		n = min(n, 8)
	}
	plans := map[string]plan{
		"calm":              {calm: true, parallelism: 3, completions: 12, limit: 1000},
		"calm, faults":      {calm: true, parallelism: 3, completions: 12, limit: 1000, faults: 0.04},
		"calm, late":        {calm: true, late: true, parallelism: 3, completions: 12, limit: 1000},
		"users and faults":  {parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"users, late calls": {late: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},

		"indexed, calm":              {indexed: true, calm: true, parallelism: 3, completions: 12, limit: 1000, faults: 0.04},
		"indexed, users and faults":  {indexed: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"indexed, users, late calls": {indexed: true, late: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"per index, users":           {indexed: true, perIndex: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"per index, policy, users":   {indexed: true, perIndex: true, policy: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"policy, users":              {policy: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
		"per index, late calls":      {indexed: true, perIndex: true, policy: true, late: true, parallelism: 4, completions: 10, limit: 1000, faults: 0.03},
	}
	for name, p := range plans {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost, recov, second := 0, 0, 0
			for seed := range n {
				synctest.Test(t, func(t *testing.T) {
					s := newSim(t, seed, p)
					s.run(700)
					s.calmDown()
					s.verify(seed)
					lost += s.settled[job.Lost]
					recov += s.recoveries
					nm := map[string]bool{}
					for _, b := range s.w.born {
						if nm[b.name] {
							second++
						}
						nm[b.name] = true
					}
				})
				if t.Failed() {
					return
				}
			}
			t.Logf("%s: lost %d, recoveries %d, second births %d", name, lost, recov, second)
			if lost == 0 && n >= 20 {
				t.Error("no history in which a lease was lost")
			}
		})
	}
}
