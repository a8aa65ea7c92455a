package write

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltaplane/deltaplane/internal/devcluster/kinds"
)

// Bootstrap creates the namespaces every cluster has.
func (w *Writer) Bootstrap() error {
	r := w.kinds.Get("namespaces")
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.SetDefaults(ns)
		if _, err := w.Create(r, ns, Options{Manager: "devcluster"}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// admitNamespace refuses objects in namespaces that do not exist or are going.
func (w *Writer) admitNamespace(r *kinds.Resource, obj kinds.APIObject) error {
	if !r.Namespaced {
		return nil
	}
	name := obj.GetNamespace()
	namespaces := w.kinds.Get("namespaces")
	o := w.store.Get(namespaces, name)
	if o == nil {
		return apierrors.NewNotFound(namespaces.GroupResource(), name)
	}
	ns, ok := o.Decoded.(*corev1.Namespace)
	if !ok || ns.DeletionTimestamp == nil {
		return nil
	}
	err := apierrors.NewForbidden(r.GroupResource(), obj.GetName(),
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", name))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", name), Field: "metadata.namespace",
	})
	return err
}

// created does what the cluster's own controllers do at once for a new object: a
// namespace gets its default service account, a CRD is served.
func (w *Writer) created(r *kinds.Resource, obj kinds.APIObject) error {
	switch r.ID() {
	case kinds.CRDID:
		return w.kinds.Serve(obj)
	case "namespaces":
	default:
		return nil
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: obj.GetName()}}
	_, err := w.Create(w.kinds.Get("serviceaccounts"), sa, Options{Manager: "devcluster"})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// admit refuses a pod whose service account does not exist.
func (w *Writer) admit(r *kinds.Resource, obj kinds.APIObject) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	key := kinds.ObjectKey(pod.Namespace, pod.Spec.ServiceAccountName)
	if w.store.Get(w.kinds.Get("serviceaccounts"), key) != nil {
		return nil
	}
	return apierrors.NewForbidden(r.GroupResource(), pod.Name, errors.New("error looking up service account "+key+
		fmt.Sprintf(": serviceaccount %q not found", pod.Spec.ServiceAccountName)))
}
