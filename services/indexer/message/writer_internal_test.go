package message

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/deltaplane/deltaplane/core/delta"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// decode reads a frame the way a client does.
func decode(t *testing.T, f *Frame, into proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(f.Parts.Materialize(), into); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, what string, want, got proto.Message) {
	t.Helper()
	if !proto.Equal(want, got) { // the diff is slow on large payloads
		t.Fatalf("%s differs from proto.Marshal (-want +got): %s", what, cmp.Diff(want, got, protocmp.Transform()))
	}
}

type random struct{ *rand.Rand }

func (r random) text(n int) string { return strings.Repeat("x", r.IntN(n)) }

func (r random) number() uint64 { return r.Uint64() >> r.IntN(64) * uint64(r.IntN(4)) }

func (r random) item() (Item, *indexv1.Object) {
	sizes := []int{1, 100, copyBelow, 5000, 70_000}
	it := Item{Key: r.text(200), UID: r.text(40), RV: r.text(140)}
	if r.IntN(4) > 0 {
		it.Payload, it.encoding = bytes.Repeat([]byte("p"), 1+r.IntN(sizes[r.IntN(len(sizes))])), deltav1.Encoding_ENCODING_JSON
	}
	return it, &indexv1.Object{Key: it.Key, Uid: it.UID, ResourceVersion: it.RV, Payload: it.Payload, Encoding: it.encoding}
}

func (r random) position() (delta.Position, *deltav1.Position) {
	p := delta.Position{Epoch: r.number(), Sequence: 1 + r.number()>>1, Term: r.number()}
	return p, &deltav1.Position{Epoch: p.Epoch, Sequence: p.Sequence, Term: p.Term}
}

func (r random) revision() (delta.Revision, *deltav1.Revision) {
	v := delta.Revision{Epoch: r.number() | 1, RV: r.text(40)}
	return v, &deltav1.Revision{Epoch: v.Epoch, ResourceVersion: v.RV}
}

func TestHandWrittenMessagesAgreeWithTheGeneratedOnes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		r := random{rand.New(rand.NewPCG(seed, 3))}
		one, oneMsg := r.item()
		rev, revMsg := r.revision()
		o := New()
		o.item(1, &one)
		o.revision(2, rev)
		got := &indexv1.GetResponse{}
		decode(t, o.Frame(), got)
		same(t, "GetResponse", &indexv1.GetResponse{Object: oneMsg, Revision: revMsg}, got)

		o = New()
		want := &indexv1.ListResponse{NextPageToken: r.text(80), Revision: revMsg, Remaining: int64(r.number() >> 1)}
		for range r.IntN(40) {
			it, msg := r.item()
			o.item(1, &it)
			want.Objects = append(want.Objects, msg)
		}
		o.Text(2, want.GetNextPageToken())
		o.revision(3, rev)
		o.Uint(4, uint64(want.GetRemaining()))
		if o.Len() != proto.Size(want) {
			t.Errorf("len = %d, want %d", o.Len(), proto.Size(want))
		}
		page := &indexv1.ListResponse{}
		decode(t, o.Frame(), page)
		same(t, "ListResponse", want, page)

		var list []Event
		events := &indexv1.Events{}
		for range 1 + r.IntN(20) {
			it, msg := r.item()
			e := Event{Type: deltav1.DeltaType(r.IntN(7)), Item: it, Reason: deltav1.DeleteReason(r.IntN(4))}
			em := &indexv1.Event{Type: e.Type, Object: msg, DeleteReason: e.Reason}
			if r.IntN(2) == 0 {
				e.Position, em.Position = r.position()
			}
			if r.IntN(4) == 0 {
				e.Trace = "00-11111111111111111111111111111111-2222222222222222-01"
				em.Traceparent = e.Trace
			}
			if e.Len() != proto.Size(em) {
				t.Errorf("len = %d, want %d", e.Len(), proto.Size(em))
			}
			list, events.Events = append(list, e), append(events.Events, em)
		}
		at, atMsg := r.position()
		told, toldMsg := r.position()
		atMsg.ToldEpoch, atMsg.ToldSequence, atMsg.ToldTerm = toldMsg.GetEpoch(), toldMsg.GetSequence(), toldMsg.GetTerm()
		atMsg.Selection, atMsg.Scope = r.Uint64(), r.Uint64()
		resp := &indexv1.WatchResponse{}
		upper, upperMsg := r.revision()
		decode(t, EncodeEvents(list, false, Trailer{at, told, atMsg.GetSelection(), atMsg.GetScope(), rev, upper}).Frame, resp)
		same(t, "WatchResponse", &indexv1.WatchResponse{
			Kind: &indexv1.WatchResponse_Events{Events: events}, Position: atMsg, Revision: revMsg, Upper: upperMsg,
		}, resp)
	}
}

func TestStoredBytesAreNotCopied(t *testing.T) {
	t.Parallel()
	payload := bytes.Repeat([]byte("p"), 4*copyBelow)
	o := New()
	o.item(1, &Item{Key: "n/a", Payload: payload})
	f := o.Frame()
	found := false
	for _, part := range f.Parts {
		data := part.ReadOnlyData()
		found = found || len(data) == len(payload) && &data[0] == &payload[0]
	}
	if !found {
		t.Error("the stored payload was copied")
	}
}

// A frame is sent by many streams, each of which frees it.
func TestFramesAreOfNoPool(t *testing.T) {
	t.Parallel()
	o := makeOut(outLeast)
	o.Text(1, strings.Repeat("k", 30_000))
	for _, part := range o.Frame().Parts {
		if _, ok := part.(mem.SliceBuffer); !ok {
			t.Errorf("a piece of %d bytes is a %T, which is used again", part.Len(), part)
		}
	}
}

func TestTheLeastBufferOfAnAnswerIsGivenBackByTheTransport(t *testing.T) {
	t.Parallel()
	if n := min(outTiny, outLeast) - headRoom; mem.IsBelowBufferPoolingThreshold(n) {
		t.Errorf("nobody would be told when an answer in a buffer of %d bytes has been sent", n)
	}
}

// It is not parallel: it looks at what it gave back.
func TestAnAnswerIsGivenBackWhenItHasBeenSent(t *testing.T) { //nolint:paralleltest // as it says
	payload := bytes.Repeat([]byte("p"), copyBelow)
	order := rand.New(rand.NewPCG(7, 9))
	for n := range 40 { // up to more than the buffer holds beside the pieces
		o := makeOut(outLeast)
		want := &indexv1.ByIndexResponse{Revision: &deltav1.Revision{Epoch: 7, ResourceVersion: "100"}}
		for range n {
			it := Item{Key: strings.Repeat("k", 130), Payload: payload, encoding: deltav1.Encoding_ENCODING_JSON}
			o.item(1, &it)
			want.Objects = append(want.Objects, &indexv1.Object{Key: it.Key, Payload: payload, Encoding: it.encoding})
		}
		o.revision(3, delta.Revision{Epoch: 7, RV: "100"})
		parts := o.Parts()
		got := &indexv1.ByIndexResponse{}
		if err := proto.Unmarshal(parts.Materialize(), got); err != nil {
			t.Fatal(err)
		}
		same(t, "ByIndexResponse", want, got)
		// The sender frees the message once it is queued, the writer each piece once written.
		parts.Ref()
		parts.Free()
		left := 0
		for _, part := range parts {
			if _, stored := part.(*mem.SliceBuffer); !stored {
				left++
			}
		}
		for _, i := range order.Perm(len(parts)) {
			if n > 0 && left > 0 && o.cuts[:1][0].data == nil {
				t.Fatalf("with %d objects the answer was given back when %d pieces of its buffer were not sent", n, left)
			}
			if _, stored := parts[i].(*mem.SliceBuffer); !stored {
				left--
			}
			parts[i].Free()
		}
		if n > 0 && o.cuts[:1][0].data != nil {
			t.Fatalf("with %d objects the answer was not given back", n)
		}
	}
}
