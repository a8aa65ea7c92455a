package payload_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

func TestASlabReturnsCopiesThatNobodyCanGrowInto(t *testing.T) {
	t.Parallel()
	var s payload.Slab
	given := []byte("first")
	a := s.Put(given)
	b := s.Put([]byte("second"))
	given[0] = 'X'
	_ = append(a, "overrun"...)
	if string(a) != "first" || string(b) != "second" {
		t.Errorf("slab holds %q and %q", a, b)
	}
	if got := s.Put(nil); got != nil {
		t.Errorf("Put(nil) = %v, want nil", got)
	}
	big := bytes.Repeat([]byte("b"), 5<<20)
	if got := s.Put(big); !bytes.Equal(got, big) || cap(got) != len(got) {
		t.Error("a payload larger than a segment is not kept as it is")
	}
	runtime.KeepAlive(b)
}

// live is a set of payloads by key, each with what it must read as.
type live map[string][2][]byte

func (l live) payloads(yield func([]byte) bool) {
	for _, p := range l {
		if !yield(p[0]) {
			return
		}
	}
}

func TestMemoryFollowsTheLiveSet(t *testing.T) {
	t.Parallel()
	var s payload.Slab
	r := rand.New(rand.NewPCG(3, 4))
	held, bytesHeld := live{}, 0
	put := func(key string) {
		p := bytes.Repeat([]byte{byte(r.Uint32())}, 1+r.IntN(12<<10))
		if r.IntN(500) == 0 {
			p = bytes.Repeat(p, 100)
		}
		held[key] = [2][]byte{s.Put(p), p}
	}
	for range 8_000 { // a churn that leaves holes everywhere
		key := fmt.Sprint(r.IntN(2000))
		if r.IntN(4) == 0 {
			delete(held, key)
			continue
		}
		put(key)
	}
	maps.DeleteFunc(held, func(string, [2][]byte) bool { return r.IntN(3) > 0 })
	for range 5 {
		sparse := s.Sparse(held.payloads)
		if sparse == nil {
			break
		}
		for key, p := range held {
			if sparse(p[0]) {
				held[key] = [2][]byte{s.Put(p[0]), p[1]}
			}
		}
		runtime.GC()
	}
	for key, p := range held {
		bytesHeld += len(p[0])
		if !bytes.Equal(p[0], p[1]) {
			t.Fatalf("payload of %s changed", key)
		}
	}
	if size := s.Size(); size > 2*bytesHeld+2<<20 {
		t.Errorf("slab takes %d bytes for %d", size, bytesHeld)
	}
	clear(held)
	runtime.GC()
	if size := s.Size(); size > 1<<20 {
		t.Errorf("slab takes %d bytes for nothing", size)
	}
}

func TestAReaderKeepsWhatTheSlabHasLeftBehind(t *testing.T) {
	t.Parallel()
	var s payload.Slab
	kept := s.Put([]byte("on its way to a client"))
	for range 3000 {
		s.Put(make([]byte, 4<<10))
	}
	runtime.GC()
	runtime.GC()
	if string(kept) != "on its way to a client" {
		t.Errorf("it reads %q", kept)
	}
}

func TestASlabIsSmallForSmallCollections(t *testing.T) {
	t.Parallel()
	var s payload.Slab
	kept := s.Put(make([]byte, 300))
	if size := s.Size(); size > 16<<10 {
		t.Errorf("300 bytes take %d", size)
	}
	runtime.KeepAlive(kept)
}

func TestASlabIsForManyGoroutines(t *testing.T) {
	t.Parallel()
	var s payload.Slab
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			var mine [][]byte
			want := bytes.Repeat([]byte{byte(w)}, 700)
			for i := range 2000 {
				mine = append(mine, s.Put(want))
				if i%500 == 0 {
					s.Size()
					s.Sparse(func(yield func([]byte) bool) {
						for _, p := range mine {
							if !yield(p) {
								return
							}
						}
					})
				}
			}
			for _, p := range mine {
				if !bytes.Equal(p, want) {
					t.Errorf("goroutine %d finds other bytes", w)
					return
				}
			}
		})
	}
	wg.Wait()
}

func FuzzSlab(f *testing.F) {
	f.Add([]byte{1, 200, 3, 255, 255, 0, 9})
	f.Fuzz(func(t *testing.T, sizes []byte) {
		var s payload.Slab
		held := live{}
		for i, n := range sizes {
			key := fmt.Sprint(n % 16)
			p := bytes.Repeat([]byte{byte(i)}, int(n)*int(n)*3)
			held[key] = [2][]byte{s.Put(p), p}
			if sparse := s.Sparse(held.payloads); sparse != nil {
				for key, p := range held {
					if sparse(p[0]) {
						held[key] = [2][]byte{s.Put(p[0]), p[1]}
					}
				}
			}
		}
		for key, p := range held {
			if !bytes.Equal(p[0], p[1]) {
				t.Fatalf("payload of %s changed", key)
			}
		}
	})
}

func BenchmarkSlabPut(b *testing.B) {
	var s payload.Slab
	p := make([]byte, 5500)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		s.Put(p)
	}
}
