package cluster

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

func TestASeededPodIsStoredAsTheAPIServerStoresIt(t *testing.T) {
	t.Parallel()
	encode, err := storageEncoder()
	if err != nil {
		t.Fatal(err)
	}
	key, value, err := encode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":"team","name":"a","uid":"u","resourceVersion":"7"},"spec":{"nodeName":"n"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if want := "/registry/pods/team/a"; key != want {
		t.Errorf("key = %q, want %q", key, want)
	}
	if !strings.HasPrefix(string(value), "k8s\x00") {
		t.Errorf("value begins with %q, want the prefix of protobuf in etcd", value[:4])
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	back, _, err := protobuf.NewSerializer(scheme, scheme).Decode(value, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod, ok := back.(*corev1.Pod)
	if !ok || pod.Name != "a" || pod.Spec.NodeName != "n" || pod.ResourceVersion != "" {
		t.Errorf("it decodes to %#v, want the pod without a resource version", back)
	}
}

func TestWhatCannotBeSeededIsNamed(t *testing.T) {
	t.Parallel()
	encode, err := storageEncoder()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{`:                                   "unexpected end",
		`{"kind":"Secret","apiVersion":"v1"}`: `kind "Secret"`,
		`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","uid":"u"}}`: "no namespace, name or uid",
		`{"kind":"Pod","apiVersion":"v1","spec":1}`:                          "cannot unmarshal",
	} {
		if _, _, err := encode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("encode(%s) = %v, want %q", text, err, want)
		}
	}
}

func TestSeedNeedsARunningCluster(t *testing.T) {
	t.Parallel()
	if _, err := Seed(t.Context(), t.TempDir(), strings.NewReader("")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("Seed = %v, want ErrNotRunning", err)
	}
}
