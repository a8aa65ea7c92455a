package clientgo

import (
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNoManagedFields: an object says nothing about who manages its fields, because the mirror that
// it comes from leaves that out. The reflector's --keep-managed-fields mirrors it.
var ErrNoManagedFields = errors.New("clientgo: the object has no managed fields")

// Extract calls one of the Extract functions of client-go's applyconfigurations, which returns what
// a field manager applied to an object before. Of an object without managed fields such a function
// returns an empty configuration, and applying that removes every field that was applied before:
// here the error wraps [ErrNoManagedFields], and names the object. A function for a subresource
// needs a closure:
//
//	Extract(func(d *appsv1.Deployment, manager string) (*v1.DeploymentApplyConfiguration, error) {
//		return v1.ExtractDeploymentFrom(d, manager, "status")
//	}, deployment, "my-controller")
func Extract[T metav1.Object, C any](extract func(obj T, fieldManager string) (C, error), obj T, fieldManager string) (C, error) {
	if len(obj.GetManagedFields()) == 0 {
		var none C
		return none, fmt.Errorf("%w: %T %s/%s; mirror them with --keep-managed-fields", ErrNoManagedFields, obj, obj.GetNamespace(), obj.GetName())
	}
	return extract(obj, fieldManager)
}
