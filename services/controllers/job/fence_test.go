package job_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/core/replica"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/services/controllers/job"
)

// stopping is a worker's way to the API server that stops right before a
// creation is sent, lets the world go on, and continues.
type stopping struct {
	*world
	meanwhile func(name string)
}

func (s stopping) CreatePod(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	if s.meanwhile != nil {
		s.meanwhile(p.Name)
	}
	return s.world.CreatePod(ctx, p)
}

// fencedLease is a lease whose token another one can outdate.
type fencedLease struct {
	*keptLease // what all leases of the key share
	token      uint64
	latest     *uint64
	clock      func() bool // whether the deadline has passed by this process's clock
}

func (l fencedLease) stale() error {
	if *l.latest != l.token {
		return job.ErrLeaseLost
	}
	return nil
}

func (l fencedLease) Alive() error {
	if l.clock != nil && l.clock() {
		return job.ErrLeaseLost
	}
	return nil
}

func (l fencedLease) Save(ctx context.Context, state []byte) error {
	if err := l.stale(); err != nil {
		return err
	}
	return l.keptLease.Save(ctx, state)
}

func (l fencedLease) Expect(ctx context.Context, owner string, c, d []string) error {
	if err := l.stale(); err != nil {
		return err
	}
	return l.keptLease.Expect(ctx, owner, c, d)
}

// pair is a bench with as many workers as a test wants.
type pair struct {
	*bench
	latest uint64
}

func (p *pair) worker(w job.Writer) *job.Reconciler {
	p.t.Helper()
	r, err := job.New(job.Config{Now: func() time.Time { return p.now }, Parallel: 1}, w, p.rec, slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	return r
}

func (p *pair) request(attempt int64, v *view, expired func() bool) job.Request {
	p.latest++
	return job.Request{
		Key: "default/work", Token: p.latest, Attempt: attempt, State: slices.Clone(p.lease.state), Expected: p.lease.expected,
		Reader: v, Lease: fencedLease{p.lease, p.latest, &p.latest, expired},
	}
}

// set moves every pod to a phase.
func (p *pair) set(phase corev1.PodPhase) {
	for _, pod := range p.w.pods {
		pod = pod.DeepCopy()
		pod.Spec.NodeName = "node-1"
		inPhase(phase)(pod)
		p.w.putPod(pod, false)
	}
}

func TestAWorkerStoppedBetweenItsReadAndItsCreate(t *testing.T) {
	t.Parallel()
	t.Run("continued while the other's pod runs: the name is taken", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		p.w.putJob(newJob(p.w, 2, 2, 6))
		old := p.w.current()
		second := p.worker(p.w)
		first := p.worker(stopping{p.w, func(string) {
			if p.latest == 1 {
				if res := second.Reconcile(t.Context(), p.request(2, old, nil)); res.Err != nil {
					t.Error(res.Err)
				}
			}
		}})
		res := first.Reconcile(t.Context(), p.request(1, old, nil))
		if len(p.w.born) != 2 {
			t.Fatalf("%d pods born, want 2: %v", len(p.w.born), p.w.born)
		}
		if res.Settle != job.Lost {
			t.Errorf("the first settled as %v, %v", res.Settle, res.Err)
		}
	})
	t.Run("continued after the deadline by its own clock: it sends nothing", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		p.w.putJob(newJob(p.w, 8, 8, 6))
		gone := false
		first := p.worker(stopping{p.w, func(string) { gone = true }})
		res := first.Reconcile(t.Context(), p.request(1, p.w.current(), func() bool { return gone }))
		if n := p.w.calls["create"]; n != 1 || res.Settle != job.Lost || p.w.calls["status"] != 0 {
			t.Errorf("%d creations, %d status writes, settled %v", n, p.w.calls["status"], res.Settle)
		}
	})
	t.Run("stopped before it stored the names: the store refuses it, it creates nothing", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		p.w.putJob(newJob(p.w, 2, 2, 6))
		req := p.request(1, p.w.current(), nil)
		p.latest++ // somebody else has leased the key
		res := p.worker(p.w).Reconcile(t.Context(), req)
		if len(p.w.born) != 0 || res.Settle != job.Lost || !errors.Is(res.Err, job.ErrLeaseLost) {
			t.Errorf("%d pods, settled %v, %v", len(p.w.born), res.Settle, res.Err)
		}
	})
	t.Run("continued when the other's pod is counted and gone: its pod is removed and not counted", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		p.w.putJob(newJob(p.w, 1, 3, 6))
		old := p.w.current()
		second := p.worker(p.w)
		next := func(attempt int64) {
			t.Helper()
			if res := second.Reconcile(t.Context(), p.request(attempt, p.w.current(), nil)); res.Err != nil {
				t.Error(res.Err)
			}
		}
		first := p.worker(stopping{p.w, func(string) {
			if p.latest != 1 {
				return
			}
			next(2)                    // creates the same name
			p.set(corev1.PodSucceeded) // it ends
			next(1)                    // it is counted, the next one is created
			for name, pod := range p.w.pods {
				if len(pod.Finalizers) == 0 {
					pod = pod.DeepCopy()
					pod.DeletionTimestamp = new(metav1.NewTime(p.now))
					p.w.putPod(pod, true)
					if p.w.pods[name] != nil {
						t.Fatal("the counted pod is still there")
					}
				}
			}
		}})
		first.Reconcile(t.Context(), p.request(1, old, nil))
		if len(p.w.born) != 3 || p.w.born[0].name != p.w.born[2].name {
			t.Fatalf("not the history meant: %v", p.w.born)
		}
		if st := p.status("work"); st.Succeeded != 1 {
			t.Fatalf("%s before", show(st))
		}
		p.set(corev1.PodSucceeded) // the second pod, and the late one
		for range 3 {
			next(1)
		}
		if st := p.status("work"); st.Succeeded != 2 || st.Failed != 0 {
			t.Errorf("the late pod was counted: %s", show(st))
		}
		if _, ok := p.w.pods[p.w.born[0].name]; ok {
			t.Error("the late pod is still there")
		}
	})
	t.Run("continued after the Job has ended: its pod is deleted", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		j := newJob(p.w, 1, 1, 6)
		p.w.putJob(j)
		old := p.w.current()
		second := p.worker(p.w)
		first := p.worker(stopping{p.w, func(string) {
			if p.latest != 1 {
				return
			}
			second.Reconcile(t.Context(), p.request(2, old, nil))
			p.set(corev1.PodSucceeded)
			second.Reconcile(t.Context(), p.request(1, p.w.current(), nil))
			for _, pod := range p.w.pods {
				pod = pod.DeepCopy()
				pod.DeletionTimestamp = new(metav1.NewTime(p.now))
				p.w.putPod(pod, true)
			}
		}})
		first.Reconcile(t.Context(), p.request(1, old, nil))
		if summary(p.status("work")) != completed || len(p.w.pods) != 1 {
			t.Fatalf("not the history meant: %s, %d pods", summary(p.status("work")), len(p.w.pods))
		}
		if res := second.Reconcile(t.Context(), p.request(1, p.w.current(), nil)); res.Err != nil || len(p.w.pods) != 0 {
			t.Errorf("%v, %d pods left", res.Err, len(p.w.pods))
		}
	})
}

func TestCreations(t *testing.T) {
	t.Parallel()
	timeout := errors.New("timeout")
	t.Run("a creation that timed out counts as failed and is tried again under its name", func(t *testing.T) {
		t.Parallel()
		for name, f := range map[string]fault{"and happened": {after: timeout}, "and did not": {before: timeout}} {
			b := newBench(t)
			b.w.putJob(newJob(b.w, 1, 1, 6))
			b.w.fault = func(op, _ string) fault {
				if op == "create" {
					return f
				}
				return fault{}
			}
			if res := b.sync("default/work"); res.Settle != job.RateLimited || b.status("work").Active != 0 {
				t.Errorf("%s: settled %v, %s", name, res.Settle, show(b.status("work")))
			}
			b.w.fault = nil
			if res := b.sync("default/work"); res.Err != nil {
				t.Errorf("%s: %v", name, res.Err)
			}
			b.sync("default/work")
			if len(b.w.born) != 1 || b.status("work").Active != 1 || len(b.lease.expected.Creations) != 0 {
				t.Errorf("%s: %d pods, %s, expected %v", name, len(b.w.born), show(b.status("work")), b.lease.expected)
			}
		}
	})
	t.Run("a name taken by somebody else's pod: the next ordinal", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 1, 1, 6)
		b.w.putJob(j)
		taken := replica.Name("work", string(j.UID), replica.Child{Ordinal: 0, Index: replica.NoIndex})
		b.w.addPod(j, func(p *corev1.Pod) { p.Name, p.OwnerReferences, p.Labels, p.Finalizers = taken, nil, nil, nil })
		if res := b.sync("default/work"); res.Settle != job.RateLimited {
			t.Errorf("settled as %v", res.Settle)
		}
		if res := b.sync("default/work"); res.Err != nil || len(b.w.born) != 1 || b.w.born[0].name != replica.Name("work", string(j.UID), replica.Child{Ordinal: 1, Index: replica.NoIndex}) {
			t.Errorf("%v, born %v", res.Err, b.w.born)
		}
	})
	t.Run("what was refused is no longer expected, and its ordinals are used again", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 50, 50, 6)
		b.w.putJob(j)
		quota := 3
		b.w.fault = func(op, _ string) fault {
			if op == "create" && len(b.w.born) >= quota {
				return fault{before: kube.ErrRefused}
			}
			return fault{}
		}
		for range 5 {
			b.sync("default/work")
		}
		if !strings.Contains(strings.Join(b.rec.events, "\n"), "Warning FailedCreate Error creating: refused") {
			t.Errorf("events %q", b.rec.events)
		}
		if len(b.lease.expected.Creations) > quota {
			t.Errorf("%v still expected", b.lease.expected.Creations)
		}
		quota = 50
		b.sync("default/work")
		names := map[string]bool{}
		for o := range int64(50) {
			names[replica.Name("work", string(j.UID), replica.Child{Ordinal: o, Index: replica.NoIndex})] = true
		}
		for _, p := range b.w.born {
			if !names[p.name] {
				t.Errorf("pod %s, want ordinals below 50", p.name)
			}
		}
	})
	t.Run("51: a namespace that is being deleted is no error", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		b.w.putJob(newJob(b.w, 5, 5, 6))
		b.w.fault = func(op, _ string) fault {
			if op == "create" {
				return fault{before: errors.Join(kube.ErrRefused, kube.ErrTerminating)}
			}
			return fault{}
		}
		if res := b.sync("default/work"); res.Settle != job.Forget || b.w.calls["create"] != 1 || b.status("work").Active != 0 || len(b.rec.events) != 0 {
			t.Errorf("settled %v, %d creations, %s, events %q", res.Settle, b.w.calls["create"], show(b.status("work")), b.rec.events)
		}
	})
	t.Run("a lost store: what exists and was counted is not made again", func(t *testing.T) {
		t.Parallel()
		b := newBench(t)
		j := newJob(b.w, 3, 6, 6)
		b.w.putJob(j)
		b.sync("default/work")
		b.w.born = nil
		b.lease.state, b.lease.expected = nil, job.Expected{}
		j = b.w.jobs["work"].DeepCopy()
		j.Spec.Parallelism = new(int32(4))
		b.w.putJob(j)
		b.sync("default/work")
		if b.w.calls["list pods"] != 1 || len(b.w.born) != 1 || b.w.born[0].name != replica.Name("work", string(j.UID), replica.Child{Ordinal: 3, Index: replica.NoIndex}) {
			t.Errorf("%d live lists, born %v", b.w.calls["list pods"], b.w.born)
		}
	})
	t.Run("TestSyncJobExpectations: pods the index does not show yet are not made again", func(t *testing.T) {
		t.Parallel()
		p := &pair{bench: newBench(t)}
		p.w.putJob(newJob(p.w, 2, 2, 6))
		old := p.w.current()
		r := p.worker(p.w)
		r.Reconcile(t.Context(), p.request(1, old, nil))
		// The holder vanished without a word, so the queue knows of no barrier.
		res := r.Reconcile(t.Context(), p.request(2, old, nil))
		if len(p.w.born) != 2 || res.Err != nil || p.status("work").Active != 2 {
			t.Errorf("%d pods, %v, %s", len(p.w.born), res.Err, show(p.status("work")))
		}
	})
}

func TestDoubtIsHandedOn(t *testing.T) {
	t.Parallel()
	p := &pair{bench: newBench(t)}
	p.w.putJob(newJob(p.w, 2, 2, 6))
	old := p.w.current()
	r := p.worker(p.w)
	r.Reconcile(t.Context(), p.request(1, old, nil)) // and is never heard of again
	p.lease.state, p.lease.expected = nil, job.Expected{}
	p.w.fault = func(op, _ string) fault {
		if op == "get job" {
			return fault{before: errors.New("timeout")}
		}
		return fault{}
	}
	if res := r.Reconcile(t.Context(), p.request(2, old, nil)); res.Settle != job.RateLimited {
		t.Fatalf("settled as %v, %v", res.Settle, res.Err)
	}
	p.w.fault = nil
	// Settled, so the queue counts from one again: only the state knows.
	if res := r.Reconcile(t.Context(), p.request(1, old, nil)); res.Err != nil || len(p.w.born) != 2 {
		t.Errorf("%v, %d pods born", res.Err, len(p.w.born))
	}
	if res := r.Reconcile(t.Context(), p.request(1, p.w.current(), nil)); res.Err != nil || strings.Contains(string(p.lease.state), `"x":true`) {
		t.Errorf("%v, state %s", res.Err, p.lease.state)
	}
}

// tracedLease notes what is stored with the key, in one list with the creations.
type tracedLease struct {
	*keptLease
	trace                     *[]string
	alive, saveErr, expectErr error
}

func (l tracedLease) Alive() error { return l.alive }

func (l tracedLease) Save(ctx context.Context, state []byte) error {
	var mark struct{ N int64 }
	if err := json.Unmarshal(state, &mark); err != nil {
		return err
	}
	*l.trace = append(*l.trace, fmt.Sprint("save the mark ", mark.N))
	if l.saveErr != nil {
		return l.saveErr
	}
	return l.keptLease.Save(ctx, state)
}

func (l tracedLease) Expect(ctx context.Context, owner string, creations, deletions []string) error {
	*l.trace = append(*l.trace, fmt.Sprint("expect ", len(creations)))
	if l.expectErr != nil {
		return l.expectErr
	}
	return l.keptLease.Expect(ctx, owner, creations, deletions)
}

func TestTheMarkIsSavedThenTheNamesAreExpectedBeforeAPodIsMade(t *testing.T) {
	t.Parallel()
	down := errors.New("the queue is down")
	for _, c := range []struct {
		name    string
		pods    int32
		lease   tracedLease
		want    []string // the first of the trace
		creates int
	}{
		{name: "one pod", pods: 1, want: []string{"save the mark 1", "expect 1", "create"}, creates: 1},
		{name: "three pods", pods: 3, want: []string{"save the mark 3", "expect 3", "create"}, creates: 3},
		{name: "the mark cannot be saved", pods: 1, lease: tracedLease{saveErr: down}, want: []string{"save the mark 1"}},
		{name: "the names cannot be stored", pods: 1, lease: tracedLease{expectErr: down}, want: []string{"save the mark 1", "expect 1"}},
		{name: "the lease is lost", pods: 1, lease: tracedLease{alive: job.ErrLeaseLost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.w.putJob(newJob(b.w, c.pods, c.pods, 6))
			var trace []string
			c.lease.keptLease, c.lease.trace = b.lease, &trace
			r := (&pair{bench: b}).worker(stopping{b.w, func(string) { trace = append(trace, "create") }})
			res := r.Reconcile(t.Context(), job.Request{Key: "default/work", Token: 1, Attempt: 1, Reader: b.w.current(), Lease: c.lease})
			if len(trace) < len(c.want) || !slices.Equal(trace[:len(c.want)], c.want) || len(c.want) == 0 && len(trace) > 0 {
				t.Errorf("%q, want %q first; settled %v, %v", trace, c.want, res.Settle, res.Err)
			}
			if made := len(b.w.born); made != c.creates || slices.Contains(trace[min(len(trace), len(c.want)):], "expect 1") {
				t.Errorf("%d pods made, want %d: %q", made, c.creates, trace)
			}
		})
	}
}
