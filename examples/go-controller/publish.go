package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/controller"
)

// publisher keeps a page for each Site, and archives the page before a Site goes.
type publisher struct{ writer }

func (p publisher) reconcile(ctx context.Context, req controller.Request) (controller.Result, error) {
	site, err := find[Site](ctx, p.ctl, sites, req.Key())
	switch {
	case err != nil || site == nil: // the finalizer has done what was left to do
		return controller.Result{}, err
	case site.DeletionTimestamp != nil:
		return controller.Result{}, p.archive(ctx, site)
	default:
		return controller.Result{}, p.publish(ctx, site)
	}
}

func (p publisher) publish(ctx context.Context, site *Site) error {
	if !slices.Contains(site.Finalizers, finalizer) {
		site.Finalizers = append(site.Finalizers, finalizer)
		if err := p.update(ctx, sites, site); err != nil {
			return err
		}
	}
	page, err := find[corev1.ConfigMap](ctx, p.ctl, configMaps, site.Namespace+"/"+site.Name)
	want := pageOf(site)
	switch {
	case err != nil:
		return err
	case page == nil:
		err = p.create(ctx, configMaps, want)
	case !metav1.IsControlledBy(page, site):
		return client.Terminal(fmt.Errorf("the ConfigMap %s is not the page of this Site", page.Name))
	case page.Data["index.html"] != want.Data["index.html"]:
		page.Data = want.Data
		err = p.update(ctx, configMaps, page)
	}
	if err != nil {
		return err
	}
	status := SiteStatus{ObservedGeneration: site.Generation, Page: want.Name}
	if site.Status == status {
		return nil
	}
	site.Status = status
	return p.updateStatus(ctx, sites, site)
}

// archive keeps what was to be published last, and lets the Site go.
func (p publisher) archive(ctx context.Context, site *Site) error {
	i := slices.Index(site.Finalizers, finalizer)
	if i < 0 {
		return nil
	}
	if err := p.create(ctx, configMaps, archiveOf(site, contentOf(site))); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	site.Finalizers = slices.Delete(site.Finalizers, i, i+1)
	return p.update(ctx, sites, site)
}

// find returns an object of the index, or nil when there is none.
func find[T any](ctx context.Context, ctl *controller.Controller, r resource, key string) (*T, error) {
	obj, err := controller.Get[T](ctx, ctl, r.collection, key)
	if errors.Is(err, client.ErrKeyNotFound) {
		return nil, nil
	}
	if o, ok := any(obj).(metav1.Object); ok && err == nil {
		slog.DebugContext(ctx, "read", slog.String("collection", r.collection), slog.String("name", o.GetName()), slog.String("version", o.GetResourceVersion()))
	}
	return obj, err
}
