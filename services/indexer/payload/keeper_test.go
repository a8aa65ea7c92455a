package payload_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/payload"
)

var start = time.Unix(1_700_000_000, 0)

// shelf is a store with its keeper, and what it must hold.
type shelf struct {
	*payload.Keeper
	store *store.Store
	want  map[string][]byte
	seq   uint64
	epoch uint64
	now   time.Time
}

func newShelf(cfg payload.Config) *shelf {
	cfg.Samples = min(cmp.Or(cfg.Samples, 200), 200) // training is slow under the race detector
	s := store.New(store.Options{RingChanges: 8})
	return &shelf{Keeper: payload.NewKeeper(s, cfg), store: s, want: map[string][]byte{}, epoch: 1, now: start}
}

func (s *shelf) state(synced bool) *store.State {
	return &store.State{Position: delta.Position{Epoch: s.epoch, Sequence: s.seq, Term: 1}, Synced: synced}
}

func (s *shelf) fill(synced bool, objects map[string][]byte) {
	var ops []store.Op
	for key, o := range objects {
		s.seq++
		s.want[key] = o
		ops = append(ops, store.Op{Put: store.NewObject(store.ObjectConfig{Key: key, RV: fmt.Sprint(s.seq), Epoch: s.epoch, Sequence: s.seq, Payload: s.Put(o)})})
	}
	s.store.Apply(store.Batch{Ops: ops, State: s.state(synced)}, s.now)
}

// settle lets time pass until there is nothing left to do.
func (s *shelf) settle() {
	for range 40 {
		s.now = s.now.Add(time.Second)
		for s.Step(s.now) {
			s.now = s.now.Add(time.Millisecond)
		}
	}
	runtime.GC()
	s.now = s.now.Add(10 * time.Second)
	for s.Step(s.now) {
		s.now = s.now.Add(time.Millisecond)
	}
}

func (s *shelf) check(t testing.TB) {
	t.Helper()
	snap := s.store.Snapshot()
	if snap.Len() != len(s.want) {
		t.Fatalf("%d objects, want %d", snap.Len(), len(s.want))
	}
	for key, want := range s.want {
		got, err := snap.Get(key).Payload()
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s reads %.60q, %v, want %.60q", key, got, err, want)
		}
	}
}

func keyed(prefix string, list [][]byte) map[string][]byte {
	m := make(map[string][]byte, len(list))
	for i, o := range list {
		m[fmt.Sprintf("n/%s-%d", prefix, i)] = o
	}
	return m
}

func TestWhatAReplayBroughtIsCompressed(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{})
	s.fill(true, keyed("a", objects(1500, 50)))
	s.settle()
	s.check(t)
	if st := s.Stats(); st.Packed != 0 || st.Raw != s.store.Snapshot().StoredBytes() {
		t.Errorf("%+v: nobody asked for compression", st)
	}
	s.Compact(false)
	s.settle()
	s.check(t)
	snap, st := s.store.Snapshot(), s.Stats()
	if snap.StoredBytes()*6 > snap.Bytes() || st.Packed != snap.StoredBytes() || st.Raw != 0 || st.Dictionaries != 1 || s.Pending() {
		t.Errorf("%d bytes stored for %d, %+v", snap.StoredBytes(), snap.Bytes(), st)
	}
	if st.Held > 2*snap.StoredBytes()+4<<20 {
		t.Errorf("%d bytes held for %d: what was raw is still there", st.Held, snap.StoredBytes())
	}
}

func TestWhatChangedRecentlyStaysRaw(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{After: time.Minute})
	s.Compact(false)
	list := objects(1000, 20)
	s.fill(true, keyed("a", list))
	s.settle()
	s.fill(true, map[string][]byte{"n/a-5": list[6]})
	for range 50 {
		s.now = s.now.Add(time.Second)
		s.Step(s.now)
	}
	if _, codec := s.store.Snapshot().Get("n/a-5").Stored(); codec != nil {
		t.Error("an object that changed 50 s ago is compressed, after 1 min asked for")
	}
	for range 60 {
		s.now = s.now.Add(time.Second)
		for s.Step(s.now) {
			s.now = s.now.Add(time.Millisecond)
		}
	}
	if _, codec := s.store.Snapshot().Get("n/a-5").Stored(); codec == nil {
		t.Error("an object that has not changed for 110 s is raw")
	}
	s.check(t)
}

func TestADictionaryIsRecreatedWhenItFitsNoMoreAndNoneIsLost(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{})
	s.Compact(false)
	list := objects(3000, 300)
	s.fill(true, keyed("a", list[:200]))
	s.settle()
	first, _ := s.store.Snapshot().Get("n/a-1").Stored()
	pinned := s.store.Snapshot()
	s.fill(true, keyed("b", list[200:])) // 15 times as large
	s.settle()
	s.check(t)
	if st := s.Stats(); st.Trained != 2 || st.Dictionaries != 2 {
		t.Errorf("%+v, want a second dictionary beside the first", st)
	}
	if again, _ := s.store.Snapshot().Get("n/a-1").Stored(); &again[0] != &first[0] {
		t.Error("an object was compressed again although few dictionaries are in use")
	}
	s.fill(true, keyed("a", list[:200]))
	s.settle()
	s.check(t)
	if st := s.Stats(); st.Dictionaries != 1 {
		t.Errorf("%+v: nothing in the store needs the first dictionary", st)
	}
	runtime.GC()
	if got, err := pinned.Get("n/a-1").Payload(); err != nil || !bytes.Equal(got, list[1]) {
		t.Errorf("a snapshot that was kept reads %.60q, %v", got, err)
	}
}

// noise is n payloads that share nothing.
func noise(n, size int) [][]byte {
	r := rand.New(rand.NewPCG(8, 9))
	list := make([][]byte, n)
	for i := range list {
		list[i] = make([]byte, size)
		for j := range list[i] {
			list[i][j] = byte(r.Uint32())
		}
	}
	return list
}

func TestWhatDoesNotCompressIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{})
	s.Compact(true)
	list := keyed("noise", noise(600, 2000))
	list["n/empty"], list["n/small"] = nil, []byte("{}")
	s.fill(true, list)
	s.settle()
	s.check(t)
	if full, _ := s.Backlog(); full || s.Pending() {
		t.Error("there is something to wait for")
	}
	s.now = s.now.Add(time.Hour)
	if s.Step(s.now) {
		t.Error("nothing has changed, and there is something to do")
	}
}

func TestADictionaryIsTriedAgainOnceMuchIsNew(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{})
	s.Compact(true)
	s.fill(true, keyed("noise", noise(7, 100_000))) // too few for a dictionary, and more than a collection that stays as it is
	s.settle()
	list := objects(400, 10)
	for i := 0; i < len(list) && s.Stats().Trained == 0; i += 20 {
		s.fill(true, keyed(fmt.Sprint(i), list[i:i+20]))
		s.settle()
	}
	if s.Stats().Trained == 0 {
		t.Error("no dictionary was made of what came later")
	}
	s.check(t)
}

func TestAReplayIsHeldBackWhileTooMuchWaits(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{Backlog: 2 << 20})
	list := objects(4000, 50)
	for i := 0; i < len(list); i += 500 {
		s.fill(false, keyed(fmt.Sprint(i), list[i:i+500]))
	}
	if full, _ := s.Backlog(); full {
		t.Error("a raw collection holds the replay back")
	}
	s.Compact(false)
	full, progress := s.Backlog()
	if !full {
		t.Error("16 MB wait, 2 are allowed, and the replay goes on")
	}
	for i := 0; full && i < 1000; i++ {
		s.now = s.now.Add(time.Millisecond)
		s.Step(s.now)
		<-progress
		full, _ = s.Backlog()
	}
	if full {
		t.Error("the replay is held back for ever")
	}
	s.check(t)
}

func TestTheEndOfAReplayIsCompressedAtOnce(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{Backlog: 2 << 20})
	s.Compact(false)
	list := objects(2000, 50)
	s.fill(false, keyed("b", list[:1000]))
	if !s.Step(s.now) {
		t.Fatal("the replay is not compressed while it goes on")
	}
	s.fill(true, keyed("a", list[1000:])) // before the walk's place and after what it compresses
	s.now = s.now.Add(time.Minute)        // a slow walk
	for s.Step(s.now) {
		s.now = s.now.Add(time.Millisecond)
	}
	s.check(t)
	if st := s.Stats(); st.Raw != 0 {
		t.Errorf("%+v: a part of the replay waits for long", st)
	}
}

func TestALogRecreatedIsCompressedToo(t *testing.T) {
	t.Parallel()
	s := newShelf(payload.Config{})
	s.Compact(false)
	list := objects(2000, 20)
	s.fill(true, keyed("a", list))
	s.settle()
	s.epoch, s.seq, s.want = 2, 0, map[string][]byte{}
	s.store.Apply(store.Batch{Replay: true, State: s.state(false)}, s.now)
	s.Step(s.now)
	s.fill(false, keyed("b", list[:1000]))
	s.store.Apply(store.Batch{Sweep: true, State: s.state(true)}, s.now)
	s.settle()
	s.check(t)
	if snap := s.store.Snapshot(); snap.StoredBytes()*5 > snap.Bytes() {
		t.Errorf("%d bytes stored for %d", snap.StoredBytes(), snap.Bytes())
	}
}

func TestKeeperUnderRandomHistoriesReadsWhatWasPut(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 77))
		s := newShelf(payload.Config{After: 100 * time.Millisecond, Least: 16 << 10, Dictionary: 32 << 10, Samples: 60})
		s.Compact(seed%2 == 0)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // the background, on its own clock
			for now := start; ; now = now.Add(time.Second) {
				select {
				case <-stop:
					return
				default:
					s.Step(now)
				}
			}
		})
		wg.Go(func() { // a reader
			for {
				select {
				case <-stop:
					return
				default:
				}
				runtime.Gosched()
				for o := range s.store.Snapshot().All("") {
					if b, err := o.Payload(); err != nil || len(b) != o.Size() {
						t.Errorf("%s: %d bytes, %v, want %d", o.Key(), len(b), err, o.Size())
						return
					}
				}
			}
		})
		templates := 5
		for range 80 {
			batch := map[string][]byte{}
			for range r.IntN(40) {
				batch[fmt.Sprintf("n/%d", r.IntN(600))] = object(r, templates, r.IntN(1e6))
			}
			s.fill(true, batch)
			if r.IntN(50) == 0 {
				templates *= 2
			}
			for range r.IntN(5) {
				key := fmt.Sprintf("n/%d", r.IntN(600))
				s.seq++
				delete(s.want, key)
				s.store.Apply(store.Batch{Ops: []store.Op{{Delete: &store.Tombstone{
					Key: key, RV: fmt.Sprint(s.seq), Epoch: 1, Sequence: s.seq, Reason: store.Observed, At: s.now,
				}}}, State: s.state(true)}, s.now)
			}
		}
		close(stop)
		wg.Wait()
		s.check(t)
		s.now = start.Add(time.Hour * 24 * 365)
		s.settle()
		s.check(t)
	}
}
