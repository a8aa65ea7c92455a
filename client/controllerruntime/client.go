package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/clientgo"
)

// NewClient is for manager.Options.NewClient. It is controller-runtime's, and with the context of a
// reconcile of a [Controller] it also
//
//   - refuses writes once the lease of the request has ended ([client.ErrLeaseLost] of the module of
//     Deltaplane), before anything is sent, and
//   - has later reads, and those of the request's next run on any replica, see what was written. Where
//     the API server's answer has no version of what was written (a deletion, an eviction, Apply),
//     one request more asks for the version that the collection is at.
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

// write sends a write of a reconcile and notes the version of its answer.
func (w *writer) write(ctx context.Context, verb string, obj runtime.Object, send func() error, version func() string) error {
	h := handOf(ctx)
	if h == nil {
		return send()
	}
	gvk, err := w.kindOf(obj)
	if err != nil {
		return err
	}
	if err := h.Alive(); err != nil {
		return fmt.Errorf("controllerruntime: %s %s is not sent: %w", verb, gvk.Kind, err)
	}
	failed := send()
	// One that failed may have been carried out all the same.
	at := ""
	if failed == nil && version != nil {
		at = version()
	}
	if err := w.wrote(ctx, h, gvk, at); err != nil && failed == nil {
		return fmt.Errorf("controllerruntime: %s %s was carried out, but reads that follow may not see it: %w", verb, gvk.Kind, err)
	}
	return failed
}

// wrote notes that a kind was written at a version, or at the one that the API server is at.
func (w *writer) wrote(ctx context.Context, h *hand, gvk schema.GroupVersionKind, version string) error {
	mapping, err := w.RESTMapper().RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return err
	}
	collection, err := w.op.collection(ctx, mapping.Resource)
	if err != nil || collection == "" { // the index does not have the kind: nobody reads it there
		return err
	}
	if version == "" {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := w.live.List(ctx, list, crclient.Limit(1)); err != nil {
			return err
		}
		version = list.ResourceVersion
	}
	h.Wrote(collection, client.Revision{RV: version})
	return nil
}

func (w *writer) kindOf(obj runtime.Object) (schema.GroupVersionKind, error) {
	gvk, err := w.GroupVersionKindFor(obj)
	if err == nil && meta.IsListType(obj) {
		gvk.Kind = strings.TrimSuffix(gvk.Kind, "List")
	}
	return gvk, err
}

func versionOf(obj crclient.Object) func() string { return obj.GetResourceVersion }

// Create implements client.Writer.
func (w *writer) Create(ctx context.Context, obj crclient.Object, opts ...crclient.CreateOption) error {
	return w.write(ctx, "create", obj, func() error { return w.Client.Create(ctx, obj, opts...) }, versionOf(obj))
}

// Update implements client.Writer.
func (w *writer) Update(ctx context.Context, obj crclient.Object, opts ...crclient.UpdateOption) error {
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
	return w.write(ctx, "delete all of", obj, func() error { return w.Client.DeleteAllOf(ctx, obj, opts...) }, nil)
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
	})
	if !ok || of.GetKind() == nil || of.GetAPIVersion() == nil {
		return fmt.Errorf("controllerruntime: apply: the kind of a %T is not known", obj)
	}
	about := &metav1.PartialObjectMetadata{}
	about.APIVersion, about.Kind = *of.GetAPIVersion(), *of.GetKind()
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
