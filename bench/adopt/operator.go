package adopt

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/workqueue"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
	"github.com/deltaplane/deltaplane/client/deltalog"
)

// operatorConfig is one replica of an operator on ConfigMaps.
type operatorConfig struct {
	Name  string `json:"name"`
	Index string `json:"index"`
	Queue string `json:"queue"`
	// Log, when set, is the URL of the delta log, which is followed in place of the index.
	Log string `json:"log"`
	// API, when set, makes it the peer: an informer and a work queue in the process.
	API string `json:"api"`
	// Namespace is what it is for.
	Namespace string        `json:"namespace"`
	IO        time.Duration `json:"io"`      // of a reconcile
	Count     int           `json:"count"`   // of operators in this process; default 1
	Journal   string        `json:"journal"` // file of what it did
}

// workers are those of each replica, on both sides.
const workers = 8

// operator counts what is reconciled. It is safe for concurrent use.
type operator struct {
	cfg     operatorConfig
	journal *os.File

	mu    sync.Mutex // guards the rest
	runs  int
	delay map[string]time.Duration // of the current round, by key: from the write to the reconcile
	round string
	last  time.Time
}

// entry is a line of a journal.
type entry struct {
	Key   string `json:"k"`
	Round string `json:"r"`
	At    int64  `json:"t"`
	End   bool   `json:"e,omitempty"`
}

// handled is what a replica tells of a round.
type handled struct {
	Delays map[string]time.Duration `json:"delays"`
	Last   time.Time                `json:"last"`
	Runs   int                      `json:"runs"` // of all rounds
}

// OperatorServer is the servant that is one replica.
func OperatorServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	o := &operator{delay: map[string]time.Duration{}}
	if err := json.Unmarshal(raw, &o.cfg); err != nil {
		return nil, err
	}
	if o.cfg.Journal != "" {
		var err error
		if o.journal, err = os.OpenFile(o.cfg.Journal, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return nil, err
		}
	}
	run := o.ours
	if o.cfg.API != "" {
		run = o.peer
	}
	ready := make(chan error, cmp.Or(o.cfg.Count, 1))
	stop := harness.InBackground(ctx, func(ctx context.Context) error { return run(ctx, ready) })
	for range cap(ready) {
		if err := <-ready; err != nil {
			return nil, err
		}
	}
	return &harness.Servant{Stop: stop, Ops: map[string]harness.Op{
		"handled": func(_ context.Context, args json.RawMessage) (any, error) {
			var round string
			if err := json.Unmarshal(args, &round); err != nil {
				return nil, err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.round != round {
				return handled{Runs: o.runs}, nil
			}
			return handled{maps.Clone(o.delay), o.last, o.runs}, nil
		},
	}}, nil
}

// ours runs replicas of operators on client/controller.
func (o *operator) ours(ctx context.Context, ready chan<- error) error {
	index, err := client.Dial(o.cfg.Index, client.DialConfig{})
	if err != nil {
		ready <- err
		return err
	}
	defer index.Close()
	queue, err := client.Dial(o.cfg.Queue, client.DialConfig{})
	if err != nil {
		ready <- err
		return err
	}
	defer queue.Close()
	var deltas *deltalog.Conn
	if o.cfg.Log != "" {
		if deltas, err = deltalog.Connect(ctx, deltalog.Config{URL: o.cfg.Log}); err != nil {
			ready <- err
			return err
		}
		defer deltas.Close()
	}
	selection := controller.Selection{Namespaces: []string{o.cfg.Namespace}}
	if deltas != nil {
		selection = controller.Selection{} // the log is followed whole
	}
	var all sync.WaitGroup
	errs := make(chan error, cap(ready))
	for i := range cap(ready) {
		name := o.cfg.Name
		if i > 0 {
			name += strconv.Itoa(i)
		}
		c := controller.New(index, queue, controller.Options{
			Name: name, Concurrency: workers, Log: slog.New(slog.DiscardHandler), Grace: time.Second, Deltas: deltas,
		}).For("configmaps", selection)
		all.Go(func() {
			errs <- c.Run(ctx, func(ctx context.Context, req controller.Request) (controller.Result, error) {
				began := time.Now()
				m, err := controller.Get[corev1.ConfigMap](ctx, c, "configmaps", req.Key())
				if err != nil {
					return controller.Result{}, err
				}
				return controller.Result{}, o.reconcile(ctx, req.Key(), m, began)
			})
		})
		go func() {
			ready <- harness.Await(ctx, time.Minute, name+" is not ready", func() (bool, error) { return c.Ready() == nil, nil })
		}()
	}
	all.Wait()
	return <-errs
}

// peer runs operators as client-go's documentation has them, each with an informer of its own.
func (o *operator) peer(ctx context.Context, ready chan<- error) error {
	var all sync.WaitGroup
	for range cap(ready) {
		config, err := clientcmd.BuildConfigFromFlags(o.cfg.API, "")
		if err != nil {
			ready <- err
			return err
		}
		config.QPS = -1
		api, err := kubernetes.NewForConfig(config)
		if err != nil {
			ready <- err
			return err
		}
		factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(o.cfg.Namespace))
		inf := factory.Core().V1().ConfigMaps()
		queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
		add := func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				queue.Add(key)
			}
		}
		registration, err := inf.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add})
		if err != nil {
			ready <- err
			return err
		}
		factory.Start(ctx.Done())
		for range workers {
			all.Go(func() {
				for {
					key, stopped := queue.Get()
					if stopped {
						return
					}
					began := time.Now()
					namespace, name, _ := cache.SplitMetaNamespaceKey(key)
					if m, err := inf.Lister().ConfigMaps(namespace).Get(name); err == nil {
						_ = o.reconcile(ctx, key, m, began) // ends early with the process only
					}
					queue.Forget(key)
					queue.Done(key)
				}
			})
		}
		context.AfterFunc(ctx, queue.ShutDown)
		go func() {
			if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
				ready <- fmt.Errorf("the informer has not synced: %w", ctx.Err())
				return
			}
			ready <- nil
		}()
	}
	all.Wait()
	return nil
}

// reconcile is the same on both sides: a look at the object, and a call of something slow.
func (o *operator) reconcile(ctx context.Context, key string, m *corev1.ConfigMap, began time.Time) error {
	round := m.Data[roundKey]
	at, err := strconv.ParseInt(m.Data[atKey], 10, 64)
	if err != nil {
		return fmt.Errorf("%s says no time: %w", key, err)
	}
	o.write(entry{Key: key, Round: round, At: began.UnixNano()})
	if o.cfg.IO > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(o.cfg.IO):
		}
	}
	o.write(entry{Key: key, Round: round, At: time.Now().UnixNano(), End: true})
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.round != round {
		o.round, o.delay = round, map[string]time.Duration{}
	}
	o.delay[key] = began.Sub(time.Unix(0, at))
	o.last = time.Now()
	o.runs++
	return nil
}

func (o *operator) write(e entry) {
	if o.journal == nil {
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = o.journal.Write(append(line, '\n'))
	}
	if err != nil {
		panic(err) // the journal is the measurement
	}
}
