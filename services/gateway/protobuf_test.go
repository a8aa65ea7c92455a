package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/deltaplane/deltaplane/services/gateway/answer"
)

const (
	inProtobuf = "application/vnd.kubernetes.protobuf"
	asPartial  = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asList     = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// TestMetadataAreTheSameInProtobufAsInJSON decodes them as clients of Kubernetes do.
func TestMetadataAreTheSameInProtobufAsInJSON(t *testing.T) {
	t.Parallel()
	sameMetadata(t, onDevCluster(t, nil))
}

func TestRealMetadataAreTheSameInProtobufAsInJSON(t *testing.T) {
	t.Parallel()
	sameMetadata(t, onRealServer(t, nil))
}

func sameMetadata(t *testing.T, r *rig) {
	t.Helper()
	const path = "/api/v1/namespaces/default/configmaps"
	for _, name := range []string{"meta-a", "meta-b"} {
		resp := r.ask(r.direct, http.MethodPost, path, `{"metadata":{"name":"`+name+`","labels":{"for":"metadata"}}}`, "Content-Type", "application/json")
		_ = resp.Body.Close()
	}
	r.mirrored("/api/v1/configmaps")
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codec := protobuf.NewSerializer(scheme, scheme)
	read := func(accept, path string) []byte {
		resp := r.ask(r.url, http.MethodGet, path, "", "Accept", accept)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get(answer.ServedBy) != "index" {
			t.Fatalf("%s %s: %s by %q, %v", accept, path, resp.Status, resp.Header.Get(answer.ServedBy), err)
		}
		return raw
	}
	for _, tc := range []struct {
		as, path string
		a, b     runtime.Object
	}{
		{asList, path + "?resourceVersion=0&labelSelector=for%3Dmetadata", &metav1.PartialObjectMetadataList{}, &metav1.PartialObjectMetadataList{}},
		{asPartial, path + "/meta-a?resourceVersion=0", &metav1.PartialObjectMetadata{}, &metav1.PartialObjectMetadata{}},
	} {
		if err := json.Unmarshal(read("application/json"+tc.as, tc.path), tc.a); err != nil {
			t.Fatal(err)
		}
		if _, _, err := codec.Decode(read(inProtobuf+tc.as, tc.path), nil, tc.b); err != nil {
			t.Fatal(err)
		}
		if l, ok := tc.a.(*metav1.PartialObjectMetadataList); ok { // items have no type in protobuf
			if len(l.Items) != 2 {
				t.Fatalf("the list has %d objects, want 2", len(l.Items))
			}
			for i := range l.Items {
				l.Items[i].TypeMeta = metav1.TypeMeta{}
			}
			l.ResourceVersion = tc.b.(*metav1.PartialObjectMetadataList).ResourceVersion //nolint:forcetypeassert // of the same row; the state may be a later one
		}
		tc.a.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		tc.b.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
		a, _ := json.Marshal(tc.a)
		b, _ := json.Marshal(tc.b)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s\n JSON     %s\n protobuf %s", tc.path, a, b)
		}
	}

	resp := r.ask(r.url, http.MethodGet, path+"?watch=1&resourceVersion=0&labelSelector=for%3Dmetadata&timeoutSeconds=1", "", "Accept", inProtobuf+asPartial)
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != inProtobuf+";stream=watch" {
		t.Errorf("the watch is %q", got)
	}
	raw := protobuf.NewRawSerializer(scheme, scheme)
	frames := streaming.NewDecoder(protobuf.LengthDelimitedFramer.NewFrameReader(resp.Body), raw)
	var names []string
	for {
		var e metav1.WatchEvent
		if _, _, err := frames.Decode(nil, &e); err == io.EOF { //nolint:errorlint // as streaming returns it
			break
		} else if err != nil {
			t.Fatal(err)
		}
		m := &metav1.PartialObjectMetadata{}
		if _, _, err := codec.Decode(e.Object.Raw, nil, m); err != nil {
			t.Fatal(err)
		}
		if e.Type == string(watch.Added) {
			names = append(names, m.Name)
		}
	}
	if !reflect.DeepEqual(names, []string{"meta-a", "meta-b"}) {
		t.Errorf("the watch begins with %q", names)
	}
}
