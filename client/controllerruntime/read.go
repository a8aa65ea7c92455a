package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// Get implements client.Reader.
func (c *remote) Get(ctx context.Context, key crclient.ObjectKey, out crclient.Object, _ ...crclient.GetOption) error {
	i, err := c.ready(ctx, out)
	if err != nil {
		return err
	}
	if !i.namespaced {
		key.Namespace = ""
	}
	s, ok := i.scopeOf(key.Namespace)
	if !ok {
		return fmt.Errorf("unable to get: %v because of unknown namespace for the cache", key)
	}
	object, err := c.find(ctx, i, s, joined(key))
	if err != nil {
		return err
	}
	if object == nil {
		// The kind in place of the resource is what controller-runtime's cache says.
		return apierrors.NewNotFound(schema.GroupResource{Group: i.gvk.Group, Resource: i.gvk.Kind}, key.Name)
	}
	obj, err := i.decode(*object, s.transform)
	if err != nil {
		return err
	}
	return i.set(out, obj)
}

// find returns an object of a scope, or nil when there is none.
func (c *remote) find(ctx context.Context, i *informer, s scope, key string) (object *client.Object, err error) {
	if s.empty() {
		return nil, nil
	}
	err = c.read(ctx, i, func(o client.ReadOptions) error {
		var at client.Bounds
		if s.labels.Empty() && s.fields.Empty() {
			object, at, err = c.op.index.Find(ctx, i.collection, key, o)
		} else {
			object, at, err = c.choose(ctx, i, s, key, o)
		}
		if err == nil {
			c.op.saw(ctx, i.collection, at)
		}
		return err
	})
	return object, err
}

// choose is find by a list, which selectors can be given.
func (c *remote) choose(ctx context.Context, i *informer, s scope, key string, o client.ReadOptions) (*client.Object, client.Bounds, error) {
	name := key
	namespace := ""
	if i.namespaced {
		namespace, name = split(key)
	}
	objects, at, err := c.op.index.List(ctx, i.collection, client.ListOptions{
		ReadOptions: o, Namespace: namespace, Labels: s.labels.String(), FieldSelector: join("metadata.name="+name, s.fields.String()),
	})
	if err != nil || len(objects) == 0 {
		return nil, at, err
	}
	return &objects[0], at, nil
}

// List implements client.Reader.
func (c *remote) List(ctx context.Context, out crclient.ObjectList, opts ...crclient.ListOption) error {
	var o crclient.ListOptions
	o.ApplyOptions(opts)
	if o.Continue != "" {
		return errors.New("continue list option is not supported by the cache")
	}
	i, err := c.ready(ctx, out)
	if err != nil {
		return err
	}
	var scopes []scope
	switch {
	case !i.namespaced || o.Namespace == "":
		scopes = i.scopes
	default:
		s, ok := i.scopeOf(o.Namespace)
		if !ok {
			return fmt.Errorf("unable to list: %v because of unknown namespace for the cache", o.Namespace)
		}
		scopes = []scope{s}
	}
	found := make([]runtime.Object, 0)
	var version string
	for _, s := range scopes {
		if o.Limit > 0 && int64(len(found)) >= o.Limit {
			break
		}
		objects, at, err := c.list(ctx, i, s, o)
		if err != nil {
			return err
		}
		version = at.RV
		for n := range objects {
			if o.Limit > 0 && int64(len(found)) >= o.Limit {
				break
			}
			obj, err := i.decode(objects[n], s.transform)
			if err != nil {
				return err
			}
			obj.GetObjectKind().SetGroupVersionKind(i.gvk)
			found = append(found, obj)
		}
	}
	if err := meta.SetList(out, found); err != nil {
		return err
	}
	out.SetContinue("continue-not-supported")
	out.SetResourceVersion(version)
	return nil
}

// list returns what options choose in a scope.
func (c *remote) list(ctx context.Context, i *informer, s scope, o crclient.ListOptions) (objects []client.Object, at client.Bounds, err error) {
	want := labels.Everything()
	if o.LabelSelector != nil {
		want = o.LabelSelector
	}
	if _, selects := want.Requirements(); !selects || s.empty() {
		return nil, client.Bounds{}, nil
	}
	q, err := i.query(o)
	if err != nil {
		return nil, client.Bounds{}, err
	}
	err = c.read(ctx, i, func(r client.ReadOptions) error {
		lo := client.ListOptions{
			ReadOptions: r, Namespace: s.namespace, Labels: join(s.labels.String(), want.String()),
			FieldSelector: join(s.fields.String(), q.fields), Index: q.index, Values: q.values,
		}
		if i.namespaced && o.Namespace != "" {
			lo.Namespace = o.Namespace
		}
		if objects, at, err = c.limited(ctx, i.collection, lo, o.Limit); err != nil {
			return err
		}
		c.op.saw(ctx, i.collection, at)
		return nil
	})
	return objects, at, err
}

// limited lists at most so many objects, or all of them when limit is zero.
func (c *remote) limited(ctx context.Context, collection string, o client.ListOptions, limit int64) ([]client.Object, client.Bounds, error) {
	const mostOfAPage = 5000
	if limit <= 0 || limit > mostOfAPage {
		return c.op.index.List(ctx, collection, o)
	}
	o.PageSize = int(limit)
	page, err := c.op.index.Page(ctx, collection, o, "")
	return page.Objects, page.Bounds, err
}

// readTimeout is how long a read waits for a collection that was readable before.
const readTimeout = 30 * time.Second

// read asks the index, again while that may help: replicas restart and indexes are built.
func (c *remote) read(ctx context.Context, i *informer, ask func(client.ReadOptions) error) error {
	if h := handOf(ctx); h != nil {
		if err := h.Unseen(ctx, i.collection); err != nil {
			return err
		}
	}
	began := time.Now()
	wait := attempt.Wait{First: 20 * time.Millisecond, Most: time.Second, Low: 0.5, High: 1}
	for {
		err := ask(client.ReadOptions{View: i.view(), AtLeast: c.op.least(ctx, i.collection)})
		if err == nil || !errors.Is(err, client.ErrNotSynced) && !errors.Is(err, client.ErrIndexBuilding) || time.Since(began) > readTimeout {
			return err
		}
		if !wait.Sleep(ctx, 0) {
			return timeout(i.blank(), err)
		}
	}
}

// scopeOf is the scope that a namespace belongs to.
func (k kind) scopeOf(namespace string) (scope, bool) {
	if !k.namespaced {
		return k.scopes[0], true
	}
	all := -1
	for n, s := range k.scopes {
		switch s.namespace {
		case cache.AllNamespaces:
			all = n
		case namespace:
			return s, true
		}
	}
	if all < 0 {
		return scope{}, false
	}
	return k.scopes[all], true
}
