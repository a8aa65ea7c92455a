package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/deltaplane/deltaplane/client"
	dptest "github.com/deltaplane/deltaplane/client/testing"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	// client-go's reflector stops a filtered watch of metadata while an event is on its way: that
	// is not received then.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/apimachinery/pkg/watch.(*filteredWatch).loop"))
}

func configMaps() dptest.Config { return dptest.Config{Resources: []string{"configmaps"}} }

// operated is a replica: a manager and what it was made with.
type operated struct {
	op  *Operator
	mgr manager.Manager
}

func newOperated(t *testing.T, env *dptest.Env, o Options) operated {
	t.Helper()
	o.Name, o.Log = "test", slog.New(slog.DiscardHandler)
	op, err := New(env.Index(), env.Queue(), o)
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	mgr, err := ctrl.NewManager(restConfig(env), ctrl.Options{
		NewCache: op.NewCache, NewClient: op.NewClient, Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: &yes},
	})
	if err != nil {
		t.Fatal(err)
	}
	return operated{op, mgr}
}

// controls adds a controller of ConfigMaps.
func (o operated) controls(t *testing.T, name string, r *Controller[reconcile.Request], options controller.Options) {
	t.Helper()
	options.NewQueue = r.NewQueue
	if err := ctrl.NewControllerManagedBy(o.mgr).Named(name).For(&corev1.ConfigMap{}).WithOptions(options).Complete(r); err != nil {
		t.Fatal(err)
	}
}

func keyOf(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// A write is seen by the reads that follow, and by the next run of the key, wherever it runs.
func TestAReconcileSeesItsOwnWritesAndDeletions(t *testing.T) {
	dptest.Run(t, configMaps(), 8, func(t *testing.T, env *dptest.Env) {
		var mu sync.Mutex
		steps := map[string]int{}
		for range 2 {
			o := newOperated(t, env, Options{})
			c := o.mgr.GetClient()
			reconciler := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
				var have corev1.ConfigMap
				err := c.Get(ctx, req.NamespacedName, &have)
				if err != nil || strings.HasSuffix(req.Name, "-child") {
					return reconcile.Result{}, crclient.IgnoreNotFound(err)
				}
				child := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: req.Namespace, Name: req.Name + "-child"}}
				err = c.Get(ctx, crclient.ObjectKeyFromObject(child), child)
				if crclient.IgnoreNotFound(err) != nil {
					return reconcile.Result{}, err
				}
				mu.Lock()
				defer mu.Unlock()
				exists := err != nil // after this step
				switch {
				case steps[req.Name] >= 6:
					return reconcile.Result{}, nil
				case exists:
					err = c.Create(ctx, child)
				default:
					err = c.Delete(ctx, child, crclient.Preconditions{UID: &child.UID})
				}
				if err != nil {
					return reconcile.Result{}, err
				}
				steps[req.Name]++
				if err := c.Get(ctx, crclient.ObjectKeyFromObject(child), child); exists != (err == nil) && crclient.IgnoreNotFound(err) == nil {
					t.Errorf("step %d of %s: the child is read as %v", steps[req.Name], req.Name, err)
				}
				return reconcile.Result{RequeueAfter: time.Millisecond}, nil
			})
			o.controls(t, "own", Reconciler(o.op, reconciler), controller.Options{MaxConcurrentReconciles: 2})
			env.Go(o.mgr.Start)
		}
		env.Apply(step("a", "1"), step("b", "1"))
		if err := env.Settled(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestAWriteAfterTheLeaseIsRefusedBeforeItIsSent(t *testing.T) {
	env := dptest.Start(t, configMaps())
	o := newOperated(t, env, Options{Lease: time.Second})
	c := o.mgr.GetClient()
	result := make(chan error, 1)
	r := Reconciler(o.op, reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		if req.Name != "a" {
			return reconcile.Result{}, nil
		}
		h := handOf(ctx)
		lost, end := context.WithCancelCause(ctx)
		end(client.ErrLeaseLost)
		h.mu.Lock()
		h.ctx = lost // as if its lease had ended
		h.mu.Unlock()
		var errs []error
		write := func(verb string, err error) {
			if !errors.Is(err, client.ErrLeaseLost) {
				errs = append(errs, fmt.Errorf("%s: %w", verb, errors.Join(err, errors.New("it was not refused"))))
			}
		}
		other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}}
		write("create", c.Create(ctx, other))
		write("update", c.Update(ctx, other))
		write("patch", c.Patch(ctx, other, crclient.RawPatch(types.MergePatchType, []byte("{}"))))
		write("delete", c.Delete(ctx, other))
		write("delete all of", c.DeleteAllOf(ctx, other, crclient.InNamespace("default")))
		write("status", c.Status().Update(ctx, other))
		write("apply", c.Apply(ctx, v1.ConfigMap("b", "default")))
		result <- errors.Join(errs...)
		return reconcile.Result{}, nil
	}))
	o.controls(t, "late", r, controller.Options{})
	env.Go(o.mgr.Start)
	env.Apply(step("a", "1"))
	if err := <-result; err != nil {
		t.Error(err)
	}
	if err := env.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := dptest.Get[corev1.ConfigMap](env, "configmaps", "default/b"); got != nil {
		t.Error("something was written")
	}
}

func TestErrorsRequeuesAndPrioritiesOfAManagersController(t *testing.T) {
	env := dptest.Start(t, configMaps())
	o := newOperated(t, env, Options{})
	var mu sync.Mutex
	runs := map[string]int{}
	done := make(chan string, 10)
	r := Reconciler(o.op, reconcile.Func(func(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
		mu.Lock()
		defer mu.Unlock()
		runs[req.Name]++
		n := runs[req.Name]
		if n == 3 {
			done <- req.Name
		}
		switch {
		case n >= 3:
			return reconcile.Result{}, nil
		case req.Name == "fails":
			return reconcile.Result{}, errors.New("fails")
		case req.Name == "panics":
			panic("so it does")
		default:
			return reconcile.Result{RequeueAfter: time.Millisecond}, nil
		}
	}))
	o.controls(t, "errors", r, controller.Options{MaxConcurrentReconciles: 3})
	env.Go(o.mgr.Start)
	env.Apply(step("fails", "1"), step("panics", "1"), step("again", "1"))
	for range 3 {
		<-done
	}
	if err := env.Settled(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What cannot be made of options ends the manager, and says why.
func TestAQueueThatCannotBeMadeEndsTheManager(t *testing.T) {
	env := dptest.Start(t, configMaps())
	none := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil })
	for name, set := range map[string]func(o operated){
		"hides its limiters": func(o operated) {
			o.controls(t, "a", Reconciler(o.op, none), controller.Options{RateLimiter: workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]()})
		},
		`two controllers have the name "a"`: func(o operated) {
			o.controls(t, "a", Reconciler(o.op, none), controller.Options{})
			o.controls(t, "a", Reconciler(o.op, none), controller.Options{})
		},
		"has a queue already": func(o operated) {
			r := Reconciler(o.op, none)
			o.controls(t, "a", r, controller.Options{})
			o.controls(t, "b", r, controller.Options{})
		},
		`queue of controller "A b"`: func(o operated) { o.controls(t, "A b", Reconciler(o.op, none), controller.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			o := newOperated(t, env, Options{})
			set(o)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := o.mgr.Start(ctx); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("the manager ended with %v", err)
			}
		})
	}
}

func TestAReconcilerWithAnotherQueueSaysSo(t *testing.T) {
	env := dptest.Start(t, configMaps())
	o := newOperated(t, env, Options{})
	r := Reconciler(o.op, reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) { return reconcile.Result{}, nil }))
	if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: keyOf("a")}); !errors.Is(err, reconcile.TerminalError(nil)) || !strings.Contains(err.Error(), "NewQueue") {
		t.Errorf("error %v", err)
	}
}
