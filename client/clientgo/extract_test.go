package clientgo_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/deltaplane/deltaplane/client/clientgo"
)

// What client-go extracts of such an object is empty, and applying that removes what was applied
// before.
func TestExtractOfAnObjectWithoutManagedFieldsIsAnError(t *testing.T) {
	t.Parallel()
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string]string{"mine": "1", "other": "2"},
	}
	got, err := clientgo.Extract(v1.ExtractConfigMap, obj, "me")
	if !errors.Is(err, clientgo.ErrNoManagedFields) || !strings.Contains(err.Error(), "ns/a") || got != nil {
		t.Errorf("Extract() = %v, %v; want an error that names the object", got, err)
	}
	obj.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "me", Operation: metav1.ManagedFieldsOperationApply, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:data":{"f:mine":{}}}`)},
	}}
	got, err = clientgo.Extract(v1.ExtractConfigMap, obj, "me")
	if err != nil || len(got.Data) != 1 || got.Data["mine"] != "1" {
		t.Errorf("Extract() = %+v, %v; want what the manager applied", got, err)
	}
	if got, err := clientgo.Extract(v1.ExtractConfigMap, obj, "other"); err != nil || len(got.Data) != 0 {
		t.Errorf("Extract() of another manager = %+v, %v; want an empty configuration", got, err)
	}
}
