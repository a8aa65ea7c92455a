package main

import (
	"context"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/deltaplane/deltaplane/client/controller"
)

// resource is what the API server and the index call one kind of object.
type resource struct {
	schema.GroupVersionResource
	collection string
}

var (
	sites      = resource{siteKind.GroupVersion().WithResource("sites"), "sites"}
	configMaps = resource{schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "configmaps"}
)

// writer writes to the API server with client-go, and tells the controller what was written, so
// that no later run decides on an older state.
type writer struct {
	api dynamic.Interface
	ctl *controller.Controller
}

func (w writer) create(ctx context.Context, r resource, obj metav1.Object) error {
	return w.write(ctx, r, obj, func(in dynamic.ResourceInterface, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return in.Create(ctx, u, metav1.CreateOptions{})
	})
}

// update replaces the version that obj was read at; any other one is a conflict.
func (w writer) update(ctx context.Context, r resource, obj metav1.Object) error {
	return w.write(ctx, r, obj, func(in dynamic.ResourceInterface, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return in.Update(ctx, u, metav1.UpdateOptions{})
	})
}

func (w writer) updateStatus(ctx context.Context, r resource, obj metav1.Object) error {
	return w.write(ctx, r, obj, func(in dynamic.ResourceInterface, u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
		return in.UpdateStatus(ctx, u, metav1.UpdateOptions{})
	})
}

// write sends obj and makes it what the API server answers.
func (w writer) write(ctx context.Context, r resource, obj metav1.Object,
	send func(dynamic.ResourceInterface, *unstructured.Unstructured) (*unstructured.Unstructured, error),
) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return fmt.Errorf("encode %s: %w", obj.GetName(), err)
	}
	answer, err := send(w.api.Resource(r.GroupVersionResource).Namespace(obj.GetNamespace()), &unstructured.Unstructured{Object: content})
	if err != nil {
		return err
	}
	slog.DebugContext(ctx, "wrote", slog.String("collection", r.collection), slog.String("name", obj.GetName()), slog.String("version", answer.GetResourceVersion()))
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, obj); err != nil {
		return fmt.Errorf("decode %s: %w", obj.GetName(), err)
	}
	if obj.GetDeletionTimestamp() != nil && len(obj.GetFinalizers()) == 0 {
		return w.ctl.Deleted(ctx, r.collection, obj.GetNamespace()+"/"+obj.GetName(), string(obj.GetUID()))
	}
	return w.ctl.Wrote(ctx, r.collection, obj.GetResourceVersion())
}
