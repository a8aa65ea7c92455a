package indexer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	s := serving(t, nil)
	c := s.Know(delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"})
	texts := []string{"", "7", "18446744073709551615", "01", "odd", "\xff", "0000002a-0000-4000-8000-00000000002a", "0000002A-0000-4000-8000-00000000002A"}
	readable := func(text string) string { return strings.ReplaceAll(text, "\xff", "?") }
	r := rand.New(rand.NewPCG(4, 8))
	for n := range 2000 {
		rec := (&podFacts{namespace: "ns", name: "a", node: "n", pad: r.IntN(3 * copyBelow)}).record(uint64(n + 1))
		rec.UID, rec.RV = texts[r.IntN(len(texts))], texts[r.IntN(len(texts))]
		whole := bytes.Clone(rec.Payload)
		bad := r.IntN(20) == 0
		if bad {
			rec.Checksum = delta.Checksum(rec.Payload) + 1
		}
		obj := extract.New(c.Plan()).Object(t.Context(), &rec)
		for _, p := range []projection{{}, {view: indexv1.View_VIEW_FULL}, {view: indexv1.View_VIEW_KEYS}, {view: indexv1.View_VIEW_METADATA, mask: metadataMask}} {
			for _, name := range []string{"", "dev/pods.v1"} {
				m := &indexv1.Object{Key: "ns/a", Collection: name}
				if p.view != indexv1.View_VIEW_KEYS {
					m.Uid, m.ResourceVersion = readable(rec.UID), readable(rec.RV)
				}
				if p.view != indexv1.View_VIEW_KEYS && !bad {
					m.Payload, m.Encoding = whole, deltav1.Encoding_ENCODING_JSON
					if p.mask != nil {
						m.Payload = p.payload(whole)
					}
				}
				want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&indexv1.ListResponse{Objects: []*indexv1.Object{m}, NextPageToken: "behind"})
				if err != nil {
					t.Fatal(err)
				}
				if got := written(obj, &p, name); !bytes.Equal(got, want) {
					t.Fatalf("view %v, collection %q, UID %q, RV %q: %d bytes, generated code writes %d\n%q\n%q", p.view, name, rec.UID, rec.RV, len(got), len(want), got, want)
				}
			}
		}
	}
}

// Whole objects are sent from where they are stored, and count for the size of a page
// with all of it, as unary answers and on a Query stream.
func TestWholeObjectsAreNotCopiedAndFillPages(t *testing.T) {
	t.Parallel()
	const most = 20_000
	s := serving(t, func(c *Config) { c.MaxPageBytes = most })
	var pods []podFacts
	for i := range 60 {
		pods = append(pods, podFacts{namespace: "ns", name: fmt.Sprintf("p%02d", i), node: "n", pad: copyBelow + i*37})
	}
	c := s.fill(t, "dev", pods)
	var told []string
	req := &indexv1.ListRequest{Collection: c.Name}
	for pages := 1; ; pages++ {
		o, err := s.list(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		n := len(o.cuts)
		alone := bytes.Clone(o.bytes())
		o.wrap(77, queryList)
		parts := o.parts()
		if len(parts) != 2*n+1 { // what is around them
			t.Fatalf("%d objects are sent in %d pieces", n, len(parts))
		}
		whole, resp := &indexv1.QueryResponse{}, &indexv1.ListResponse{}
		if err := errors.Join(proto.Unmarshal(parts.Materialize(), whole), proto.Unmarshal(alone, resp)); err != nil {
			t.Fatal(err)
		}
		if whole.GetTag() != 77 || !proto.Equal(whole.GetList(), resp) || len(resp.GetObjects()) != n {
			t.Fatalf("page %d is %v, alone %v", pages, whole, resp)
		}
		if len(alone) > most+100 { // the revision and the token are beside
			t.Errorf("page %d of %d objects takes %d bytes, at most %d", pages, n, len(alone), most)
		}
		for i, obj := range resp.GetObjects() {
			told = append(told, obj.GetKey())
			want, err := c.Snapshot().Get(obj.GetKey()).Payload()
			if at := o.cuts[i].data; &at[0] != &want[0] {
				t.Errorf("the payload of %s is a copy", obj.GetKey())
			}
			if err != nil || !bytes.Equal(obj.GetPayload(), want) {
				t.Errorf("%s is %d bytes, %v, want %d", obj.GetKey(), len(obj.GetPayload()), err, len(want))
			}
		}
		parts.Free()
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			break
		}
	}
	if len(told) != len(pods) || !slices.IsSorted(told) {
		t.Errorf("told %q", told)
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
