package devcluster

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bootstrap creates the namespaces every cluster has.
func (w *writer) bootstrap() error {
	r := w.kinds.get("namespaces")
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		r.setDefaults(ns)
		if _, err := w.create(r, ns, writeOptions{manager: "devcluster"}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// admitNamespace refuses objects in namespaces that do not exist or are going.
func (w *writer) admitNamespace(r *resource, obj apiObject) error {
	if !r.namespaced {
		return nil
	}
	name := obj.GetNamespace()
	namespaces := w.kinds.get("namespaces")
	o := w.store.get(namespaces, name)
	if o == nil {
		return apierrors.NewNotFound(namespaces.groupResource(), name)
	}
	ns, ok := o.obj.(*corev1.Namespace)
	if !ok || ns.DeletionTimestamp == nil {
		return nil
	}
	err := apierrors.NewForbidden(r.groupResource(), obj.GetName(),
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", name))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: corev1.NamespaceTerminatingCause, Message: fmt.Sprintf("namespace %s is being terminated", name), Field: "metadata.namespace",
	})
	return err
}

// created does what the cluster's own controllers do at once for a new object: a
// namespace gets its default service account, a CRD is served.
func (w *writer) created(r *resource, obj apiObject) error {
	switch r.id() {
	case crdID:
		return w.kinds.serve(obj)
	case "namespaces":
	default:
		return nil
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: obj.GetName()}}
	_, err := w.create(w.kinds.get("serviceaccounts"), sa, writeOptions{manager: "devcluster"})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// admit refuses a pod whose service account does not exist.
func (w *writer) admit(r *resource, obj apiObject) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	key := objectKey(pod.Namespace, pod.Spec.ServiceAccountName)
	if w.store.get(w.kinds.get("serviceaccounts"), key) != nil {
		return nil
	}
	return apierrors.NewForbidden(r.groupResource(), pod.Name, errors.New("error looking up service account "+key+
		fmt.Sprintf(": serviceaccount %q not found", pod.Spec.ServiceAccountName)))
}
