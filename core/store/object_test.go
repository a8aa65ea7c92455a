package store_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/deltaplane/deltaplane/core/store"
)

// upper is a codec for tests: the served bytes are the stored ones in upper case.
type upper struct{ err error }

func (u *upper) Decode(dst, stored []byte) ([]byte, error) {
	return append(dst, bytes.ToUpper(stored)...), u.err
}

// configs are objects in usual and in odd form.
var configs = map[string]store.ObjectConfig{
	"zero":          {},
	"usual":         {Key: "ns/pod-1", UID: "0f8fad5b-d9cb-469f-a165-70867728950e", RV: "123456", Epoch: 1763770000000, Sequence: 7, Generation: 3},
	"cluster":       {Key: "node-1", UID: "0f8fad5b-d9cb-469f-a165-70867728950e", RV: "1"},
	"upper uid":     {Key: "a/b", UID: "0F8FAD5B-D9CB-469F-A165-70867728950E"},
	"nil uid":       {Key: "a/b", UID: "00000000-0000-0000-0000-000000000000"},
	"dashes":        {Key: "a/b", UID: "0f8fad5b-d9cb-469f-a165-7086772895--"},
	"short uid":     {Key: "a/b", UID: "u"},
	"rv zero":       {Key: "a/b", RV: "0"},
	"rv padded":     {Key: "a/b", RV: "007"},
	"rv largest":    {Key: "a/b", RV: "18446744073709551615"},
	"rv longer":     {Key: "a/b", RV: "18446744073709551616"},
	"rv not number": {Key: "a/b", RV: "+1"},
	"wide epoch":    {Key: "a/b", Epoch: math.MaxUint64, Sequence: math.MaxUint64, Generation: math.MinInt64},
	"wide gen":      {Key: "a/b", Epoch: 1, Generation: 1 << 16},
	"gen -1":        {Key: "a/b", Epoch: 1, Generation: -1},
	"fault":         {Key: "a/b", RV: "5", Fault: "not JSON", Payload: []byte("{")},
	"long key":      {Key: strings.Repeat("n", 300) + "/" + strings.Repeat("p", 70000), RV: "5"},
	"odd keys":      {Key: "/", RV: "5"},
	"many slashes":  {Key: "a/b/c", RV: "5"},
}

func TestAnObjectGivesBackWhatItWasMadeOf(t *testing.T) {
	t.Parallel()
	for name, c := range configs {
		o := store.NewObject(c)
		got := store.ObjectConfig{
			Key: o.Key(), UID: o.UID(), RV: o.RV(), Epoch: o.Epoch(), Sequence: o.Sequence(), Generation: o.Generation(), Fault: o.Fault(),
		}
		want := c
		want.Payload = nil
		if got.Key != want.Key || got.UID != want.UID || got.RV != want.RV || got.Epoch != want.Epoch ||
			got.Sequence != want.Sequence || got.Generation != want.Generation || got.Fault != want.Fault {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
		if uid := o.AppendUID([]byte("x")); string(uid) != "x"+c.UID || o.UIDLen() != len(c.UID) {
			t.Errorf("%s: AppendUID = %q, UIDLen = %d", name, uid, o.UIDLen())
		}
		if rv := o.AppendRV([]byte("x")); string(rv) != "x"+c.RV || o.RVLen() != len(c.RV) {
			t.Errorf("%s: AppendRV = %q, RVLen = %d", name, rv, o.RVLen())
		}
		ns, rest, ok := strings.Cut(c.Key, "/")
		if !ok {
			ns, rest = "", c.Key
		}
		if o.Namespace() != ns || o.Name() != rest || store.Namespace(c.Key) != ns || o.Faulty() != (c.Fault != "") {
			t.Errorf("%s: namespace %q, name %q, faulty %v", name, o.Namespace(), o.Name(), o.Faulty())
		}
	}
}

func FuzzObjectsKeepTheirTexts(f *testing.F) {
	for _, c := range configs {
		f.Add(c.Key, c.UID, c.RV, c.Epoch, c.Generation)
	}
	f.Fuzz(func(t *testing.T, key, uid, rv string, epoch uint64, generation int64) {
		o := store.NewObject(store.ObjectConfig{Key: key, UID: uid, RV: rv, Epoch: epoch, Generation: generation})
		if o.Key() != key || o.UID() != uid || o.RV() != rv || o.Epoch() != epoch || o.Generation() != generation {
			t.Fatalf("%q %q %q %d %d became %q %q %q %d %d", key, uid, rv, epoch, generation, o.Key(), o.UID(), o.RV(), o.Epoch(), o.Generation())
		}
	})
}

func TestAPayloadIsServedSharedOrDecoded(t *testing.T) {
	t.Parallel()
	raw := []byte("HELLO")
	o := store.NewObject(store.ObjectConfig{Key: "a", RV: "1", Payload: raw})
	if p, err := o.Payload(); err != nil || &p[0] != &raw[0] || o.Size() != 5 || o.StoredSize() != 5 {
		t.Errorf("raw payload = %q, %v, size %d", p, err, o.Size())
	}
	codec := &upper{}
	small := o.WithStored([]byte("hello"), codec)
	if p, err := small.Payload(); err != nil || string(p) != "HELLO" || small.Size() != 5 {
		t.Errorf("decoded payload = %q, %v, size %d", p, err, small.Size())
	}
	if p, err := small.AppendPayload([]byte("x")); err != nil || string(p) != "xHELLO" {
		t.Errorf("appended payload = %q, %v", p, err)
	}
	if stored, c := small.Stored(); string(stored) != "hello" || c != store.Codec(codec) {
		t.Errorf("stored = %q with %v", stored, c)
	}
	if back := small.WithStored(raw, nil); back.Size() != 5 || back.RV() != "1" {
		t.Errorf("back to raw: size %d, RV %q", back.Size(), back.RV())
	}
	broken := o.WithStored([]byte("hello"), &upper{err: errors.New("no dictionary")})
	if p, err := broken.AppendPayload([]byte("x")); err == nil || string(p) != "x" {
		t.Errorf("a codec that fails gives %q, %v", p, err)
	}
	loaded := store.NewObject(store.ObjectConfig{Key: "a", Payload: []byte("hello"), Codec: codec, Size: 5, Fault: "odd"})
	if loaded.Size() != 5 || loaded.Fault() != "odd" {
		t.Errorf("size %d, fault %q", loaded.Size(), loaded.Fault())
	}
}

func TestAPayloadIsServedFromWhereItIsStored(t *testing.T) {
	t.Parallel()
	stored := []byte("head>HELLO\r\n")
	o := store.NewObject(store.ObjectConfig{Key: "a", UID: "odd uid", RV: "1", Payload: stored[5:10]})
	if p, err := o.Payload(); err != nil || &p[0] != &stored[5] || len(p) != 5 || cap(p) != 5 {
		t.Errorf("payload = %q with room for %d, %v", p, cap(p), err)
	}
	moved := o.Moved([]byte("HELLO"))
	if p, err := moved.Payload(); err != nil || string(p) != "HELLO" || &p[0] == &stored[5] || moved.UID() != "odd uid" {
		t.Errorf("elsewhere: %q, %v", p, err)
	}
	small := o.WithStored([]byte("hello world"), &upper{})
	if p, err := small.Payload(); err != nil || string(p) != "HELLO WORLD" || small.Size() != 5 {
		t.Errorf("with a codec: %q, %v, size %d", p, err, small.Size())
	}
	if back := small.WithStored([]byte("HELLO"), nil); back.Size() != 5 || back.StoredSize() != 5 {
		t.Errorf("back to raw: size %d of %d", back.Size(), back.StoredSize())
	}
}

func TestASwapReplacesTheStoredFormOfTheLatestVersionOnly(t *testing.T) {
	t.Parallel()
	h := newHistory(store.Options{Indexers: map[string]store.IndexFunc{"words": words}})
	h.put("n/a", "RED")
	before := h.s.Snapshot()
	old := before.Get("n/a")
	small := old.WithStored([]byte("r"), &upper{})
	if res := h.s.Apply(store.Batch{Ops: []store.Op{{Swap: &store.Swap{Old: old, New: small}}}}, h.now); res.Swapped != 1 {
		t.Fatalf("Apply = %+v", res)
	}
	snap := h.s.Snapshot()
	if snap.Get("n/a") != small || before.Get("n/a") != old || snap.LastChange() != before.LastChange() {
		t.Error("the swap is not seen, or is seen too far")
	}
	if snap.Bytes() != 3 || snap.StoredBytes() != 1 {
		t.Errorf("Bytes = %d, StoredBytes = %d, want 3 and 1", snap.Bytes(), snap.StoredBytes())
	}
	refiled := small.WithFields(text("blue"))
	h.s.Apply(store.Batch{Ops: []store.Op{{Swap: &store.Swap{Old: small, New: refiled}}}}, h.now)
	if got := keys(t, h.s.Snapshot(), "words", "blue"); len(got) != 1 || len(keys(t, h.s.Snapshot(), "words", "RED")) != 0 {
		t.Errorf("after a swap of fields blue has %q", got)
	}
	h.put("n/a", "green")
	if res := h.s.Apply(store.Batch{Ops: []store.Op{{Swap: &store.Swap{Old: refiled, New: old}}}}, h.now); res.Swapped != 0 {
		t.Errorf("a swap of a version that is gone = %+v", res)
	}
	h.delete("n/a")
	if res := h.s.Apply(store.Batch{Ops: []store.Op{{Swap: &store.Swap{Old: refiled, New: old}}}}, h.now); res.Swapped != 0 {
		t.Errorf("a swap of a key that is gone = %+v", res)
	}
}
