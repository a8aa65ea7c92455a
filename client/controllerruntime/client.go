package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
	"github.com/deltaplane/deltaplane/client/internal/run"
	"github.com/deltaplane/deltaplane/client/internal/writeback"
)

// NewClient is for manager.Options.NewClient. It is controller-runtime's, and with the context of a
// reconcile of a [Controller] it also
//
//   - refuses writes once the lease of the request has ended ([client.ErrLeaseLost] of the module
//     of Deltaplane), before anything is sent, and
//   - has later reads, and those of the request's next run on any replica, see what was written.
//     Where the API server's answer has no version of it (a deletion, an eviction, Apply), or the
//     write failed and may have been carried out, one request more looks at the object, and what is
//     gone is known by its UID.
//
// With every context it refuses an Update of an object, or of its status, that would remove what
// the index leaves out of the objects of that kind (client.ErrDroppedFields of the module of
// Deltaplane): an object that was read from the cache lacks it. Patch and Apply send only what they
// change. A client that is made without the operator has no such check.
func (o *Operator) NewClient(cfg *rest.Config, options crclient.Options) (crclient.Client, error) {
	inner, err := crclient.New(cfg, options)
	if err != nil {
		return nil, err
	}
	options.Cache = nil
	live, err := crclient.New(cfg, options)
	if err != nil {
		return nil, err
	}
	return &writer{Client: inner, op: o, live: live}, nil
}

// writer is a client whose writes belong to a reconcile.
type writer struct {
	crclient.Client
	op   *Operator
	live crclient.Reader // reads of the API server
}

// written is an object that is written.
type written struct {
	gvk schema.GroupVersionKind
	key crclient.ObjectKey
	was identity
}

// identity says which object of a name it is. Version is one that it had, empty if it is not known.
type identity struct {
	uid     types.UID
	version string
}

// write sends a write of a reconcile and notes the version of its answer; without one it looks.
func (w *writer) write(ctx context.Context, verb string, obj crclient.Object, send func() error, version func() string) error {
	h := handOf(ctx)
	if h == nil {
		return send()
	}
	gvk, err := w.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	if err := h.refuse(verb, gvk); err != nil {
		return err
	}
	about := written{gvk, crclient.ObjectKeyFromObject(obj), identity{obj.GetUID(), obj.GetResourceVersion()}}
	failed := send()
	if failed == nil && version != nil {
		if at := version(); at != "" {
			return carriedOut(verb, gvk, w.wrote(ctx, h, gvk, at))
		}
	}
	if about.key.Name == "" { // its name was to be generated
		return failed
	}
	if err := w.look(ctx, h, about); failed == nil {
		return carriedOut(verb, gvk, err)
	}
	return failed
}

func carriedOut(verb string, gvk schema.GroupVersionKind, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("controllerruntime: %s %s was carried out, but reads that follow may not see it: %w", verb, gvk.Kind, err)
}

// refuse says why a write must not be sent any more.
func (h *hand) refuse(verb string, gvk schema.GroupVersionKind) error {
	if err := h.Alive(); err != nil {
		return fmt.Errorf("controllerruntime: %s %s is not sent: %w", verb, gvk.Kind, err)
	}
	return nil
}

// wrote notes that a kind was written at a version.
func (w *writer) wrote(ctx context.Context, h *hand, gvk schema.GroupVersionKind, version string) error {
	collection, err := w.collection(ctx, gvk)
	if err != nil || collection == "" {
		return err
	}
	return h.Wrote(ctx, collection, version)
}

// writeBack says why an object must not be sent as it was read.
func (w *writer) writeBack(ctx context.Context, obj crclient.Object, subresource string) error {
	gvk, err := w.GroupVersionKindFor(obj)
	if err != nil {
		return err
	}
	mapping, err := w.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	of := writeback.Resource{Cluster: w.op.o.Cluster, Group: mapping.Resource.Group, Version: mapping.Resource.Version, Name: mapping.Resource.Resource}
	if err := w.op.guard.Update(ctx, of, subresource); err != nil {
		return fmt.Errorf("controllerruntime: update %s is not sent: %w", gvk.Kind, err)
	}
	return nil
}

// collection is that of a kind; empty when the index has none, so that nobody reads it there.
func (w *writer) collection(ctx context.Context, gvk schema.GroupVersionKind) (string, error) {
	mapping, err := w.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return "", err
	}
	return w.op.collection(ctx, mapping.Resource)
}

// look asks the API server what became of an object.
func (w *writer) look(ctx context.Context, h *hand, about written) error {
	collection, err := w.collection(ctx, about.gvk)
	if err != nil || collection == "" {
		return err
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(about.gvk)
	err = w.live.Get(ctx, about.key, now)
	switch {
	case apierrors.IsNotFound(err), err == nil && about.was.uid != "" && now.UID != about.was.uid:
		return h.Deleted(ctx, goneOf(collection, about.key, about.was))
	case err != nil:
		return err
	}
	return h.Wrote(ctx, collection, now.ResourceVersion)
}

func goneOf(collection string, key crclient.ObjectKey, was identity) run.Gone {
	return run.Gone{Collection: collection, Key: joined(key), UID: string(was.uid), Version: was.version, At: time.Now().Unix()}
}

func versionOf(obj crclient.Object) func() string { return obj.GetResourceVersion }

// Create implements client.Writer.
func (w *writer) Create(ctx context.Context, obj crclient.Object, opts ...crclient.CreateOption) error {
	return w.write(ctx, "create", obj, func() error { return w.Client.Create(ctx, obj, opts...) }, versionOf(obj))
}

// Update implements client.Writer.
func (w *writer) Update(ctx context.Context, obj crclient.Object, opts ...crclient.UpdateOption) error {
	if err := w.writeBack(ctx, obj, ""); err != nil {
		return err
	}
	return w.write(ctx, "update", obj, func() error { return w.Client.Update(ctx, obj, opts...) }, versionOf(obj))
}

// Patch implements client.Writer.
func (w *writer) Patch(ctx context.Context, obj crclient.Object, patch crclient.Patch, opts ...crclient.PatchOption) error {
	return w.write(ctx, "patch", obj, func() error { return w.Client.Patch(ctx, obj, patch, opts...) }, versionOf(obj))
}

// Delete implements client.Writer.
func (w *writer) Delete(ctx context.Context, obj crclient.Object, opts ...crclient.DeleteOption) error {
	return w.write(ctx, "delete", obj, func() error { return w.Client.Delete(ctx, obj, opts...) }, nil)
}

// DeleteAllOf implements client.Writer.
func (w *writer) DeleteAllOf(ctx context.Context, obj crclient.Object, opts ...crclient.DeleteAllOfOption) error {
	h := handOf(ctx)
	if h == nil {
		return w.Client.DeleteAllOf(ctx, obj, opts...)
	}
	const verb = "delete all of"
	gvk, err := w.GroupVersionKindFor(obj)
	if err == nil {
		err = h.refuse(verb, gvk)
	}
	if err != nil {
		return err
	}
	var o crclient.DeleteAllOfOptions
	o.ApplyOptions(opts)
	before, err := w.present(ctx, gvk, &o.ListOptions)
	if err != nil {
		return fmt.Errorf("controllerruntime: %s %s is not sent: %w", verb, gvk.Kind, err)
	}
	failed := w.Client.DeleteAllOf(ctx, obj, opts...)
	err = w.lookAll(ctx, h, gvk, before, &o.ListOptions)
	if failed != nil {
		return failed
	}
	return carriedOut(verb, gvk, err)
}

// present are objects as the API server has them; those that are being deleted are left out.
func (w *writer) present(ctx context.Context, gvk schema.GroupVersionKind, o crclient.ListOption) (map[crclient.ObjectKey]identity, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
	if err := w.live.List(ctx, list, o); err != nil {
		return nil, err
	}
	all := make(map[crclient.ObjectKey]identity, len(list.Items))
	for n := range list.Items {
		if m := &list.Items[n]; m.DeletionTimestamp == nil {
			all[crclient.ObjectKeyFromObject(m)] = identity{m.UID, m.ResourceVersion}
		}
	}
	return all, nil
}

// lookAll notes which objects were deleted.
func (w *writer) lookAll(ctx context.Context, h *hand, gvk schema.GroupVersionKind, before map[crclient.ObjectKey]identity, o crclient.ListOption) error {
	collection, err := w.collection(ctx, gvk)
	if err != nil || collection == "" {
		return err
	}
	after, err := w.present(ctx, gvk, o)
	if err != nil {
		return err
	}
	var all []run.Gone
	for key, was := range before {
		if after[key].uid != was.uid {
			g := goneOf(collection, key, was)
			g.Ending = true // some may have finalizers
			all = append(all, g)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return h.Deleted(ctx, all...)
}

// Apply implements client.Writer.
func (w *writer) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...crclient.ApplyOption) error {
	return w.apply(ctx, obj, func() error { return w.Client.Apply(ctx, obj, opts...) })
}

// apply is write for what says its kind by itself.
func (w *writer) apply(ctx context.Context, obj runtime.ApplyConfiguration, send func() error) error {
	if handOf(ctx) == nil {
		return send()
	}
	of, ok := obj.(interface {
		GetKind() *string
		GetAPIVersion() *string
		GetName() *string
		GetNamespace() *string
	})
	if !ok || of.GetKind() == nil || of.GetAPIVersion() == nil {
		return fmt.Errorf("controllerruntime: apply: the kind of a %T is not known", obj)
	}
	about := &metav1.PartialObjectMetadata{}
	about.APIVersion, about.Kind = *of.GetAPIVersion(), *of.GetKind()
	about.Name, about.Namespace = ptr.Deref(of.GetName(), ""), ptr.Deref(of.GetNamespace(), "")
	return w.write(ctx, "apply", about, send, nil)
}

// Status implements client.StatusClient.
func (w *writer) Status() crclient.SubResourceWriter { return w.SubResource("status") }

// SubResource implements client.SubResourceClientConstructor.
func (w *writer) SubResource(name string) crclient.SubResourceClient {
	return &subresource{SubResourceClient: w.Client.SubResource(name), w: w, name: name}
}

// subresource is a writer of one subresource.
type subresource struct {
	crclient.SubResourceClient
	w    *writer
	name string
}

// Create implements client.SubResourceWriter.
func (s *subresource) Create(ctx context.Context, obj, sub crclient.Object, opts ...crclient.SubResourceCreateOption) error {
	return s.w.write(ctx, "create "+s.name, obj, func() error { return s.SubResourceClient.Create(ctx, obj, sub, opts...) }, nil)
}

// Update implements client.SubResourceWriter.
func (s *subresource) Update(ctx context.Context, obj crclient.Object, opts ...crclient.SubResourceUpdateOption) error {
	if err := s.w.writeBack(ctx, obj, s.name); err != nil {
		return err
	}
	before := obj.GetResourceVersion()
	return s.w.write(ctx, "update "+s.name, obj, func() error { return s.SubResourceClient.Update(ctx, obj, opts...) }, changed(obj, before))
}

// Patch implements client.SubResourceWriter.
func (s *subresource) Patch(ctx context.Context, obj crclient.Object, patch crclient.Patch, opts ...crclient.SubResourcePatchOption) error {
	before := obj.GetResourceVersion()
	return s.w.write(ctx, "patch "+s.name, obj, func() error { return s.SubResourceClient.Patch(ctx, obj, patch, opts...) }, changed(obj, before))
}

// Apply implements client.SubResourceWriter.
func (s *subresource) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...crclient.SubResourceApplyOption) error {
	return s.w.apply(ctx, obj, func() error { return s.SubResourceClient.Apply(ctx, obj, opts...) })
}

// changed is the version of an object whose write may answer with something else: then it is not
// known.
func changed(obj crclient.Object, before string) func() string {
	return func() string {
		if now := obj.GetResourceVersion(); now != before {
			return now
		}
		return ""
	}
}

// collection is the full name of the collection of a resource; empty when the index has none.
func (o *Operator) collection(ctx context.Context, resource schema.GroupVersionResource) (string, error) {
	o.mu.Lock()
	name, ok := o.collections[resource]
	o.mu.Unlock()
	if ok {
		return name, nil
	}
	name, err := clientgo.Collection(ctx, o.index, o.o.Cluster, resource)
	if err != nil {
		if errors.Is(err, client.ErrCollectionNotFound) {
			err = nil
		}
		return "", err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.collections[resource] = name
	return name, nil
}
