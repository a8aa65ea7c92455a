package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
)

// InformerResult is what an informer tells of a load.
type InformerResult struct {
	Took time.Duration `json:"took"`
	Hash string        `json:"hash"`
}

// InformerServer is the servant that loads pods as a Go controller does today.
func InformerServer(_ context.Context, raw json.RawMessage) (*harness.Servant, error) {
	var kubeconfig string
	if err := json.Unmarshal(raw, &kubeconfig); err != nil {
		return nil, err
	}
	return &harness.Servant{Ops: map[string]harness.Op{"load": func(ctx context.Context, args json.RawMessage) (any, error) {
		var want int
		if err := json.Unmarshal(args, &want); err != nil {
			return nil, err
		}
		return informerLoad(ctx, kubeconfig, want)
	}}}, nil
}

// informerIndexes are those the index service has for pods.
var informerIndexes = cache.Indexers{
	"namespace": cache.MetaNamespaceIndexFunc,
	"node": func(obj any) ([]string, error) {
		if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName != "" {
			return []string{p.Spec.NodeName}, nil
		}
		return nil, nil
	},
	"owner": func(obj any) ([]string, error) {
		p, ok := obj.(*corev1.Pod)
		if !ok {
			return nil, nil
		}
		var uids []string
		for _, o := range p.OwnerReferences {
			uids = append(uids, string(o.UID))
		}
		return uids, nil
	},
}

// informerLoad runs an informer until it has synced, with at least want pods.
func informerLoad(ctx context.Context, kubeconfig string, want int) (InformerResult, error) {
	began := time.Now()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return InformerResult{}, err
	}
	config.QPS, config.ContentType = -1, runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return InformerResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	informer := coreinformers.NewPodInformer(client, "", 0, informerIndexes)
	go informer.RunWithContext(ctx)
	for tick := time.NewTicker(2 * time.Millisecond); !informer.HasSynced(); {
		select {
		case <-ctx.Done():
			return InformerResult{}, errors.Join(errors.New("the informer did not sync"), ctx.Err())
		case <-tick.C:
		}
	}
	r := InformerResult{Took: time.Since(began)}
	var versions []string
	for _, obj := range informer.GetIndexer().List() {
		if p, ok := obj.(*corev1.Pod); ok {
			versions = append(versions, p.Namespace+"/"+p.Name+"="+p.ResourceVersion)
		}
	}
	if len(versions) < want {
		return r, fmt.Errorf("the informer holds %d pods, want %d", len(versions), want)
	}
	r.Hash = VersionHash(versions)
	return r, nil
}
