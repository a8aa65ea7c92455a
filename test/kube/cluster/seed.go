package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// seeded are the kinds that Seed writes, and the folder of etcd that holds each.
var seeded = map[schema.GroupVersionKind]string{
	corev1.SchemeGroupVersion.WithKind("Pod"):        "/registry/pods/",
	appsv1.SchemeGroupVersion.WithKind("ReplicaSet"): "/registry/replicasets/",
}

// seedBatch is the most operations etcd takes in one transaction by default.
const seedBatch = 128

// maxObject bounds a line of Seed's input, as etcd bounds a value.
const maxObject = 1536 << 10

// Seed writes objects straight into the etcd of the running cluster in dir, some twenty times
// faster than the API server creates them, and returns how many it wrote. It reads one JSON object
// a line, a v1 Pod or an apps/v1 ReplicaSet, and stores it as the API server would; nothing is
// defaulted, validated or admitted. Objects need a namespace, a name and a uid; owners must come
// before what they own, or the garbage collector deletes it, and pods must name a node that does
// not exist, or KWOK runs them.
func Seed(ctx context.Context, dir string, objects io.Reader) (int, error) {
	etcd, err := etcdOf(ctx, dir)
	if err != nil {
		return 0, err
	}
	defer etcd.Close()
	encode, err := storageEncoder()
	if err != nil {
		return 0, err
	}
	written, batch := 0, make([]clientv3.Op, 0, seedBatch)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		if _, err := etcd.Txn(ctx).Then(batch...).Commit(); err != nil {
			return fmt.Errorf("cluster: write to etcd: %w", err)
		}
		written, batch = written+len(batch), batch[:0]
		return nil
	}
	lines := bufio.NewScanner(objects)
	lines.Buffer(nil, maxObject)
	for n := 1; lines.Scan(); n++ {
		key, value, err := encode(lines.Bytes())
		if err != nil {
			return written, fmt.Errorf("cluster: object %d: %w", n, err)
		}
		if batch = append(batch, clientv3.OpPut(key, string(value))); len(batch) == seedBatch {
			if err := flush(); err != nil {
				return written, err
			}
		}
	}
	return written, errors.Join(lines.Err(), flush())
}

// storageEncoder returns the function that turns an object's JSON into its key and value in etcd.
func storageEncoder() (func(text []byte) (key string, value []byte, err error), error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	storage := protobuf.NewSerializer(scheme, scheme)
	return func(text []byte) (string, []byte, error) {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(text, &kind); err != nil {
			return "", nil, err
		}
		prefix := seeded[kind.GroupVersionKind()]
		if prefix == "" {
			return "", nil, fmt.Errorf("kind %q of %q cannot be seeded, want a v1 Pod or an apps/v1 ReplicaSet", kind.Kind, kind.APIVersion)
		}
		object, err := scheme.New(kind.GroupVersionKind())
		if err != nil {
			return "", nil, err
		}
		if err := json.Unmarshal(text, object); err != nil {
			return "", nil, err
		}
		meta, ok := object.(metav1.Object)
		if !ok || meta.GetNamespace() == "" || meta.GetName() == "" || meta.GetUID() == "" {
			return "", nil, fmt.Errorf("%s has no namespace, name or uid", kind.Kind)
		}
		meta.SetResourceVersion("") // etcd gives it
		var value bytes.Buffer
		if err := storage.Encode(object, &value); err != nil {
			return "", nil, err
		}
		return prefix + meta.GetNamespace() + "/" + meta.GetName(), value.Bytes(), nil
	}, nil
}
