package indexer

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// TestAFramedObjectIsWrittenAsAnyOther writes objects as they are taken in and
// the same without a frame, in every form of an answer.
func TestAFramedObjectIsWrittenAsAnyOther(t *testing.T) {
	t.Parallel()
	s := serving(t, nil)
	c := s.know(delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"})
	texts := []string{"", "7", "18446744073709551615", "01", "odd", "\xff", "0000002a-0000-4000-8000-00000000002a", "0000002A-0000-4000-8000-00000000002A"}
	r := rand.New(rand.NewPCG(4, 8))
	framed := 0
	for n := range 2000 {
		rec := (&podFacts{namespace: "ns", name: "a", node: "n", pad: r.IntN(3 * copyBelow)}).record(uint64(n + 1))
		rec.UID, rec.RV = texts[r.IntN(len(texts))], texts[r.IntN(len(texts))]
		whole := bytes.Clone(rec.Payload)
		bad := r.IntN(20) == 0
		if bad {
			rec.Checksum = delta.Checksum(rec.Payload) + 1
		}
		in := c.take(delta.Batch{Records: []delta.Record{rec}})
		obj := c.extract.Checked(t.Context(), &in.Records[0], in.taken[0].frame, in.taken[0].fault)
		bare := obj.WithStored(whole, nil)
		want := !bad && len(whole) >= copyBelow && rec.UID != "\xff" && rec.RV != "\xff"
		if got := obj.Framed(); (got != nil) != want || bare.Framed() != nil {
			t.Fatalf("payload of %d bytes, UID %q, RV %q, damaged %v: frame of %d bytes, and %d without one", len(whole), rec.UID, rec.RV, bad, len(got), len(bare.Framed()))
		}
		if want {
			framed++
		}
		for _, p := range []projection{{}, {view: indexv1.View_VIEW_FULL}, {view: indexv1.View_VIEW_KEYS}, {view: indexv1.View_VIEW_METADATA, mask: metadataMask}} {
			for _, name := range []string{"", "dev/pods.v1"} {
				if a, b := written(obj, &p, name), written(bare, &p, name); !bytes.Equal(a, b) {
					t.Fatalf("view %v, collection %q, UID %q, RV %q: %d bytes with a frame, %d without\n%q\n%q", p.view, name, rec.UID, rec.RV, len(a), len(b), a, b)
				}
			}
		}
	}
	if framed < 500 {
		t.Errorf("%d of 2000 have a frame", framed)
	}
}

// written is an answer with one object in it, as the transport gets it.
func written(obj *store.Object, p *projection, collection string) []byte {
	o := newOut()
	o.object(obj, p, collection)
	o.string(2, "behind")
	list := o.parts()
	defer list.Free()
	return list.Materialize()
}
