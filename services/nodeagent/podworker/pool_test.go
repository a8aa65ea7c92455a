package podworker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltaplane/deltaplane/core/podsync"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
	"github.com/deltaplane/deltaplane/services/nodeagent/podworker"
)

// cache answers at once, with a status of now, unless it is closed.
type cache struct {
	mu      sync.Mutex
	running map[types.UID]bool
	block   chan struct{} // when not nil, GetNewerThan waits for it
	asked   []time.Time
	at      time.Time // of every status
}

func (c *cache) Get(uid types.UID) (*container.PodStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &container.PodStatus{UID: uid, At: c.at}
	if c.running[uid] {
		s.Sandboxes = []container.SandboxStatus{{Sandbox: container.Sandbox{Ready: true}}}
	}
	return s, nil
}

func (c *cache) GetNewerThan(ctx context.Context, uid types.UID, after time.Time) (*container.PodStatus, error) {
	c.mu.Lock()
	c.asked = append(c.asked, after)
	block := c.block
	c.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return c.Get(uid)
}

// syncer writes down what it is asked to do, and does what its functions say.
type syncer struct {
	mu   sync.Mutex
	log  []string
	sync func(ctx context.Context, pod *corev1.Pod) (bool, error)
	end  func(ctx context.Context, pod *corev1.Pod, grace int64) error
	free func(pod *corev1.Pod) error
}

func (s *syncer) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *syncer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := s.log
	s.log = nil
	return log
}

func (s *syncer) SyncPod(ctx context.Context, kind podsync.Kind, pod *corev1.Pod, _ *container.PodStatus) (bool, error) {
	s.note("sync %s %s", kind, pod.Name)
	if s.sync == nil {
		return false, nil
	}
	return s.sync(ctx, pod)
}

func (s *syncer) SyncTerminatingPod(ctx context.Context, pod *corev1.Pod, _ *container.PodStatus, grace *int64, change podworker.StatusFunc) error {
	s.note("end %s in %d", pod.Name, *grace)
	if change != nil {
		var status corev1.PodStatus
		change(&status)
		s.note("because %s", status.Reason)
	}
	if s.end == nil {
		return nil
	}
	return s.end(ctx, pod, *grace)
}

func (s *syncer) SyncTerminatingRuntimePod(_ context.Context, running container.Pod) error {
	s.note("end orphan %s", running.Name)
	return nil
}

func (s *syncer) SyncTerminatedPod(_ context.Context, pod *corev1.Pod, _ *container.PodStatus) error {
	s.note("free %s", pod.Name)
	if s.free == nil {
		return nil
	}
	return s.free(pod)
}

func podNamed(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(30))},
	}
}

// bench is a pool that runs within a synctest bubble.
type bench struct {
	*podworker.Pool
	s     *syncer
	cache *cache
	stop  context.CancelFunc
}

func start(t *testing.T) *bench {
	t.Helper()
	return startWith(t, podworker.Config{})
}

func startWith(t *testing.T, cfg podworker.Config) *bench {
	t.Helper()
	cfg.Random = func() float64 { return 0 }
	b := &bench{s: &syncer{}, cache: &cache{running: map[types.UID]bool{}}}
	p, err := podworker.New(cfg, b.s, b.cache)
	if err != nil {
		t.Fatal(err)
	}
	b.Pool = p
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Run(ctx); err != nil {
			t.Errorf("Run() = %v", err)
		}
	}()
	b.stop = func() { cancel(); <-done }
	t.Cleanup(b.stop)
	return b
}

// did waits until nothing moves and compares what was done since the last call.
func (b *bench) did(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := b.s.take(); !slices.Equal(got, want) {
		t.Errorf("did %q, want %q", got, want)
	}
}

func (b *bench) update(t *testing.T, kind podsync.Kind, pod *corev1.Pod) {
	t.Helper()
	if r := b.Update(podworker.Update{Kind: kind, Pod: pod}); r != podsync.None {
		t.Errorf("Update(%v) = %v", kind, r)
	}
}

func TestAPodLivesFromCreateToFinished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		pod := podNamed("a")
		b.update(t, podsync.KindCreate, pod)
		b.did(t, "sync create a")
		b.update(t, podsync.KindUpdate, pod)
		b.did(t, "sync update a")

		deleted := pod.DeepCopy()
		deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(5))
		b.update(t, podsync.KindUpdate, deleted)
		b.did(t, "end a in 5", "free a")
		if s, known := b.State(pod.UID); !known || s != podsync.Finished || !b.Removable(pod.UID) {
			t.Errorf("State() = %v, %t, want finished and removable", s, known)
		}
		if r := b.Update(podworker.Update{Kind: podsync.KindUpdate, Pod: deleted}); r != podsync.AlreadyFinished {
			t.Errorf("Update() after the end = %v, want a refusal", r)
		}
		b.did(t)
		if left := b.SyncKnown(nil); len(left) != 0 {
			t.Errorf("SyncKnown() = %v, want the finished worker purged", left)
		}
		b.update(t, podsync.KindCreate, pod)
		b.did(t, "sync create a")
	})
}

func TestOneHungPodHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.sync = func(ctx context.Context, pod *corev1.Pod) (bool, error) {
			if pod.Name == "hung" {
				<-ctx.Done()
				return false, ctx.Err()
			}
			return false, nil
		}
		b.update(t, podsync.KindCreate, podNamed("hung"))
		b.did(t, "sync create hung")
		b.update(t, podsync.KindCreate, podNamed("other"))
		b.did(t, "sync create other")
		for range 5 {
			b.update(t, podsync.KindSync, podNamed("hung"))
		}
		b.did(t) // the latest waits, none runs beside the step under way
		b.Update(podworker.Update{Kind: podsync.KindKill, Pod: podNamed("hung")})
		b.did(t, "end hung in 30", "free hung") // the end cancels the sync
	})
}

func TestAShorterGraceCancelsTheEndUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.end = func(ctx context.Context, _ *corev1.Pod, grace int64) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(grace) * time.Second):
				return nil
			}
		}
		pod := podNamed("a")
		b.update(t, podsync.KindCreate, pod)
		b.update(t, podsync.KindKill, pod)
		synctest.Wait()
		b.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod, Kill: &podworker.KillOptions{Grace: new(int64(60))}})
		b.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod, Kill: &podworker.KillOptions{Grace: new(int64(2))}})
		synctest.Wait()
		begin := time.Now()
		for {
			if s, _ := b.State(pod.UID); s == podsync.Finished {
				break
			}
			time.Sleep(100 * time.Millisecond) // of the bubble
		}
		if took := time.Since(begin).Round(time.Second); took != 2*time.Second {
			t.Errorf("the end took %v, want the shorter grace of 2 s", took)
		}
		log := b.s.take()
		if want := "end a in 60"; slices.Contains(log, want) {
			t.Errorf("did %q: grace grew", log)
		}
	})
}

func TestAKillTellsItsReasonAndWhenItIsDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		pod := podNamed("a")
		b.update(t, podsync.KindCreate, pod)
		b.did(t, "sync create a")
		done := make(chan struct{})
		b.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod, Kill: &podworker.KillOptions{
			Evict: true, Done: func() { close(done) },
			Status: func(s *corev1.PodStatus) { s.Reason = "Evicted" },
		}})
		<-done
		b.did(t, "end a in 30", "because Evicted", "free a")
		late := make(chan struct{})
		b.Update(podworker.Update{Kind: podsync.KindKill, Pod: pod, Kill: &podworker.KillOptions{Done: func() { close(late) }}})
		<-late // a pod that has ended already does not let its killer wait
	})
}

func TestBeforeEachSyncAStatusNewerThanTheLastIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.sync = func(context.Context, *corev1.Pod) (bool, error) { return false, nil }
		b.update(t, podsync.KindCreate, podNamed("a"))
		b.did(t, "sync create a")
		first := time.Now()
		time.Sleep(time.Second) // of the bubble
		b.cache.mu.Lock()
		b.cache.block = make(chan struct{})
		b.cache.mu.Unlock()
		b.update(t, podsync.KindSync, podNamed("a"))
		b.did(t)
		close(b.cache.block)
		b.did(t, "sync sync a")
		if asked := b.cache.asked; len(asked) != 2 || !asked[0].IsZero() || !asked[1].Equal(first) {
			t.Errorf("statuses newer than %v were asked for, want any, then newer than %v", asked, first)
		}
	})
}

func TestAnOrphanIsEndedAndForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		running := container.Pod{UID: "orphan", Namespace: "ns", Name: "orphan"}
		if r := b.Update(podworker.Update{Kind: podsync.KindSync, RunningPod: &running}); r != podsync.OrphanNotKilled {
			t.Errorf("Update() = %v, want a refusal", r)
		}
		b.Update(podworker.Update{Kind: podsync.KindKill, RunningPod: &running})
		b.did(t, "end orphan orphan")
		if _, known := b.State("orphan"); known {
			t.Error("the orphan's worker is still there")
		}
	})
}

func TestAPodThatEndedInAnEarlierLifeIsOnlyFreed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		quiet, loud := podNamed("quiet"), podNamed("loud")
		quiet.Status.Phase, loud.Status.Phase = corev1.PodSucceeded, corev1.PodFailed
		b.cache.running[loud.UID] = true
		unknown := podNamed("unknown")
		unknown.Status.Phase = corev1.PodFailed
		b.update(t, podsync.KindCreate, unknown) // nobody has looked at it yet
		b.did(t, "end unknown in 30", "free unknown")
		b.cache.at = time.Now()
		b.update(t, podsync.KindCreate, quiet)
		b.did(t, "free quiet")
		b.update(t, podsync.KindCreate, loud)
		b.did(t, "end loud in 30", "free loud")
	})
}

func TestDueWorkOfAPodWhoseConfigurationIsGoneIsNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		tries := 0
		b.s.end = func(context.Context, *corev1.Pod, int64) error {
			if tries++; tries < 3 {
				return errors.New("the runtime is busy")
			}
			return nil
		}
		pod := podNamed("a")
		b.update(t, podsync.KindCreate, pod)
		b.update(t, podsync.KindKill, pod)
		for range 30 { // seconds of the bubble's clock; nobody calls Update any more
			time.Sleep(time.Second) // of the bubble
			for _, uid := range b.Due() {
				b.Again(uid)
			}
		}
		synctest.Wait()
		if s, _ := b.State(pod.UID); s != podsync.Finished || tries != 3 {
			t.Errorf("the pod is %v after %d tries, want finished after 3", s, tries)
		}
	})
}

func TestAPodThatIsWantedNoLongerEndsByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		kept, gone := podNamed("kept"), podNamed("gone")
		if b.Removable(kept.UID) {
			t.Error("before the sources are ready nothing may be concluded of a pod without a worker")
		}
		b.update(t, podsync.KindCreate, kept)
		b.update(t, podsync.KindCreate, gone)
		synctest.Wait()
		b.s.take()
		left := b.SyncKnown(map[types.UID]*corev1.Pod{kept.UID: kept})
		if k := left[gone.UID]; !k.Orphan || k.State != podsync.Terminating || left[kept.UID].Orphan {
			t.Errorf("SyncKnown() = %+v", left)
		}
		b.did(t, "end gone in 30", "free gone")
		if !b.Removable("nobody") {
			t.Error("once the sources are ready a pod without a worker is known to have ended")
		}
	})
}

func TestAPanicInOnePodsStepCostsOnlyThatStep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.sync = func(_ context.Context, pod *corev1.Pod) (bool, error) { panic("in " + pod.Name) }
		b.update(t, podsync.KindCreate, podNamed("a"))
		b.did(t, "sync create a")
		if at, ok := b.NextDue(); !ok || time.Until(at) != 10*time.Second {
			t.Errorf("NextDue() = %v, %t, want another try in 10 s", time.Until(at), ok)
		}
	})
}

func TestStoppingWaitsForStepsAndThenCancelsThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.sync = func(ctx context.Context, pod *corev1.Pod) (bool, error) {
			if pod.Name == "quick" {
				time.Sleep(2 * time.Second) // of the bubble
				return false, ctx.Err()
			}
			<-ctx.Done()
			return false, ctx.Err()
		}
		b.update(t, podsync.KindCreate, podNamed("quick"))
		b.update(t, podsync.KindCreate, podNamed("hung"))
		synctest.Wait()
		b.s.take()
		begin := time.Now()
		b.update(t, podsync.KindSync, podNamed("quick"))
		b.stop()
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("stopping took %v, want the grace of 5 s", took)
		}
		b.did(t) // what waited is for the next life
	})
}

func TestAbortCancelsStepsWithoutGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.s.sync = func(ctx context.Context, _ *corev1.Pod) (bool, error) { <-ctx.Done(); return false, ctx.Err() }
		b.update(t, podsync.KindCreate, podNamed("hung"))
		synctest.Wait()
		begin := time.Now()
		b.Abort()
		b.stop()
		if took := time.Since(begin); took != 0 {
			t.Errorf("stopping took %v, want no time", took)
		}
	})
}

func TestAPendingUpdateIsActedOnAtOnceAfterTheStep(t *testing.T) {
	t.Parallel()
	// Upstream's TestCompleteWork_PendingUpdate: also after a step that failed.
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		release := make(chan struct{})
		b.s.sync = func(context.Context, *corev1.Pod) (bool, error) { <-release; return false, errors.New("failed") }
		b.update(t, podsync.KindCreate, podNamed("a"))
		b.did(t, "sync create a")
		b.update(t, podsync.KindUpdate, podNamed("a"))
		b.did(t)
		release <- struct{}{}
		b.did(t, "sync update a")
		close(release)
		synctest.Wait()
		if at, ok := b.NextDue(); !ok || time.Until(at) != 10*time.Second {
			t.Errorf("NextDue() = %v, %t, want another try in 10 s", time.Until(at), ok)
		}
	})
}

func TestARunningPodBesideAPodIsNotLookedAt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Update(podworker.Update{Kind: podsync.KindCreate, Pod: podNamed("a"), RunningPod: &container.Pod{UID: "other"}})
		b.did(t, "sync create a")
		if _, known := b.State("other"); known {
			t.Error("a worker was made for the running pod")
		}
		if r := b.Update(podworker.Update{Kind: podsync.KindKill}); r != podsync.OrphanNotKilled {
			t.Errorf("Update() of no pod = %v, want a refusal", r)
		}
	})
}

func TestANewLookIsAskedForOnlyWhenNoneIsNewer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		b := startWith(t, podworker.Config{Refresh: func(types.UID) { asked.Add(1) }})
		b.update(t, podsync.KindCreate, podNamed("a"))
		b.did(t, "sync create a") // any status will do for the first step
		b.update(t, podsync.KindSync, podNamed("a"))
		b.did(t, "sync sync a")
		time.Sleep(time.Second)
		b.cache.mu.Lock()
		b.cache.at = time.Now()
		b.cache.mu.Unlock()
		b.update(t, podsync.KindSync, podNamed("a"))
		b.did(t, "sync sync a")
		if n := asked.Load(); n != 1 {
			t.Errorf("a new look was asked for %d times, want once: by the second step", n)
		}
	})
}
