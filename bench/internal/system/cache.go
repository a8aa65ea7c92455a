package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// ImageIndex is the declared index of the pods of this family; the other four
// are built in. It has a value for every container.
const (
	ImageIndex = "image"
	imageField = "spec.containers[].image"
)

// CacheConfig says what a client-go informer lists, and whether a transform
// strips it of managed fields.
type CacheConfig struct {
	URL   string `json:"url"`
	Strip bool   `json:"strip"`
}

// CacheServer is the servant that holds pods as a Go controller does today.
func CacheServer(ctx context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var cfg CacheConfig
	if err := json.Unmarshal(raw, &cfg); err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: cfg.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeProtobuf}})
	if err != nil {
		return nil, err
	}
	informer := coreinformers.NewPodInformer(client, "", 0, CacheIndexes())
	if cfg.Strip {
		err = informer.SetTransform(func(obj any) (any, error) {
			if p, ok := obj.(*corev1.Pod); ok {
				p.ManagedFields = nil
			}
			return obj, nil
		})
	}
	ctx, cancel := context.WithCancel(ctx)
	return &harness.Servant{Ops: map[string]harness.Op{"load": func(_ context.Context, args json.RawMessage) (any, error) {
		var want int
		if err := json.Unmarshal(args, &want); err != nil {
			return nil, err
		}
		began := time.Now()
		go informer.RunWithContext(ctx)
		if err := AwaitInformer(ctx, informer); err != nil {
			return nil, err
		}
		return InformerResult{Took: time.Since(began)}, nil
	}, "hash": func(context.Context, json.RawMessage) (any, error) {
		return InformerVersions(informer), nil
	}}, Stop: func() error { cancel(); return nil }}, err
}

// CacheIndexes are the five indexes that the indexer has too.
func CacheIndexes() cache.Indexers {
	all := cache.Indexers{
		"label": func(obj any) ([]string, error) {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("%T is no pod", obj)
			}
			terms := make([]string, 0, 2*len(p.Labels))
			for name, value := range p.Labels {
				terms = append(terms, name, name+"="+value)
			}
			return terms, nil
		},
		ImageIndex: func(obj any) ([]string, error) {
			p, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, fmt.Errorf("%T is no pod", obj)
			}
			var images []string
			for i := range p.Spec.Containers {
				images = append(images, p.Spec.Containers[i].Image)
			}
			return images, nil
		},
	}
	maps.Copy(all, informerIndexes)
	return all
}

// AwaitInformer returns when an informer has synced.
func AwaitInformer(ctx context.Context, informer cache.SharedIndexInformer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !informer.HasSynced() {
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("the informer did not sync"), ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// InformerVersions sums up keys and versions of what an informer holds.
func InformerVersions(informer cache.SharedIndexInformer) string {
	var versions []string
	for _, obj := range informer.GetIndexer().List() {
		if p, ok := obj.(metav1.Object); ok {
			versions = append(versions, p.GetNamespace()+"/"+p.GetName()+"="+p.GetResourceVersion())
		}
	}
	return VersionHash(versions)
}
