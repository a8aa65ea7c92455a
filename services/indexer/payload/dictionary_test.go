package payload_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

// object is a made-up object of one of many templates.
func object(r *rand.Rand, templates, i int) []byte {
	t := rand.New(rand.NewPCG(7, uint64(r.IntN(templates))))
	var env []string
	for range 30 {
		env = append(env, fmt.Sprintf(`{"name":"SETTING_%d","value":"%016x%016x"}`, t.IntN(40), t.Uint64(), t.Uint64()))
	}
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"pod-%d","namespace":"team-%d","uid":"%016x"},`+
		`"spec":{"containers":[{"name":"main","env":[%s],"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent"}],`+
		`"schedulerName":"default-scheduler","restartPolicy":"Always"},"status":{"phase":"Running","podIP":"10.0.%d.%d","hash":"%016x"}}`,
		i, t.IntN(20), r.Uint64(), strings.Join(env, ","), r.IntN(250), r.IntN(250), r.Uint64())
}

func objects(n, templates int) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	list := make([][]byte, n)
	for i := range list {
		list[i] = object(r, templates, i)
	}
	return list
}

func trained(t testing.TB, samples [][]byte) (*payload.Dictionary, *payload.Encoder) {
	t.Helper()
	d, err := payload.Train(3, samples, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	e, err := d.Encoder()
	if err != nil {
		t.Fatal(err)
	}
	return d, e
}

func TestADictionaryOfACollectionStoresItsObjectsInASixthOfTheirLength(t *testing.T) {
	t.Parallel()
	list := objects(1500, 60)
	d, e := trained(t, list[:700])
	if d.ID() != 3 || e.Dictionary() != d {
		t.Errorf("id %d, want 3, of the same dictionary", d.ID())
	}
	in, out := 0, 0
	for _, o := range list[700:] {
		stored, ok := e.Encode(o)
		if !ok {
			t.Fatalf("%d bytes are not worth storing in %d", len(o), len(stored))
		}
		got, err := d.Decode([]byte("head"), stored)
		if err != nil || string(got) != "head"+string(o) {
			t.Fatalf("Decode() = %q, %v, want what was encoded", got, err)
		}
		in, out = in+len(o), out+len(stored)
	}
	if in < 6*out {
		t.Errorf("%d bytes in %d, want a sixth", in, out)
	}
}

func TestADictionaryReadFromItsBytesReadsTheSame(t *testing.T) {
	t.Parallel()
	list := objects(300, 10)
	d, e := trained(t, list)
	again, err := payload.Open(bytes.Clone(d.Bytes()))
	if err != nil || again.ID() != d.ID() {
		t.Fatalf("Open() = %v, %v", again, err)
	}
	stored, _ := e.Encode(list[0])
	if got, err := again.Decode(nil, stored); err != nil || !bytes.Equal(got, list[0]) {
		t.Errorf("Decode() = %q, %v", got, err)
	}
	if _, err := payload.Open([]byte("not a dictionary")); err == nil {
		t.Error("anything is a dictionary")
	}
}

func TestStoredBytesThatChangedAreAnErrorAndNeverOtherBytes(t *testing.T) {
	t.Parallel()
	list := objects(300, 10)
	d, e := trained(t, list)
	stored, _ := e.Encode(list[5])
	stored = bytes.Clone(stored)
	check := func(what string, bad []byte) {
		got, err := d.Decode([]byte("head"), bad)
		if err == nil && string(got) == "head"+string(list[5]) {
			return // a bit that says nothing, such as one of the header's reserved
		}
		if !errors.Is(err, payload.ErrCorrupt) || string(got) != "head" {
			t.Fatalf("%s: Decode() = %d bytes, %v, want ErrCorrupt", what, len(got), err)
		}
	}
	for i := range stored {
		bad := bytes.Clone(stored)
		bad[i] ^= 1 << (i % 8)
		check(fmt.Sprintf("byte %d changed", i), bad)
		check(fmt.Sprintf("cut to %d", i), stored[:i:i])
	}
	other, err := payload.Train(4, list, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Decode(nil, stored); !errors.Is(err, payload.ErrCorrupt) {
		t.Errorf("another dictionary reads it: %v", err)
	}
	if d.Failed() == 0 || other.Failed() != 1 {
		t.Errorf("%d and %d failures counted", d.Failed(), other.Failed())
	}
}

func TestSamplesThatTeachNothing(t *testing.T) {
	t.Parallel()
	noise := noise(200, 500)
	for name, samples := range map[string][][]byte{
		"none": nil, "few": noise[:3], "noise": noise, "empty": make([][]byte, 50), "short": slicesOf("{}", 50), "equal": slicesOf(strings.Repeat("abcdefgh", 200), 50),
	} {
		d, err := payload.Train(1, samples, 64<<10)
		if err != nil {
			continue
		}
		e, err := d.Encoder()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range [][]byte{noise[0], []byte("{}"), nil, bytes.Repeat([]byte("x"), 3<<20)} {
			if stored, ok := e.Encode(s); ok {
				if got, err := d.Decode(nil, stored); err != nil || !bytes.Equal(got, s) {
					t.Errorf("%s: %d bytes come back as %d, %v", name, len(s), len(got), err)
				}
			}
		}
	}
}

func slicesOf(s string, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		list[i] = []byte(s)
	}
	return list
}

func TestManyReadersShareADictionary(t *testing.T) {
	t.Parallel()
	list := objects(400, 10)
	d, e := trained(t, list)
	stored := make([][]byte, len(list))
	for i, o := range list {
		b, _ := e.Encode(o)
		stored[i] = bytes.Clone(b)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			var buf []byte
			for i := range list {
				i = (i*7 + w) % len(list)
				got, err := d.Decode(buf[:0], stored[i])
				if err != nil || !bytes.Equal(got, list[i]) {
					t.Errorf("object %d: %v", i, err)
					return
				}
				buf = got
			}
		})
	}
	wg.Wait()
}

func FuzzDecode(f *testing.F) {
	list := objects(200, 5)
	d, e := trained(f, list)
	for _, o := range list[:5] {
		stored, _ := e.Encode(o)
		f.Add(bytes.Clone(stored))
	}
	f.Fuzz(func(t *testing.T, stored []byte) {
		got, err := d.Decode(nil, stored)
		if err != nil && (!errors.Is(err, payload.ErrCorrupt) || got != nil) {
			t.Errorf("Decode() = %d bytes, %v", len(got), err)
		}
		if len(got) > payload.MaxPayload {
			t.Errorf("%d bytes, more than was ever stored", len(got))
		}
	})
}

func FuzzEncode(f *testing.F) {
	list := objects(200, 5)
	d, e := trained(f, list)
	f.Add(list[0])
	f.Add([]byte("{}"))
	f.Add(bytes.Repeat([]byte("abc"), 1000))
	f.Fuzz(func(t *testing.T, o []byte) {
		stored, ok := e.Encode(o)
		if !ok {
			return
		}
		if got, err := d.Decode(nil, stored); err != nil || !bytes.Equal(got, o) {
			t.Errorf("%d bytes come back as %d, %v", len(o), len(got), err)
		}
	})
}

func FuzzTrain(f *testing.F) {
	f.Add([]byte(strings.Repeat("abcdefgh12345678", 40)), uint8(30))
	f.Add(objects(1, 1)[0], uint8(200))
	f.Fuzz(func(t *testing.T, text []byte, step uint8) {
		var samples [][]byte
		for i := range 40 {
			at := (i * int(step)) % (len(text) + 1)
			samples = append(samples, append(bytes.Clone(text[at:]), text[:at]...))
		}
		d, err := payload.Train(1, samples, 8<<10)
		if err != nil {
			return
		}
		e, err := d.Encoder()
		if err != nil {
			t.Fatal(err)
		}
		if stored, ok := e.Encode(text); ok {
			if got, err := d.Decode(nil, stored); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%d bytes come back as %d, %v", len(text), len(got), err)
			}
		}
	})
}

func BenchmarkDictionary(b *testing.B) {
	list := objects(3000, 60)
	d, e := trained(b, list[:1000])
	stored := make([][]byte, len(list))
	in, out := 0, 0
	for i, o := range list {
		s, _ := e.Encode(o)
		stored[i] = bytes.Clone(s)
		in, out = in+len(o), out+len(s)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			e.Encode(list[i%len(list)])
		}
		b.ReportMetric(float64(in)/float64(out), "ratio")
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		var buf []byte
		for i := 0; b.Loop(); i++ {
			buf, _ = d.Decode(buf[:0], stored[i%len(list)])
		}
	})
}
