package extract_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"github.com/deltaplane/deltaplane/core/store"
)

func placed(node, image int) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":"p","namespace":"a"},"spec":{"nodeName":"node-%d","containers":[{"image":"registry.example.com/app-%d"},{"image":"proxy"}]},"bad":{}}`, node, image)
}

func TestSetsThatDifferShareWhatTheyAgreeIn(t *testing.T) {
	t.Parallel()
	x := newExtractor(t, "spec.nodeName", "spec.containers[].image")
	values := func(node, image int, field string) *string {
		f, err := x.Fields(t.Context(), placed(node, image))
		if err != nil {
			t.Fatal(err)
		}
		v, ok := store.NewObject(store.ObjectConfig{Fields: f}).Field(field)
		if !ok || len(v) == 0 {
			t.Fatalf("%s = %q, %v", field, v, ok)
		}
		return unsafe.SliceData(v)
	}
	if values(1, 1, "spec.nodeName") != values(1, 2, "spec.nodeName") || values(1, 2, "spec.containers[].image") != values(3, 2, "spec.containers[].image") {
		t.Error("equal values are held twice")
	}
}

// What is remembered of a readable field must not stand in for an unreadable one.
func TestAFieldThatFailsIsNotTheEmptyOne(t *testing.T) {
	t.Parallel()
	x := newExtractor(t, "spec.nodeName", "bad")
	for range 2 {
		for text, want := range map[string]bool{`{"metadata":{"name":"p"},"bad":[]}`: true, `{"metadata":{"name":"p"}}`: false, `{"metadata":{"name":"p"},"bad":null}`: false} {
			f, err := x.Fields(t.Context(), []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if o := store.NewObject(store.ObjectConfig{Fields: f}); (o.FieldErr("bad") != nil) != want || o.FieldErr("spec.nodeName") != nil {
				t.Errorf("%s: error %v, want one: %v", text, o.FieldErr("bad"), want)
			}
		}
	}
}

func TestSetsOfTwoFieldsAreSmall(t *testing.T) { //nolint:paralleltest // others would allocate meanwhile
	const nodes, images = 300, 200
	x := newExtractor(t, "spec.nodeName", "spec.containers[].image")
	sets := make([]*store.Fields, 0, nodes*images)
	heap := func() (m runtime.MemStats) {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m
	}
	before := heap()
	for i := range nodes {
		for j := range images {
			f, err := x.Fields(t.Context(), placed(i, j))
			if err != nil {
				t.Fatal(err)
			}
			sets = append(sets, f)
		}
	}
	after := heap()
	bytes, objects := float64(after.HeapAlloc-before.HeapAlloc)/float64(len(sets)), float64(after.HeapObjects-before.HeapObjects)/float64(len(sets))
	t.Logf("%.0f bytes and %.2f heap objects per set, of %d that differ", bytes, objects, len(sets))
	if bytes > 100 || objects > 1.5 {
		t.Errorf("%.0f bytes and %.2f heap objects per set, want at most 100 and 1.5", bytes, objects)
	}
	runtime.KeepAlive(sets)
	runtime.KeepAlive(x)
}
