package controller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
)

// The write is one that no index has yet, as on a replica that is behind.
func TestAKeyThatMovesToAnotherReplicaWaitsForItsPredecessorsWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods", "configmaps")
	r.put("pods", "ns/p", "1")
	wrote := make(chan struct{})
	a := r.replica("a", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		defer close(wrote)
		return controller.Result{}, p.Wrote(ctx, "configmaps", "1000")
	}, nil)
	<-wrote
	r.ready(a)
	a.stop()
	var there, early atomic.Bool
	decided := make(chan string, 1)
	b := r.replica("b", forPods, func(ctx context.Context, p *replica, _ controller.Request) (controller.Result, error) {
		note, err := controller.Get[object](ctx, p.Controller, "configmaps", "ns/note")
		if err == nil || errors.Is(err, client.ErrKeyNotFound) {
			early.Store(early.Load() || !there.Load())
		}
		if err == nil {
			decided <- note.Value
		}
		return controller.Result{}, err
	}, nil)
	r.put("pods", "ns/p", "2")
	r.eventually("b is held back", func() string {
		if b.unreached().Err == nil {
			return fmt.Sprintf("%+v", b.first(controller.EventReconcileFailed))
		}
		return ""
	})
	there.Store(true)
	r.mu.Lock()
	r.rv = 999
	r.mu.Unlock()
	r.put("configmaps", "ns/note", "of a")
	if note := <-decided; note != "of a" || early.Load() {
		t.Errorf("b decided on %q, before a's write was there: %t", note, early.Load())
	}
}

func TestErrorsPanicsAndDelaysRunAKeyAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	for _, name := range []string{"error", "panic", "after", "dead"} {
		r.put("pods", "ns/"+name, "1")
	}
	var mu sync.Mutex
	runs := map[string]int{}
	reg := prometheus.NewRegistry()
	p := r.replica("a", forPods, func(_ context.Context, _ *replica, req controller.Request) (controller.Result, error) {
		mu.Lock()
		runs[req.Name]++
		n := runs[req.Name]
		mu.Unlock()
		switch {
		case req.Name == "dead":
			return controller.Result{}, client.Terminal(errors.New("hopeless"))
		case n > 2:
			return controller.Result{}, nil
		case req.Name == "error":
			return controller.Result{}, errors.New("not yet")
		case req.Name == "panic":
			panic("at the disco")
		}
		return controller.Result{RequeueAfter: 20 * time.Millisecond}, nil
	}, func(o *controller.Options) { o.Metrics = reg })
	r.eventually("three runs of each", func() string {
		mu.Lock()
		defer mu.Unlock()
		if runs["error"] < 3 || runs["panic"] < 3 || runs["after"] < 3 || runs["dead"] < 1 {
			return fmt.Sprint(runs)
		}
		return ""
	})
	r.ready(p)
	p.stop()
	if n := p.count(controller.EventReconcilePanicked); n != 2 {
		t.Errorf("%d panics are events, want 2", n)
	}
	if err, ok := errors.AsType[*client.PanicError](p.first(controller.EventReconcilePanicked).Err); !ok || err.Value != "at the disco" || len(err.Stack) == 0 {
		t.Errorf("the event of a panic: %v", p.first(controller.EventReconcilePanicked))
	}
	counts := map[string]float64{}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{f.GetName()}
			for _, l := range m.GetLabel() {
				if l.GetName() != "controller" {
					name = append(name, l.GetValue())
				}
			}
			counts[strings.Join(name, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"deltaplane_controller_reconciles_total rate_limited": 4, "deltaplane_controller_reconciles_total after": 2, "deltaplane_controller_reconciles_total dead": 1,
		"deltaplane_controller_reconciles_total forget": 3, "deltaplane_controller_events_total reconcile_panicked": 2, "deltaplane_controller_reconciles_running": 0,
	} {
		if counts[name] != want {
			t.Errorf("%s = %v, want %v", name, counts[name], want)
		}
	}
}

func TestAReconcileThatOutlivesItsTimeIsAnEventAndItsKeyRunsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	r.put("pods", "ns/p", "1")
	release := make(chan struct{})
	var runs atomic.Int32
	p := r.replica("a", forPods, func(ctx context.Context, _ *replica, _ controller.Request) (controller.Result, error) {
		if runs.Add(1) == 1 {
			<-release // deaf to its context
		}
		return controller.Result{}, ctx.Err()
	}, func(o *controller.Options) { o.Timeout = 100 * time.Millisecond; o.Lease = time.Second })
	r.eventually("the event", func() string {
		if p.count(controller.EventReconcileOverran) == 0 {
			return "none"
		}
		return ""
	})
	if e := p.first(controller.EventReconcileOverran); e.Key != "ns/p" || !errors.Is(e.Err, client.ErrTimeout) {
		t.Errorf("event: %+v", e)
	}
	close(release)
	r.eventually("the key runs again", func() string {
		if runs.Load() < 2 {
			return "not yet"
		}
		return ""
	})
}

func TestAStopWaitsForWhatRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	r.put("pods", "ns/p", "1")
	running, release := make(chan struct{}), make(chan struct{})
	var finished atomic.Bool
	p := r.replica("a", forPods, func(ctx context.Context, _ *replica, _ controller.Request) (controller.Result, error) {
		close(running)
		<-release
		finished.Store(ctx.Err() == nil)
		return controller.Result{}, nil
	}, func(o *controller.Options) { o.Grace = time.Minute })
	<-running
	stopped := make(chan struct{})
	go func() { p.stop(); close(stopped) }()
	r.eventually("the leadership is given up", func() string {
		if p.leads() {
			return "not yet"
		}
		return ""
	})
	close(release)
	<-stopped
	if err := <-p.err; err != nil || !finished.Load() {
		t.Errorf("Run() = %v, the reconcile had its time: %t", err, finished.Load())
	}
	if err := p.Ready(); err == nil {
		t.Error("a stopped controller is ready")
	}
}

func TestBadInputIsNamedAtTheStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	r.put("pods", "ns/p", "1")
	none := func(context.Context, *replica, controller.Request) (controller.Result, error) {
		return controller.Result{}, nil
	}
	for _, c := range []struct {
		name   string
		build  func(*controller.Controller)
		change func(*controller.Options)
		is     error
		want   []string
	}{
		{"no such collection", func(c *controller.Controller) { c.For("gadgets") }, func(o *controller.Options) { o.StartTimeout = 100 * time.Millisecond }, client.ErrCollectionNotFound, []string{"gadgets", "dev/pods.v1"}},
		{"options", func(c *controller.Controller) { c.Watches("pods", nil).For("pods").For("") }, func(o *controller.Options) { o.Name, o.Lease, o.Timeout = "", time.Millisecond, -1 }, nil, []string{"name is empty", "lease 1ms", "timeout -1ns", "pods has no mapper", "For is called twice", "collection is empty"}},
		{"no For", func(*controller.Controller) {}, nil, nil, []string{"For names no collection"}},
		{"a selector", func(c *controller.Controller) { c.For("pods", controller.Selection{Labels: "a in"}) }, nil, nil, []string{"pods", "label_selector"}},
		{"the queue's settings", forPods, func(o *controller.Options) { o.Queue.Partitions = 1000 }, nil, []string{"partitions"}},
		{"the queue's name", forPods, func(o *controller.Options) { o.Name = "a b" }, nil, []string{"dev/a b"}},
	} {
		p := r.replica(c.name, c.build, none, c.change)
		err := <-p.err
		p.err <- err
		if err == nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not in: %v", c.name, want, err)
			}
		}
	}
}

func TestAnAddressOfTheOtherServiceIsNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t, "pods")
	none := func(context.Context, *replica, controller.Request) (controller.Result, error) {
		return controller.Result{}, nil
	}
	index, queue := r.indexAddr, r.queueAddr
	for _, c := range []struct{ index, queue, want string }{{queue, queue, "no index service"}, {index, index, "no queue service"}} {
		r.indexAddr, r.queueAddr = c.index, c.queue
		p := r.replica("a", forPods, none, nil)
		if err := <-p.err; err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
		if err := p.Wrote(t.Context(), "pods", "1"); err == nil {
			t.Error("a write outside of a reconcile is taken, and nobody will wait for it")
		}
	}
}

func TestServicesThatAreAwayAtTheStartAreWaitedFor(t *testing.T) {
	t.Parallel()
	r, l := newRig(t, "pods"), newLedger()
	r.put("pods", "ns/p", "1")
	r.stopIndex()
	r.stopQueue()
	p := r.replica("a", forPods, l.reconcile, nil)
	for _, step := range []struct {
		kind  controller.EventKind
		start func()
	}{{controller.EventIndexFailed, r.startIndex}, {controller.EventQueueFailed, r.startQueue}} {
		r.eventually(string(step.kind), func() string {
			if p.count(step.kind) == 0 || p.Ready() == nil {
				return fmt.Sprint("no event yet, ready: ", p.Ready())
			}
			return ""
		})
		step.start()
	}
	l.shows(r, map[string]string{"ns/p": "1"})
	r.ready(p)
}
