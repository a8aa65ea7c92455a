// Package controller has the controller of Sites.
package controller

import (
	"context"
	"fmt"
	"html"

	examplev1 "example.com/kubebuilder-operator/api/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	deltaplane "github.com/deltaplane/deltaplane/client/controllerruntime"
)

// finalizer keeps a Site until its page is archived.
const finalizer = "example.com/archive"

// SiteReconciler reconciles a Site object.
type SiteReconciler struct {
	client.Client
	Scheme *runtime.Scheme
}

// +kubebuilder:rbac:groups=example.com,resources=sites,verbs=get;list;watch;update;patch
// +kubebuilder:rbac:groups=example.com,resources=sites/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=example.com,resources=sites/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;update;patch

// Reconcile keeps a page for a Site, and archives the page before the Site goes.
func (r *SiteReconciler) Reconcile(ctx context.Context, req ctrl.Request) (result ctrl.Result, err error) {
	log := log.FromContext(ctx).WithValues("key", req.String())
	log.V(1).Info("begins")
	defer func() { log.V(1).Info("ends") }()
	var site examplev1.Site
	if err := r.get(ctx, req.NamespacedName, &site, "sites"); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !site.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, r.archive(ctx, &site)
	}
	return ctrl.Result{}, r.publish(ctx, &site)
}

func (r *SiteReconciler) publish(ctx context.Context, site *examplev1.Site) error {
	if controllerutil.AddFinalizer(site, finalizer) {
		if err := r.wrote(ctx, site, "sites", r.Update(ctx, site)); err != nil {
			return err
		}
	}
	var page corev1.ConfigMap
	err := r.get(ctx, client.ObjectKeyFromObject(site), &page, "configmaps")
	want := pageOf(site.Namespace, site.Name, site)
	switch {
	case apierrors.IsNotFound(err):
		if err := controllerutil.SetControllerReference(site, want, r.Scheme); err != nil {
			return err
		}
		err = r.wrote(ctx, want, "configmaps", r.Create(ctx, want))
	case err != nil:
	case !metav1.IsControlledBy(&page, site):
		return reconcile.TerminalError(fmt.Errorf("the ConfigMap %s is not the page of this Site", page.Name))
	case page.Data["index.html"] != want.Data["index.html"]:
		page.Data = want.Data
		err = r.wrote(ctx, &page, "configmaps", r.Update(ctx, &page))
	}
	if err != nil {
		return err
	}
	status := examplev1.SiteStatus{ObservedGeneration: site.Generation, Page: want.Name}
	if site.Status == status {
		return nil
	}
	site.Status = status
	return r.wrote(ctx, site, "sites", r.Status().Update(ctx, site))
}

// archive keeps what was to be published last, and lets the Site go.
func (r *SiteReconciler) archive(ctx context.Context, site *examplev1.Site) error {
	if !controllerutil.ContainsFinalizer(site, finalizer) {
		return nil
	}
	archive := pageOf(site.Namespace, site.Name+"-archive", site)
	if err := r.wrote(ctx, archive, "configmaps", r.Create(ctx, archive)); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	controllerutil.RemoveFinalizer(site, finalizer)
	return r.wrote(ctx, site, "sites", r.Update(ctx, site))
}

func pageOf(namespace, name string, site *examplev1.Site) *corev1.ConfigMap {
	content := fmt.Sprintf("<h1>%s</h1><p>%s</p>", html.EscapeString(site.Spec.Title), html.EscapeString(site.Spec.Text))
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Data:       map[string]string{"index.html": content},
	}
}

// get reads an object, and logs of which version it is.
func (r *SiteReconciler) get(ctx context.Context, key client.ObjectKey, obj client.Object, collection string) error {
	err := r.Get(ctx, key, obj)
	if err == nil {
		log.FromContext(ctx).V(1).Info("read", "collection", collection, "name", obj.GetName(), "version", obj.GetResourceVersion())
	}
	return err
}

// wrote logs what a write made of an object.
func (r *SiteReconciler) wrote(ctx context.Context, obj client.Object, collection string, err error) error {
	if err == nil {
		log.FromContext(ctx).V(1).Info("wrote", "collection", collection, "name", obj.GetName(), "version", obj.GetResourceVersion())
	}
	return err
}

// SetupWithManager sets up the controller with the Manager.
func (r *SiteReconciler) SetupWithManager(mgr ctrl.Manager, operator *deltaplane.Operator) error {
	sites := deltaplane.Reconciler(operator, r)
	return ctrl.NewControllerManagedBy(mgr).
		For(&examplev1.Site{}).
		Owns(&corev1.ConfigMap{}).
		Named("site").
		WithOptions(controller.Options{NewQueue: sites.NewQueue, MaxConcurrentReconciles: 8}).
		Complete(sites)
}
