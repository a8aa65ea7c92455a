package indexer

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
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

// Frames are in checkpoints, which are read by later versions.
func TestAFrameIsWhatCheckpointsOfItsFormatHold(t *testing.T) {
	t.Parallel()
	o := newOut()
	defer o.free()
	payload := bytes.Repeat([]byte("p"), copyBelow)
	head, tail := o.around(&delta.Record{Key: "ns/a", UID: "u", RV: "7", Payload: payload})
	const wantHead, wantTail = "\x0a\x91\x08\x0a\x04ns/a\x12\x01u\x1a\x017\x22\x80\x08", "\x28\x01"
	if string(head) != wantHead || string(tail) != wantTail || len(tail) != store.FrameTail || checkpoint.Format != 4 {
		t.Errorf("%q and %q stand around a payload, want %q and %q; with other ones checkpoint.Format must be raised", head, tail, wantHead, wantTail)
	}
}

// Whole objects are one piece each, and count for the size of a page with all of
// it, as unary answers and on a Query stream.
func TestFramedObjectsAreOnePieceEachAndFillPages(t *testing.T) {
	t.Parallel()
	const most = 20_000
	s := serving(t, func(c *Config) { c.MaxPageBytes = most })
	var pods []podFacts
	for i := range 60 {
		pods = append(pods, podFacts{namespace: "ns", name: fmt.Sprintf("p%02d", i), node: "n", pad: copyBelow + i*37})
	}
	c := s.fill(t, "dev", pods)
	var told []string
	req := &indexv1.ListRequest{Collection: c.name}
	for pages := 1; ; pages++ {
		o, err := s.list(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		n := len(o.cuts)
		alone := bytes.Clone(o.bytes())
		o.wrap(77, queryList)
		parts := o.parts()
		if len(parts) != n+2 { // what is before them, and behind
			t.Fatalf("%d objects are sent in %d pieces", n, len(parts))
		}
		whole, resp := &indexv1.QueryResponse{}, &indexv1.ListResponse{}
		if err := errors.Join(proto.Unmarshal(parts.Materialize(), whole), proto.Unmarshal(alone, resp)); err != nil {
			t.Fatal(err)
		}
		parts.Free()
		if whole.GetTag() != 77 || !proto.Equal(whole.GetList(), resp) || len(resp.GetObjects()) != n {
			t.Fatalf("page %d is %v, alone %v", pages, whole, resp)
		}
		if len(alone) > most+100 { // the revision and the token are beside
			t.Errorf("page %d of %d objects takes %d bytes, at most %d", pages, n, len(alone), most)
		}
		for _, obj := range resp.GetObjects() {
			told = append(told, obj.GetKey())
			want, err := c.store.Snapshot().Get(obj.GetKey()).Payload()
			if err != nil || !bytes.Equal(obj.GetPayload(), want) {
				t.Errorf("%s is %d bytes, %v, want %d", obj.GetKey(), len(obj.GetPayload()), err, len(want))
			}
		}
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
