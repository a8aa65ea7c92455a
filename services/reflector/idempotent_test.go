package reflector_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// Upstream's transformer runs on the temporary store too, so twice on an object. There is no such
// store here: an object is transformed once each time the API server tells it, and a second telling
// of the same comes to the same bytes, of which nothing is published.
func TestAnObjectDeliveredTwiceIsTransformedToTheSame(t *testing.T) {
	t.Parallel()
	fat := func(name, rv string) string {
		return strings.Replace(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"NAME","namespace":"default","uid":"u-NAME","resourceVersion":"`+rv+`",`+
			`"managedFields":[{"manager":"m"}],"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","keep":"k"}},"spec":{"nodeName":"n1","drop":1},"status":{"images":[1,2]}}`,
			"NAME", name, 2)
	}
	a := newAPI(t)
	a.onStream = func(n int, _ url.Values, w *wire) {
		w.send(event("ADDED", fat("a", "1")), event("MODIFIED", fat("a", "1")), event("ADDED", fat("b", "2")))
		if n == 1 {
			return // before its end: all of it is told again
		}
		w.send(initialEnd(10))
		w.send(event("MODIFIED", fat("a", "1")), event("MODIFIED", fat("b", "2")), bookmark(20))
		w.hold()
	}
	cfg := streaming()
	cfg.Resources[0].Transform = kube.Transform{DropLastApplied: true, Drop: []string{"status.images", "spec.drop"}}
	m := mirrored(t, a, cfg)
	m.until(t, "the bookmark", func() bool { return m.revision().RV == "20" })
	if n := len(m.kinds(delta.KindDelta)); n != 2 {
		t.Errorf("%d deltas, want each object once", n)
	}
	for _, key := range []delta.Key{"default/a", "default/b"} {
		r, _ := m.get(key)
		text := string(r.Payload)
		for _, gone := range []string{"managedFields", "last-applied", "images", "drop"} {
			if strings.Contains(text, gone) {
				t.Errorf("%s holds %s: %s", key, gone, text)
			}
		}
		again, err := cfg.Resources[0].Transform.Normalize(r.Payload, kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true})
		if err != nil || string(again.Payload) != text || again.Hash != r.Hash || again.Key != key {
			t.Errorf("transformed twice: %s with hash %d, %v\nonce: %s with hash %d", again.Payload, again.Hash, err, text, r.Hash)
		}
	}
}
