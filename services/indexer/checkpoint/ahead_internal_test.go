package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// counting is a file that knows how much was read of it.
type counting struct {
	io.ReaderAt
	n atomic.Int64
}

func (c *counting) ReadAt(p []byte, at int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, at)
	c.n.Add(int64(n))
	return n, err
}

// While objects are made slowly, no more is read of what is not kept than may be.
func TestReadersDoNotRunAwayFromASlowDecoder(t *testing.T) {
	t.Parallel()
	codec := &slowCodec{}
	s := store.New(store.Options{})
	var b store.Batch
	const n, long = 60, 1 << 20
	for i := range n {
		b.Ops = append(b.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{
			Key: fmt.Sprintf("n/p%02d", i), UID: "u", RV: "1", Epoch: 1, Sequence: uint64(i + 1), Codec: codec, Size: 1, Payload: []byte("x"),
			Fault: strings.Repeat("f", long), // is no payload: it is read, and then kept by its object
		})})
	}
	s.Apply(b, time.Unix(1, 0))
	var file bytes.Buffer
	if _, err := Write(&file, Header{Collection: "dev/pods.v1"}, s.Snapshot(), nil); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		in := &counting{ReaderAt: bytes.NewReader(file.Bytes())}
		asked := false
		image, err := Read(in, int64(file.Len()), Options{Open: func([]byte) (store.Codec, error) {
			asked = true
			synctest.Wait() // until the readers have read what they may
			if n := in.n.Load(); n > mostAhead+long || n < mostAhead/2 {
				t.Errorf("%d of %d bytes are read before the first object was made, at most about %d may be", n, file.Len(), mostAhead)
			}
			return codec, nil
		}})
		if err != nil || !asked || len(image.Objects) != n {
			t.Errorf("Read: %v, asked for the codec: %v", err, asked)
		}
	})
}

type slowCodec struct{}

func (*slowCodec) Bytes() []byte { return []byte("d") }

func (*slowCodec) Decode(dst, stored []byte) ([]byte, error) { return append(dst, stored...), nil }

// Random blocks by random readers: a model counts the buffers that exist.
func TestBuffersReadAheadAreBounded(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var list []*block
		longest := 0
		for range 300 {
			b := &block{kind: kindObjects, size: 1 + rng.IntN(1<<rng.IntN(24))}
			switch rng.IntN(20) {
			case 0:
				b.size = mostAhead + rng.IntN(mostAhead)
			case 1, 2, 3, 4, 5, 6:
				b.kind = kindPayloads
			}
			if b.kind != kindPayloads {
				longest = max(longest, b.size)
			}
			list = append(list, b)
		}
		a := newAhead(list)
		next, decoded := 0, 0 // of list
		for decoded < len(list) {
			can := next < len(list) && mayTake(a, list[next])
			if decoded == next && !can {
				t.Fatalf("seed %d: the decoder waits for block %d, and nobody may read it", seed, next)
			}
			if can && (decoded == next || rng.IntN(3) > 0) {
				b := a.take()
				if b != list[next] {
					t.Fatalf("seed %d: block %d is not the next", seed, next)
				}
				if next++; b.kind != kindPayloads && cap(b.payload) < b.size {
					b.payload = make([]byte, b.size)
				}
			} else if decoded < next {
				if b := list[decoded]; b.kind != kindPayloads {
					a.give(b.payload[:b.size])
				}
				decoded++
			}
			held := 0
			for _, b := range list[decoded:next] {
				if b.kind != kindPayloads {
					held += cap(b.payload)
				}
			}
			for _, buf := range a.spare {
				held += cap(buf)
			}
			if held > max(mostAhead, longest) || held != a.took {
				t.Fatalf("seed %d: %d bytes of buffers exist, %d are counted, at most %d may", seed, held, a.took, max(mostAhead, longest))
			}
		}
		if a.take() != nil || a.inUse != 0 {
			t.Fatalf("seed %d: %d buffers are in use in the end", seed, a.inUse)
		}
	}
}

// mayTake says whether take would not wait.
func mayTake(a *ahead, b *block) bool {
	if b.kind == kindPayloads || a.inUse == 0 {
		return true
	}
	took := a.took
	for _, buf := range slices.Backward(a.spare) {
		if cap(buf) >= b.size {
			return true
		}
		took -= cap(buf)
	}
	return took+b.size <= mostAhead
}
