package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/system"
)

// jsonConfig is client-go informers of all pods, each with a client of its own,
// with the one index that an informer factory gives them.
type jsonConfig struct {
	URL        string `json:"url"` // of the API server; or
	Kubeconfig string `json:"kubeconfig"`
	Count      int    `json:"count"`
	Protobuf   bool   `json:"protobuf"` // instead of JSON
}

// jsonInformers is the peer of a reflector and the readers of its log.
type jsonInformers struct {
	cfg jsonConfig
	all []cache.SharedIndexInformer

	mu       sync.Mutex
	arrivals arrivedAt     // of the first informer's handler; guarded by mu
	complete chan struct{} // closed when nothing is missing
}

// JSONServer is the servant that is informers.
func JSONServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	j := &jsonInformers{}
	if err := json.Unmarshal(raw, &j.cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &harness.Servant{Ops: map[string]harness.Op{
		"load": func(context.Context, json.RawMessage) (any, error) { return j.load(ctx) },
		"expect": func(_ context.Context, args json.RawMessage) (any, error) {
			var e expectArgs
			if err := json.Unmarshal(args, &e); err != nil {
				return nil, err
			}
			j.mu.Lock()
			defer j.mu.Unlock()
			j.arrivals, j.complete = newArrivals(e), make(chan struct{})
			return nil, nil
		},
		"arrivals": func(context.Context, json.RawMessage) (any, error) {
			select {
			case <-j.complete:
				return j.arrivals, nil
			case <-time.After(readTimeout):
				return nil, errors.New("the informer did not see every event")
			}
		},
		"versions": func(context.Context, json.RawMessage) (any, error) {
			var all []string
			for _, informer := range j.all {
				all = append(all, system.InformerVersions(informer))
			}
			return all, nil
		},
	}, Stop: func() error { cancel(); return nil }}, nil
}

// load starts the informers and returns how long they took to sync.
func (j *jsonInformers) load(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for i := range j.cfg.Count {
		config, err := clientcmd.BuildConfigFromFlags(j.cfg.URL, j.cfg.Kubeconfig)
		if err != nil {
			return 0, err
		}
		config.QPS, config.ContentType = -1, runtime.ContentTypeJSON
		if j.cfg.Protobuf {
			config.ContentType = runtime.ContentTypeProtobuf
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return 0, err
		}
		informer := coreinformers.NewPodInformer(client, "", 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		if i == 0 {
			if _, err := informer.AddEventHandler(j.handler()); err != nil {
				return 0, err
			}
		}
		j.all = append(j.all, informer)
		go informer.RunWithContext(ctx)
	}
	for _, informer := range j.all {
		if err := system.AwaitInformer(ctx, informer); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

// handler notes when events are handled.
func (j *jsonInformers) handler() cache.ResourceEventHandler {
	seen := func(obj any) {
		o, ok := obj.(metav1.Object)
		if !ok {
			return // the last state before a gap: nothing waits for it
		}
		now := time.Now()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.arrivals.missing > 0 && j.arrivals.arrive(o.GetResourceVersion(), now) >= 0 && j.arrivals.missing == 0 {
			close(j.complete)
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: seen, UpdateFunc: func(_, obj any) { seen(obj) }, DeleteFunc: seen}
}

// peers is the parent's side of informers.
type peers struct{ *harness.Child }

func startPeers(ctx context.Context, b *harness.Bench, cfg jsonConfig) (*peers, error) {
	c, err := b.Spawn(ctx, "json", harness.Place{}, cfg, nil)
	return &peers{c}, err
}

// verify returns when every informer holds the keys and versions of the source.
func (p *peers) verify(ctx context.Context, s *scripted) error {
	var want string
	if err := s.Call("versions", nil, &want); err != nil {
		return err
	}
	var different error
	for began := time.Now(); time.Since(began) < 10*time.Second && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		var got []string
		if err := p.Call("versions", nil, &got); err != nil {
			return err
		}
		different = nil
		for i, hash := range got {
			if hash != want {
				different = fmt.Errorf("informer %d holds other keys or versions: %s, want %s", i, hash, want)
			}
		}
		if different == nil {
			return nil
		}
	}
	return errors.Join(different, ctx.Err())
}
