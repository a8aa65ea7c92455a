package message

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// Objects are written as they are taken in, in every form of an answer.
func TestObjectsAreWrittenAsGeneratedCodeWritesThem(t *testing.T) {
	t.Parallel()
	x := extract.New(extract.NewPlan(nil, nil))
	texts := []string{"", "7", "18446744073709551615", "01", "odd", "\xff", "0000002a-0000-4000-8000-00000000002a", "0000002A-0000-4000-8000-00000000002A"}
	readable := func(text string) string { return strings.ReplaceAll(text, "\xff", "?") }
	r := rand.New(rand.NewPCG(4, 8))
	for n := range 2000 {
		payload := fmt.Appendf(nil, `{"metadata":{"namespace":"ns","name":"a","resourceVersion":"%d"},"spec":{"pad":%q}}`, n, strings.Repeat("x", r.IntN(3*copyBelow)))
		rec := delta.Record{
			Kind: delta.KindDelta, Type: delta.Updated, Key: "ns/a", Epoch: 1, Sequence: uint64(n + 1), Payload: payload, Encoding: delta.EncodingJSON, Hash: delta.Hash(payload),
		}
		rec.UID, rec.RV = texts[r.IntN(len(texts))], texts[r.IntN(len(texts))]
		whole := bytes.Clone(rec.Payload)
		bad := r.IntN(20) == 0
		if bad {
			rec.Checksum = delta.Checksum(rec.Payload) + 1
		}
		obj := x.Object(t.Context(), &rec)
		for _, p := range []Projection{{}, {View: indexv1.View_VIEW_FULL}, {View: indexv1.View_VIEW_KEYS}, {View: indexv1.View_VIEW_METADATA, Mask: metadataMask}} {
			for _, name := range []string{"", "dev/pods.v1"} {
				m := &indexv1.Object{Key: "ns/a", Collection: name}
				if p.View != indexv1.View_VIEW_KEYS {
					m.Uid, m.ResourceVersion = readable(rec.UID), readable(rec.RV)
				}
				if p.View != indexv1.View_VIEW_KEYS && !bad {
					m.Payload, m.Encoding = whole, deltav1.Encoding_ENCODING_JSON
					if p.Mask != nil {
						m.Payload = p.Payload(whole)
					}
				}
				want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&indexv1.ListResponse{Objects: []*indexv1.Object{m}, NextPageToken: "behind"})
				if err != nil {
					t.Fatal(err)
				}
				if got := written(obj, &p, name); !bytes.Equal(got, want) {
					t.Fatalf("view %v, collection %q, UID %q, RV %q: %d bytes, generated code writes %d\n%q\n%q", p.View, name, rec.UID, rec.RV, len(got), len(want), got, want)
				}
			}
		}
	}
}

// written is an answer with one object in it, as the transport gets it.
func written(obj *store.Object, p *Projection, collection string) []byte {
	o := New()
	o.Object(obj, p, collection)
	o.Text(2, "behind")
	list := o.Parts()
	defer list.Free()
	return list.Materialize()
}
