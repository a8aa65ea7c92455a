package clientgo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// ErrInformerExists: the factory has an informer of the type already, so that it would not take
// this one.
var ErrInformerExists = errors.New("clientgo: the factory has an informer of the type")

// InformerFor puts an informer of the index into a shared informer factory, client-go's or one that
// was generated for other types. From then on the factory's typed informers and listers of the
// example's type are this one; the factory starts it and says its resync period. It has client-go's
// index by namespace besides the given ones. It must be called before the factory is asked for the
// type ([ErrInformerExists]). The namespace and the list options of a factory do not reach it: see
// [InformerConfig].Scope. Other errors are those of [NewSharedIndexInformer].
//
//	factory := informers.NewSharedInformerFactory(clientset, 0)
//	_, err := clientgo.InformerFor(ctx, factory, index, &corev1.Pod{}, nil, clientgo.InformerConfig{})
//	pods := factory.Core().V1().Pods().Lister()
func InformerFor[C any, F ~func(C, time.Duration) cache.SharedIndexInformer](
	ctx context.Context, factory interface {
		InformerFor(obj runtime.Object, newInformer F) cache.SharedIndexInformer
	}, index Index, example runtime.Object, indexers cache.Indexers, cfg InformerConfig,
) (*Informer, error) {
	all := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	maps.Copy(all, indexers)
	build, err := prepare(ctx, index, example, all, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := build(0); err != nil { // the factory has no way to pass an error on
		return nil, err
	}
	var made *Informer
	factory.InformerFor(example, func(_ C, resync time.Duration) cache.SharedIndexInformer {
		made, err = build(max(resync, 0))
		return made
	})
	if made == nil && err == nil {
		err = fmt.Errorf("%w: %T", ErrInformerExists, example)
	}
	return made, err
}
