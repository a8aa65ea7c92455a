package serve

import (
	"encoding/json"
	"fmt"
	"sync"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// protobufType is how kubectl and many clients send built-in kinds.
const protobufType = "application/vnd.kubernetes.protobuf"

// protobufs decodes request bodies. Answers are always JSON, which every client accepts.
var protobufs = sync.OnceValues(func() (*protobuf.Serializer, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, batchv1.AddToScheme, coordinationv1.AddToScheme, policyv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	return protobuf.NewSerializer(scheme, scheme), nil
})

// protobufToJSON rewrites a body as the JSON that the handlers read.
func protobufToJSON(data []byte) ([]byte, error) {
	if len(data) == 0 {
		return nil, nil
	}
	codec, err := protobufs()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	obj, kind, err := codec.Decode(data, nil, nil)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("protobuf body: %v", err))
	}
	obj.GetObjectKind().SetGroupVersionKind(*kind)
	out, err := json.Marshal(obj)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("protobuf body: %v", err))
	}
	return out, nil
}
