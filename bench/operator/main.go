// Command operator is an operator on controller-runtime that measures itself: with its own cache
// and queue, or on a Deltaplane. It is a module of its own, which `bench operators` builds and
// runs.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controllerruntime"
)

// result is what the program prints.
type result struct {
	First  float64 `json:"first"`   // seconds from the start to the first reconcile
	RSS    float64 `json:"rss"`     // bytes, once everything was reconciled
	GetP50 float64 `json:"get_p50"` // milliseconds
	GetP99 float64 `json:"get_p99"`
	// ListP50 and ListP99 are of a list of the pods of a node, by index.
	ListP50 float64 `json:"list_p50"`
	ListP99 float64 `json:"list_p99"`
	Listed  int     `json:"listed"`
	Rate    float64 `json:"rate"` // reconciles a second that do nothing
}

type options struct {
	api, index, queue, name, node string
	owned, pods, reads, empty     int
}

func main() {
	var o options
	flag.StringVar(&o.api, "api", "", "URL of the API server")
	flag.StringVar(&o.index, "index", "", "address of the index; empty: controller-runtime's own cache and queue")
	flag.StringVar(&o.queue, "queue", "", "address of the queue")
	flag.StringVar(&o.name, "name", "bench", "name of the operator")
	flag.StringVar(&o.node, "node", "", "node whose pods are listed")
	flag.IntVar(&o.owned, "owned", 1000, "ConfigMaps that there are")
	flag.IntVar(&o.pods, "pods", 0, "pods that there are")
	flag.IntVar(&o.reads, "reads", 2000, "reads of each kind")
	flag.IntVar(&o.empty, "empty", 20_000, "reconciles that do nothing")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	r, err := run(ctrl.SetupSignalHandler(), o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// measured is a manager and what becomes of it.
type measured struct {
	o      options
	began  time.Time
	mgr    ctrl.Manager
	first  atomic.Int64
	seen   sync.Map // keys of ConfigMaps that were reconciled
	count  atomic.Int64
	mapped atomic.Int64 // pods that the handler has had
	events chan event.GenericEvent
	empty  atomic.Int64
}

const emptyNamespace = "empty"

func (m *measured) Reconcile(_ context.Context, req reconcile.Request) (reconcile.Result, error) {
	m.first.CompareAndSwap(0, int64(time.Since(m.began)))
	if req.Namespace == emptyNamespace {
		m.empty.Add(1)
		return reconcile.Result{}, nil
	}
	if _, again := m.seen.LoadOrStore(req.NamespacedName, true); !again {
		m.count.Add(1)
	}
	return reconcile.Result{}, nil
}

func run(ctx context.Context, o options) (r result, err error) {
	m := &measured{o: o, began: time.Now(), events: make(chan event.GenericEvent, 1000)}
	if err := m.setup(ctx); err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- m.mgr.Start(ctx) }()
	if err := m.await(done, func() bool { return m.count.Load() >= int64(o.owned) && m.mapped.Load() >= int64(o.pods) }); err != nil {
		return r, err
	}
	r.First = time.Duration(m.first.Load()).Seconds()
	debug.FreeOSMemory()
	if r.RSS, err = rss(); err != nil {
		return r, err
	}
	if err := m.read(ctx, &r); err != nil {
		return r, err
	}
	if err := m.spin(ctx, done, &r); err != nil {
		return r, err
	}
	cancel()
	return r, <-done
}

// setup makes the manager and its controller, which has handlers on ConfigMaps and on all pods.
func (m *measured) setup(ctx context.Context) error {
	cfg := &rest.Config{Host: m.o.api, QPS: -1}
	options := ctrl.Options{Metrics: metricsserver.Options{BindAddress: "0"}}
	var op *controllerruntime.Operator
	if m.o.index != "" {
		index, err := client.Dial(m.o.index, client.DialConfig{})
		if err != nil {
			return err
		}
		queue, err := client.Dial(m.o.queue, client.DialConfig{})
		if err != nil {
			return err
		}
		if op, err = controllerruntime.New(index, queue, controllerruntime.Options{Name: m.o.name, Log: slog.New(slog.DiscardHandler)}); err != nil {
			return err
		}
		options.NewCache, options.NewClient = op.NewCache, op.NewClient
	}
	var err error
	if m.mgr, err = ctrl.NewManager(cfg, options); err != nil {
		return err
	}
	extract := func(o crclient.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} } //nolint:errcheck,forcetypeassert // of pods
	if op != nil {
		extract = nil
	}
	if err := m.mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, "spec.nodeName", extract); err != nil {
		return err
	}
	ownerOf := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o crclient.Object) []reconcile.Request {
		m.mapped.Add(1)
		if owner := o.GetLabels()["owned-by"]; owner != "" {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: owner}}}
		}
		return nil
	})
	b := ctrl.NewControllerManagedBy(m.mgr).Named("bench").For(&corev1.ConfigMap{}).Watches(&corev1.Pod{}, ownerOf).
		WatchesRawSource(source.Channel(m.events, &handler.EnqueueRequestForObject{}))
	if op == nil {
		return b.WithOptions(controller.Options{MaxConcurrentReconciles: 8}).Complete(m)
	}
	c := controllerruntime.Reconciler(op, m)
	return b.WithOptions(controller.Options{MaxConcurrentReconciles: 8, NewQueue: c.NewQueue}).Complete(c)
}

func (m *measured) await(done chan error, ok func() bool) error {
	deadline := time.After(10 * time.Minute)
	for !ok() {
		select {
		case err := <-done:
			return fmt.Errorf("the manager ended: %w", err)
		case <-deadline:
			return fmt.Errorf("not within ten minutes; %d ConfigMaps were reconciled, %d times nothing", m.count.Load(), m.empty.Load())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// read measures reads of the manager's client.
func (m *measured) read(ctx context.Context, r *result) error {
	c := m.mgr.GetClient()
	var all corev1.PodList
	if err := c.List(ctx, &all, crclient.MatchingFields{"spec.nodeName": m.o.node}); err != nil {
		return err
	}
	r.Listed = len(all.Items)
	if r.Listed == 0 {
		return fmt.Errorf("no pod is on node %q", m.o.node)
	}
	var gets, lists []time.Duration
	for n := range m.o.reads {
		key := crclient.ObjectKeyFromObject(&all.Items[n%len(all.Items)])
		began := time.Now()
		if err := c.Get(ctx, key, &corev1.Pod{}); err != nil {
			return err
		}
		gets = append(gets, time.Since(began))
		began = time.Now()
		if err := c.List(ctx, &corev1.PodList{}, crclient.MatchingFields{"spec.nodeName": m.o.node}); err != nil {
			return err
		}
		lists = append(lists, time.Since(began))
	}
	r.GetP50, r.GetP99 = quantiles(gets)
	r.ListP50, r.ListP99 = quantiles(lists)
	return nil
}

func quantiles(all []time.Duration) (p50, p99 float64) {
	slices.Sort(all)
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	return ms(all[len(all)/2]), ms(all[len(all)*99/100])
}

// spin measures reconciles that do nothing.
func (m *measured) spin(ctx context.Context, done chan error, r *result) error {
	began := time.Now()
	for n := range m.o.empty {
		o := &corev1.ConfigMap{}
		o.Namespace, o.Name = emptyNamespace, "e"+strconv.Itoa(n)
		select {
		case m.events <- event.GenericEvent{Object: o}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := m.await(done, func() bool { return m.empty.Load() >= int64(m.o.empty) })
	r.Rate = float64(m.o.empty) / time.Since(began).Seconds()
	return err
}

// rss is how much memory the process holds.
func rss() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return kb * 1024, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in /proc/self/status")
}
