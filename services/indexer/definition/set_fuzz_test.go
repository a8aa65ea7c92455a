package definition_test

import (
	"bytes"
	"testing"

	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// FuzzDecodeSet: whatever is in the bucket, reading it does not panic, each
// definition is usable or has an error, and what is written again is read as
// the same.
func FuzzDecodeSet(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `null`, `no set`, `{"version":2}`, `{"version":1,"indexers":[null,1,"x",{}]}`,
		`{"version":1,"indexers":[{"cluster":"*","definition":{"name":"a","field":"spec.x"}},{"cluster":"dev","definition":{"name":"b","vector":"?"}}]}`,
		`{"version":1,"indexers":[{"cluster":"dev","definition":{"name":"c","cel":"object.a"}},{"cluster":"","definition":{"name":"D","ownerUid":{}}}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		before := bytes.Clone(data)
		set, err := definition.DecodeSet(data)
		if !bytes.Equal(data, before) {
			t.Fatal("the value was changed")
		}
		if err != nil {
			if set != nil {
				t.Fatalf("%v, and %d definitions", err, len(set))
			}
			return
		}
		for _, d := range set {
			if d.Err == nil && (d.Cluster == "" || definition.CheckName(d.Name) != nil || d.Source() == "nothing") {
				t.Fatalf("%+v has no error", d)
			}
		}
		written, err := set.Encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		again, err := definition.DecodeSet(written)
		if err != nil || len(again) != len(set) {
			t.Fatalf("%d definitions, read again %d, %v", len(set), len(again), err)
		}
		for i := range set {
			a, b := set[i], again[i]
			if a.Name != b.Name || a.Cluster != b.Cluster || a.Source() != b.Source() || (a.Err == nil) != (b.Err == nil) {
				t.Fatalf("%+v, read again %+v", a, b)
			}
		}
	})
}
