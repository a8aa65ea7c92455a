package reflector_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	reflectorv1 "github.com/deltaplane/deltaplane/proto/deltaplane/reflector/v1"
)

func TestABucketOfAdditionsThatSomebodyDeletesIsRecreatedWithWhatIsKnown(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.put("configmaps", "default", "a", "", "")
	nats := embeddedtest.NATS(t).URL()
	svc, _ := start(t, quick(), f.URL, nats)
	c := dial(t, svc)
	add(t, c, &reflectorv1.ReflectionSpec{Resource: "configmaps"})
	reflection(t, c, "dev/configmaps.v1", "what was added", watching)
	js := operator(t, nats)
	was, err := js.KeyValue(t.Context(), "deltaplane-reflections")
	if err != nil {
		t.Fatal(err)
	}
	before, err := was.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), "deltaplane-reflections"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the bucket with what was added", func() bool {
		kv, err := js.KeyValue(t.Context(), "deltaplane-reflections")
		if err != nil {
			return false
		}
		keys, err := kv.Keys(t.Context())
		return err == nil && len(keys) > 0
	})
	reflection(t, c, "dev/configmaps.v1", "it goes on", watching)
	if n := f.count("/api/v1/configmaps"); n != 1 {
		t.Errorf("%d lists, want the mirror not disturbed", n)
	}
	kv, err := js.KeyValue(t.Context(), "deltaplane-reflections")
	if err != nil {
		t.Fatal(err)
	}
	if now, err := kv.Status(t.Context()); err != nil || now.(*jetstream.KeyValueBucketStatus).StreamInfo().Created.Equal(before.(*jetstream.KeyValueBucketStatus).StreamInfo().Created) {
		t.Errorf("%v: the bucket is still the old one", err)
	}
	eventually(t, "additions can be changed again", func() bool {
		_, err := c.AddReflection(t.Context(), &reflectorv1.AddReflectionRequest{Spec: &reflectorv1.ReflectionSpec{Resource: "deployments"}})
		return err == nil
	})
	other, _ := start(t, quick(), f.URL, nats)
	oc := dial(t, other)
	reflection(t, oc, "dev/configmaps.v1", "a new replica knows it", standingBy)
	if _, err := c.RemoveReflection(t.Context(), &reflectorv1.RemoveReflectionRequest{Resource: "configmaps"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what is removed stays removed", func() bool {
		return !slices.ContainsFunc(names(t, oc), func(n string) bool { return strings.Contains(n, "configmaps") })
	})
}
