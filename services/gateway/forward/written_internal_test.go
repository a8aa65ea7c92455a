package forward

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
)

func TestWhatWasWrittenIsReadFromTheAnswer(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	encode := protobuf.NewSerializer(scheme, scheme)
	pod := func(change func(*metav1.ObjectMeta)) *corev1.Pod {
		p := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b", UID: "u", ResourceVersion: "42"}}
		if change != nil {
			change(&p.ObjectMeta)
		}
		return p
	}
	grace := func(seconds int64) func(*metav1.ObjectMeta) {
		return func(m *metav1.ObjectMeta) {
			now := metav1.Now()
			m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &now, &seconds
		}
	}
	for what, tc := range map[string]struct {
		object runtime.Object
		want   Written
	}{
		"an object":               {pod(nil), Written{Version: 42, UID: "u", Gone: true}},
		"one that goes in time":   {pod(grace(30)), Written{Version: 42, UID: "u"}},
		"one that goes at once":   {pod(grace(0)), Written{Version: 42, UID: "u", Gone: true}},
		"one that somebody keeps": {pod(func(m *metav1.ObjectMeta) { m.Finalizers = []string{"x/y"} }), Written{Version: 42, UID: "u"}},
		"a status": {&metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success", Details: &metav1.StatusDetails{Name: "a", UID: types.UID("u")},
		}, Written{UID: "u", Gone: true}},
		"a status of nothing": {&metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Success"}, Written{}},
	} {
		text, err := json.Marshal(tc.object)
		if err != nil {
			t.Fatal(err)
		}
		if got := readWritten("application/json", append(text, '\n')); got != tc.want {
			t.Errorf("%s in JSON: %+v, want %+v", what, got, tc.want)
		}
		var packed bytes.Buffer
		if err := encode.Encode(tc.object, &packed); err != nil {
			t.Fatal(err)
		}
		if got := readWritten("application/vnd.kubernetes.protobuf", packed.Bytes()); got != tc.want {
			t.Errorf("%s in protobuf: %+v, want %+v", what, got, tc.want)
		}
	}
	for _, kind := range []string{"", "application/yaml", "application/cbor", "text/plain; charset=utf-8"} {
		if got := readWritten(kind, []byte(`{"metadata":{"resourceVersion":"42"}}`)); got != (Written{}) {
			t.Errorf("%q: %+v", kind, got)
		}
	}
}

func FuzzReadWritten(f *testing.F) {
	f.Add(true, []byte(`{"kind":"Status","details":{"uid":"u"}}`))
	f.Add(true, []byte(`{"metadata":{"resourceVersion":"42","uid":"u","finalizers":[]}}`))
	f.Add(false, []byte("k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00"))
	f.Fuzz(func(_ *testing.T, text bool, body []byte) {
		if text {
			readWritten("application/json", body)
		} else {
			readWritten("application/vnd.kubernetes.protobuf", body)
		}
	})
}
