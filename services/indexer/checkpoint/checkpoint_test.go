package checkpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/dirlock"
	"github.com/deltaplane/deltaplane/services/indexer/checkpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shift is a codec that can be written down.
type shift struct{ by []byte }

func (s *shift) Bytes() []byte { return s.by }

func (s *shift) Decode(dst, stored []byte) ([]byte, error) {
	for _, b := range stored {
		dst = append(dst, b-s.by[0])
	}
	return dst, nil
}

// plain is one that cannot.
type plain struct{}

func (plain) Decode(dst, stored []byte) ([]byte, error) {
	if string(stored) == "broken" {
		return dst, errors.New("broken")
	}
	return append(append(dst, "plain "...), stored...), nil
}

func open(b []byte) (store.Codec, error) {
	if len(b) != 1 {
		return nil, errors.New("not a shift")
	}
	return &shift{by: b}, nil
}

var header = checkpoint.Header{
	Collection: "dev/pods.v1", Created: time.Unix(100, 5), Facts: "v1 a b", Fresh: time.Unix(300, 7), Horizon: 17,
	Mark: delta.Mark{
		Position: delta.Position{Epoch: 7, Sequence: 9000, Term: 3}, Watermark: "123456789012345678901234567890",
		Claimed: delta.Revision{Epoch: 7, RV: "12345"}, FrozenTo: 9100,
	},
	Terms: []checkpoint.Term{{Term: 1, First: 1}, {Term: 3, First: 8000}},
}

// population makes a snapshot of n objects with everything an object can have, and some deletes.
func population(t testing.TB, n, pad int) *store.Snapshot {
	t.Helper()
	r := rand.New(rand.NewPCG(1, uint64(n)))
	codecs := []store.Codec{&shift{by: []byte{3}}, &shift{by: []byte{200}}, plain{}}
	var labels []*store.Labels
	var owners []*store.Owners
	var fields []*store.Fields
	for i := range 20 {
		labels = append(labels, store.NewLabels([]store.Pair{{Name: "app", Value: fmt.Sprint("a", i%7)}, {Name: "tier", Value: "x"}}), nil)
		owners = append(owners, store.NewOwners([]store.Owner{{Kind: "Job", Name: fmt.Sprint("j", i), UID: fmt.Sprint("u", i), Controller: i%2 == 0}, {Kind: "X"}}), nil)
		fields = append(fields, store.NewFields([]store.Field{
			{Name: "spec.nodeName", Values: []string{fmt.Sprint("n", i)}}, {Name: "none"}, {Name: "bad", Err: errors.New("is a map")},
		}), nil)
	}
	s := store.New(store.Options{})
	var b store.Batch
	for i := range n {
		c := store.ObjectConfig{
			Key: fmt.Sprintf("ns-%d/pod-%d", i%13, i), UID: fmt.Sprintf("%08x-0000-4000-8000-%012x", i, r.Uint32()), RV: fmt.Sprint(1000 + i),
			Epoch: 7, Sequence: uint64(i + 1), Generation: int64(i % 5),
			Labels: labels[r.IntN(len(labels))], Owners: owners[r.IntN(len(owners))], Fields: fields[r.IntN(len(fields))],
			Payload: bytes.Repeat([]byte{byte('a' + i%20)}, r.IntN(pad+1)),
		}
		switch i % 11 {
		case 0:
			c.Payload, c.Fault = nil, "cannot be read"
		case 1, 2, 3:
			c.Codec, c.Size = codecs[i%11-1], len(c.Payload)
			if i%11 == 3 {
				c.Size += len("plain ")
			}
		case 4:
			c.UID, c.RV, c.Epoch, c.Generation = "odd uid", "340282366920938463463374607431768211456", 1<<60, -4
		case 5:
			c.Key = fmt.Sprintf("cluster-scoped-%d", i)
		}
		b.Ops = append(b.Ops, store.Op{Put: store.NewObject(c)})
	}
	for i := range n / 5 {
		b.Ops = append(b.Ops, store.Op{Delete: &store.Tombstone{
			Key: fmt.Sprintf("gone/pod-%d", i), UID: "u", RV: fmt.Sprint(i), Epoch: 7, Sequence: uint64(n + i), Reason: store.Inferred, At: time.Unix(5, int64(i)),
		}})
	}
	s.Apply(b, time.Unix(6, 0))
	return s.Snapshot()
}

func encode(t testing.TB, h checkpoint.Header, snap *store.Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	counts, err := checkpoint.Write(&out, h, snap, nil)
	if err != nil || counts.Objects != snap.Len() || counts.Tombstones != snap.Tombstones() {
		t.Fatalf("Write = %+v, %v, want %d and %d", counts, err, snap.Len(), snap.Tombstones())
	}
	return out.Bytes()
}

func read(data []byte) (*checkpoint.Image, error) {
	return checkpoint.Read(bytes.NewReader(data), int64(len(data)), checkpoint.Options{Open: open})
}

// text is all there is to see of an object.
func text(t testing.TB, o *store.Object) string {
	t.Helper()
	payload, err := o.Payload()
	if err != nil {
		t.Fatal(err)
	}
	var fields strings.Builder
	for _, f := range o.Fields().List() {
		fmt.Fprintf(&fields, "%s=%q %v;", f.Name, f.Values, f.Err)
	}
	return fmt.Sprintf("%s %s %s %d %d %d %v %v %s %q %d %s", o.Key(), o.UID(), o.RV(), o.Epoch(), o.Sequence(), o.Generation(),
		o.Labels().Terms(), o.Owners().List(), fields.String(), o.Fault(), o.Size(), payload)
}

func wantSame(t testing.TB, got *checkpoint.Image, snap *store.Snapshot) {
	t.Helper()
	left := 0
	for _, b := range got.Blocks {
		left += len(b)
	}
	for _, o := range got.Objects {
		left -= o.StoredSize()
	}
	if left != 0 {
		t.Errorf("blocks hold %d bytes more than the objects", left)
	}
	i := 0
	for o := range snap.All("") {
		if i >= len(got.Objects) || text(t, got.Objects[i]) != text(t, o) {
			t.Fatalf("object %d of %d is not\n%s", i, len(got.Objects), text(t, o))
		}
		i++
	}
	if i != len(got.Objects) {
		t.Fatalf("%d objects, want %d", len(got.Objects), i)
	}
	var tombs []store.Tombstone
	for o := range snap.Dump().Tombstones {
		tombs = append(tombs, *o)
	}
	if !slices.EqualFunc(got.Tombstones, tombs, func(a *store.Tombstone, b store.Tombstone) bool {
		return a.At.Equal(b.At) && a.Key == b.Key && a.UID == b.UID && a.RV == b.RV && a.Epoch == b.Epoch && a.Sequence == b.Sequence && a.Reason == b.Reason
	}) {
		t.Fatalf("%d tombstones differ from %d", len(got.Tombstones), len(tombs))
	}
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ n, pad int }{{0, 0}, {1, 10}, {300, 100}, {3000, 2000}} {
		snap := population(t, c.n, c.pad)
		got, err := read(encode(t, header, snap))
		if err != nil {
			t.Fatalf("%d objects: %v", c.n, err)
		}
		if h := got.Header; !h.Created.Equal(header.Created) || !h.Fresh.Equal(header.Fresh) || h.Mark != header.Mark ||
			h.Collection != header.Collection || h.Facts != header.Facts || h.Horizon != header.Horizon || !slices.Equal(h.Terms, header.Terms) {
			t.Errorf("header = %+v, want %+v", h, header)
		}
		wantSame(t, got, snap)
	}
}

func TestWhatObjectsShareIsSharedAgain(t *testing.T) {
	t.Parallel()
	snap := population(t, 2000, 10)
	data := encode(t, header, snap)
	got, err := read(data)
	if err != nil {
		t.Fatal(err)
	}
	labels, codecs := map[*store.Labels]bool{}, map[store.Codec]bool{}
	for _, o := range got.Objects {
		labels[o.Labels()] = true
		_, codec := o.Stored()
		codecs[codec] = true
	}
	if len(labels) > 21 || len(codecs) != 3 { // two that can be written down, and none
		t.Errorf("%d label sets and %d codecs, want 21 and 3", len(labels), len(codecs))
	}
	if len(data) > 2000*100 {
		t.Errorf("%d bytes for 2000 objects without payloads", len(data))
	}
}

// boundaries are where blocks begin, by the lengths in the file.
func boundaries(data []byte) []int {
	var at []int
	for i := len("DPINDEX\n") + 2; i < len(data); i += 9 + int(binary.LittleEndian.Uint32(data[i+1:])) {
		at = append(at, i)
	}
	return at
}

func TestAFileCutOrChangedAnywhereIsDamaged(t *testing.T) {
	t.Parallel()
	snap := population(t, 3000, 2000)
	data := encode(t, header, snap)
	at := boundaries(data)
	if len(at) < 8 {
		t.Fatalf("%d blocks, want several", len(at))
	}
	var cuts []int
	for _, i := range at {
		cuts = append(cuts, i-1, i, i+1, i+5, i+9)
	}
	r := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		cuts = append(cuts, r.IntN(len(data)))
	}
	for _, n := range cuts {
		if n >= len(data) {
			continue
		}
		if _, err := read(data[:n]); !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("cut to %d of %d: %v, want ErrDamaged", n, len(data), err)
		}
	}
	for _, n := range cuts {
		i := min(max(n, 0), len(data)-1)
		bad := bytes.Clone(data)
		bad[i] ^= 1 << (i % 8)
		if _, err := read(bad); !errors.Is(err, checkpoint.ErrDamaged) && !errors.Is(err, checkpoint.ErrFormat) {
			t.Errorf("byte %d changed: %v, want ErrDamaged", i, err)
		}
	}
	swapped := slices.Concat(data[:at[2]], data[at[3]:at[4]], data[at[2]:at[3]], data[at[4]:])
	twice := slices.Concat(data[:at[3]], data[at[2]:])
	less := slices.Concat(data[:at[2]], data[at[5]:])
	for what, bad := range map[string][]byte{"swapped": swapped, "twice": twice, "left out": less, "longer": append(bytes.Clone(data), 0), "two files": slices.Concat(data, data)} {
		if _, err := read(bad); !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("blocks %s: %v, want ErrDamaged", what, err)
		}
	}
}

// What a disk did not keep is zeros or the same over and over: that is found before memory is taken
// for millions of blocks of nothing.
func TestAFileOfNothingIsDamagedAndTakesNoMemory(t *testing.T) { //nolint:paralleltest // counts allocations
	head := encode(t, header, population(t, 10, 10))
	head = head[:len("DPINDEX\n")+2+5+int(binary.LittleEndian.Uint32(head[len("DPINDEX\n")+3:]))+4] // up to the end of the header
	short := append(binary.LittleEndian.AppendUint32([]byte{6}, 1), 0, 0, 0, 0, 0)
	for name, rest := range map[string][]byte{
		"zeros":        make([]byte, 8<<20),
		"ones":         bytes.Repeat([]byte{1}, 8<<20),
		"short blocks": bytes.Repeat(short, 8<<20/len(short)),
	} {
		data := append(slices.Clip(head), rest...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := read(data)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("%s: %d bytes allocated for %d", name, got, len(data))
		}
	}
}

func TestOtherFormatsAndCollectionsAreNamed(t *testing.T) {
	t.Parallel()
	data := encode(t, header, population(t, 10, 10))
	for _, format := range []byte{0, checkpoint.Format - 1, checkpoint.Format + 1, 255} {
		bad := bytes.Clone(data)
		bad[len("DPINDEX\n")] = format
		if _, err := read(bad); !errors.Is(err, checkpoint.ErrFormat) {
			t.Errorf("format %d: %v, want ErrFormat", format, err)
		}
	}
	if _, err := read([]byte(strings.Repeat("something else ", 10))); !errors.Is(err, checkpoint.ErrFormat) {
		t.Errorf("something else: %v, want ErrFormat", err)
	}
	if _, err := checkpoint.Read(bytes.NewReader(data), int64(len(data)), checkpoint.Options{Collection: "prod/pods.v1", Open: open}); !errors.Is(err, checkpoint.ErrForeign) {
		t.Errorf("another collection: %v, want ErrForeign", err)
	}
	for name, o := range map[string]checkpoint.Options{
		"no dictionaries": {}, "a dictionary that cannot be used": {Open: func([]byte) (store.Codec, error) { return nil, errors.New("no") }},
	} {
		if _, err := checkpoint.Read(bytes.NewReader(data), int64(len(data)), o); !errors.Is(err, checkpoint.ErrDamaged) {
			t.Errorf("%s: %v, want ErrDamaged", name, err)
		}
	}
}

func TestAnObjectThatCannotBeHadFailsTheWrite(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{})
	s.Apply(store.Batch{Ops: []store.Op{{Put: store.NewObject(store.ObjectConfig{Key: "a/b", Payload: []byte("broken"), Codec: plain{}, Size: 6})}}}, time.Now())
	if _, err := checkpoint.Write(io.Discard, header, s.Snapshot(), nil); err == nil {
		t.Error("a file was written without one of the objects")
	}
}

func TestAFolderKeepsTheNewestWholeFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "below", "index")
	d, err := checkpoint.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := checkpoint.Open(path, nil); !errors.Is(err, dirlock.ErrTaken) {
		t.Errorf("a second process: %v, want ErrTaken", err)
	}
	o := checkpoint.Options{Open: open}
	if _, _, err := d.Load("dev/pods.v1", o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v, want ErrNotExist", err)
	}
	small, large := population(t, 100, 50), population(t, 3000, 2000)
	saved, err := d.Save(t.Context(), header, small, 0)
	if err != nil || saved.Objects != 100 || saved.Bytes == 0 {
		t.Fatalf("Save = %+v, %v", saved, err)
	}
	// A process that dies while it writes leaves the file of before, and a part that the next one
	// removes.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.Save(ctx, header, large, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a save that was stopped: %v", err)
	}
	left := filepath.Join(path, "dev%2Fpods.v1.checkpoint.partial")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = checkpoint.Open(path, nil); err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a dead process wrote is left: %v", err)
	}
	got, size, err := d.Load("dev/pods.v1", o)
	if err != nil || size != saved.Bytes {
		t.Fatalf("Load = %d bytes, %v, want %d", size, err, saved.Bytes)
	}
	wantSame(t, got, small)
	if _, err := d.Save(t.Context(), header, large, 1<<30); err != nil {
		t.Fatal(err)
	}
	if got, _, err = d.Load("dev/pods.v1", o); err != nil {
		t.Fatal(err)
	}
	wantSame(t, got, large)

	name := filepath.Join(path, "dev%2Fpods.v1.checkpoint")
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 4
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Load("dev/pods.v1", o); !errors.Is(err, checkpoint.ErrDamaged) {
		t.Errorf("a damaged file: %v, want ErrDamaged", err)
	}
	if _, err := os.Stat(name + ".damaged"); err != nil {
		t.Errorf("it is not kept aside: %v", err)
	}
	if _, _, err := d.Load("dev/pods.v1", o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("and then: %v, want ErrNotExist", err)
	}
	if n, err := d.Expire(time.Now(), time.Hour); n != 0 || err != nil {
		t.Errorf("Expire of young files = %d, %v", n, err)
	}
	if n, err := d.Expire(time.Now().Add(2*time.Hour), time.Hour); n != 1 || err != nil {
		t.Errorf("Expire of old files = %d, %v, want 1", n, err)
	}
}

func TestLongNamesHaveFilesOfTheirOwn(t *testing.T) {
	t.Parallel()
	d, err := checkpoint.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	long := strings.Repeat("x", 250)
	for _, end := range []string{"a", "b"} {
		h := header
		h.Collection = long + end
		if _, err := d.Save(t.Context(), h, population(t, 5, 5), 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, end := range []string{"a", "b"} {
		if _, _, err := d.Load(long+end, checkpoint.Options{Open: open}); err != nil {
			t.Errorf("%s: %v", end, err)
		}
	}
}

func TestASaveKeepsToItsRate(t *testing.T) {
	t.Parallel()
	d, err := checkpoint.Open(t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	snap := population(t, 1000, 2000)
	began := time.Now()
	saved, err := d.Save(t.Context(), header, snap, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	if took, least := time.Since(began), time.Duration(float64(saved.Bytes)/(4<<20)*0.8*float64(time.Second)); took < least {
		t.Errorf("%d bytes in %v, want at least %v", saved.Bytes, took, least)
	}
}
