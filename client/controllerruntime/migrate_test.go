package controllerruntime

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	dptest "github.com/deltaplane/deltaplane/client/testing"
)

// leaderLease is controller-runtime's default.
const leaderLease = 15 * time.Second

// rollout is what replicas of an operator do while they are replaced.
type rollout struct {
	t   *testing.T
	env *dptest.Env

	mu      sync.Mutex // guards what follows
	running map[string]string
	written map[string]map[int]time.Time // by key and step: not reconciled yet
	steps   map[string]int
	ran     map[string]int // by replica
	slowest time.Duration
}

func newRollout(t *testing.T, env *dptest.Env) *rollout {
	return &rollout{
		t: t, env: env, running: map[string]string{}, written: map[string]map[int]time.Time{}, steps: map[string]int{}, ran: map[string]int{},
	}
}

// write is one change of a key.
func (r *rollout) write(name string) {
	r.t.Helper()
	r.env.Apply(step(name, strconv.Itoa(r.writes(name))))
}

// writes notes that a step of a key is about to be written.
func (r *rollout) writes(name string) (step int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps[name]++
	if r.written[name] == nil {
		r.written[name] = map[int]time.Time{}
	}
	r.written[name][r.steps[name]] = time.Now()
	return r.steps[name]
}

// change changes some keys in turn until ctx ends.
func (r *rollout) change(ctx context.Context) {
	cfg := restConfig(r.env)
	cfg.QPS = -1
	c, err := crclient.New(cfg, crclient.Options{})
	if err != nil {
		r.t.Error(err)
		return
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("key-%d", n%8)
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"step":"%d"}}}`, r.writes(name))
		if err := c.Patch(context.WithoutCancel(ctx), step(name, ""), crclient.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			r.t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// reconciler of a replica reads a key, takes its time, and notes what it has read.
func (r *rollout) reconciler(replica string, c crclient.Reader) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		r.mu.Lock()
		if other, ok := r.running[req.Name]; ok {
			r.t.Errorf("%s is reconciled by %s and by %s", req.Name, other, replica)
		}
		r.running[req.Name] = replica
		r.mu.Unlock()
		var have corev1.ConfigMap
		err := c.Get(ctx, req.NamespacedName, &have)
		n, _ := strconv.Atoi(have.Annotations["step"])
		select { // so that a second one would be noticed
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, req.Name)
		r.ran[replica]++
		for s, at := range r.written[req.Name] {
			if err == nil && s <= n {
				r.slowest = max(r.slowest, time.Since(at))
				delete(r.written[req.Name], s)
			}
		}
		return reconcile.Result{}, crclient.IgnoreNotFound(err)
	})
}

// works waits until some more changes are written and reconciled.
func (r *rollout) works(what string) {
	r.t.Helper()
	began := 0
	eventually(r.t, "changes are written", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		n := 0
		for _, steps := range r.steps {
			n += steps
		}
		if began == 0 {
			began = n
		}
		return n >= began+100
	})
	r.caughtUp(what)
}

// caughtUp waits until everything that was written before is reconciled.
func (r *rollout) caughtUp(what string) {
	r.t.Helper()
	since := time.Now()
	eventually(r.t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, steps := range r.written {
			for _, at := range steps {
				if at.Before(since) {
					return false
				}
			}
		}
		return true
	})
}

// elected are the options of a manager with leader election.
func elected(id string) ctrl.Options {
	yes := true
	return ctrl.Options{
		LeaderElection: true, LeaderElectionID: id, LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true,
		Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: &yes},
	}
}

func (r *rollout) manager(o ctrl.Options) manager.Manager {
	r.t.Helper()
	mgr, err := ctrl.NewManager(restConfig(r.env), o)
	if err != nil {
		r.t.Fatal(err)
	}
	return mgr
}

// stock starts a replica that knows nothing of Deltaplane.
func (r *rollout) stock(replica string) (stop func()) {
	r.t.Helper()
	mgr := r.manager(elected("roll"))
	if err := ctrl.NewControllerManagedBy(mgr).Named("roll").For(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4}).Complete(r.reconciler(replica, mgr.GetClient())); err != nil {
		r.t.Fatal(err)
	}
	return r.env.Go(mgr.Start)
}

// moved starts a replica on Deltaplane.
func (r *rollout) moved(replica string, o ctrl.Options) (stop func()) {
	r.t.Helper()
	op, err := New(r.env.Index(), r.env.Queue(), Options{Name: "test"})
	if err != nil {
		r.t.Fatal(err)
	}
	o.NewCache, o.NewClient = op.NewCache, op.NewClient
	mgr := r.manager(o)
	of := Reconciler(op, r.reconciler(replica, mgr.GetClient()))
	if err := ctrl.NewControllerManagedBy(mgr).Named("roll").For(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: 4, NewQueue: of.NewQueue}).Complete(of); err != nil {
		r.t.Fatal(err)
	}
	return r.env.Go(mgr.Start)
}

// replace has another replica take the place of one, while objects change.
type replace func(r *rollout, stop func(), start func() (stop func())) func()

// Two replicas of a stock manager are replaced by two with our cache and queue that are elected as
// before, and these by three that all work, while objects change.
func TestAnOperatorMovesFromLeaderElectionWithoutAGap(t *testing.T) {
	for name, one := range map[string]replace{
		"the new replica starts before the old one stops": func(r *rollout, stop func(), start func() func()) func() {
			started := start()
			r.works("both run")
			stop()
			return started
		},
		"the new replica starts once another one has taken over": func(r *rollout, stop func(), start func() func()) func() {
			stop()
			r.works("another replica takes over")
			return start()
		},
	} {
		t.Run(name, func(t *testing.T) { migrate(t, one) })
	}
}

func migrate(t *testing.T, one replace) {
	t.Helper()
	r := newRollout(t, dptest.Start(t, configMaps()))
	replaced := func(stop func(), start func() func()) func() {
		t.Helper()
		started := one(r, stop, start)
		r.works("what changed meanwhile is reconciled")
		return started
	}
	active := elected("")
	active.LeaderElection = false
	a, b := r.stock("old a"), r.stock("old b")
	for n := range 8 {
		r.write(fmt.Sprintf("key-%d", n))
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	changing := make(chan struct{})
	go func() {
		defer close(changing)
		r.change(ctx)
	}()
	stopChanging := func() {
		cancel()
		<-changing
	}
	defer stopChanging()
	r.works("the old replicas work")
	a = replaced(a, func() func() { return r.moved("elected a", elected("roll")) })
	b = replaced(b, func() func() { return r.moved("elected b", elected("roll")) })
	a = replaced(a, func() func() { return r.moved("active a", active) })
	b = replaced(b, func() func() { return r.moved("active b", active) })
	c := r.moved("active c", active)
	for _, stop := range []func(){a, b} {
		r.works("the active replicas work")
		stop()
	}
	stopChanging()
	r.caughtUp("the last replica works")
	c()
	r.mu.Lock()
	defer r.mu.Unlock()
	t.Logf("runs by replica: %v; the slowest change waited %v", r.ran, r.slowest)
	if r.slowest > leaderLease {
		t.Errorf("a change waited %v, longer than the leader's lease of %v", r.slowest, leaderLease)
	}
}

// One replica is never elected, and is there before those that are.
func TestAReplicaThatIsNotElectedKeepsNoChangesFromTheOneThatIs(t *testing.T) {
	env := dptest.Start(t, configMaps())
	r := newRollout(t, env)
	now, holder, seconds := metav1.NewMicroTime(time.Now()), "somebody", int32(3600)
	env.Apply(&coordinationv1.Lease{
		TypeMeta:   metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "taken"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	})
	waits := elected("taken")
	waits.LeaseDuration = new(time.Hour)
	r.moved("waits", waits)
	for range 2 {
		stop := r.moved("elected", elected("free"))
		r.write("a")
		r.caughtUp("the elected replica receives the change")
		stop() // what it held is there for the other one
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ran["waits"] > 0 || r.ran["elected"] == 0 {
		t.Errorf("runs by replica: %v", r.ran)
	}
}
