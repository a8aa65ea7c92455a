package reflector

import (
	"runtime"
	"testing"
	"weak"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// page is what a list's answer is read into.
type page [1 << 20]byte

// Upstream copies items out of the slice of a list, so that one object that lives on does not keep
// its page. Here an item is bytes in the page, and is copied when it is taken in: also one that
// comes late, because the log is slow.
func TestAStoredObjectDoesNotKeepItsPage(t *testing.T) {
	t.Parallel()
	res := kube.Resource{Version: "v1", Name: "pods", Kind: "Pod", Namespaced: true}
	const text = `{"metadata":{"name":"a","namespace":"default","uid":"u","resourceVersion":"7"},"spec":{"nodeName":"n1"}}`
	late := &intake{s: &source{}, full: true}
	for name, keep := range map[string]func([]byte) any{
		"taken in": func(raw []byte) any {
			o, err := (&kube.Transform{Hints: map[string]string{"node": "spec.nodeName"}, Labels: []string{"app"}}).Normalize(raw, res)
			if err != nil {
				t.Error(err)
			}
			shadow := delta.NewShadow(0)
			rec, _ := shadow.Listed(&o, 1, o.ObservedAt)
			return []any{shadow, rec}
		},
		"late": func(raw []byte) any {
			if err := late.item(raw); err != nil {
				t.Error(err)
			}
			return late
		},
	} {
		p := new(page)
		n := copy(p[1000:], text)
		kept := keep(p[1000 : 1000+n])
		held := weak.Make(p)
		p = nil
		runtime.GC()
		if held.Value() != nil {
			t.Errorf("an object that was %s keeps its page", name)
		}
		runtime.KeepAlive(kept)
	}
	if len(late.late) != 1 || string(late.late[0]) != text || late.lateBytes != len(text) {
		t.Errorf("%d items of %d bytes came late", len(late.late), late.lateBytes)
	}
}
