package store_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// model is the store as one would write it in ten lines: two maps, and every
// read a scan.
type model struct {
	live    map[string]*store.Object
	tombs   map[string]*store.Tombstone
	seen    map[string]bool
	horizon uint64
	state   store.State
}

func (m *model) clone() *model {
	return &model{live: maps.Clone(m.live), tombs: maps.Clone(m.tombs), horizon: m.horizon, state: m.state}
}

func older(epochA uint64, rvA string, seqA uint64, epochB uint64, rvB string, seqB uint64) bool {
	pad := func(rv string) string { return fmt.Sprintf("%50s", rv) }
	a := fmt.Sprintf("%020d %s %020d", epochA, pad(rvA), seqA)
	b := fmt.Sprintf("%020d %s %020d", epochB, pad(rvB), seqB)
	return a <= b
}

func (m *model) put(o *store.Object) {
	if t := m.tombs[o.Key()]; t != nil && older(o.Epoch(), o.RV(), o.Sequence(), t.Epoch, t.RV, t.Sequence) {
		return
	}
	named := m.named(o.Key())
	m.see(o.Key())
	if old := m.live[o.Key()]; old != nil && named && older(o.Epoch(), o.RV(), o.Sequence(), old.Epoch(), old.RV(), old.Sequence()) {
		return
	}
	delete(m.tombs, o.Key())
	m.live[o.Key()] = o
}

// named: before the first replay every key counts as named.
func (m *model) named(key string) bool { return m.seen == nil || m.seen[key] }

func (m *model) see(key string) {
	if m.seen != nil {
		m.seen[key] = true
	}
}

func (m *model) delete(t *store.Tombstone) {
	if k := m.tombs[t.Key]; k != nil && older(t.Epoch, t.RV, t.Sequence, k.Epoch, k.RV, k.Sequence) {
		return
	}
	if old := m.live[t.Key]; old != nil {
		if m.named(t.Key) && !older(old.Epoch(), old.RV(), old.Sequence(), t.Epoch, t.RV, t.Sequence) {
			return
		}
	}
	delete(m.live, t.Key)
	m.tombs[t.Key] = t
}

func (m *model) sweep(st store.State, now time.Time) {
	for key := range m.live {
		if !m.named(key) {
			delete(m.live, key)
			m.tombs[key] = &store.Tombstone{Key: key, RV: st.Revision.RV, Epoch: st.Position.Epoch, Sequence: st.Position.Sequence, At: now}
		}
	}
}

func (m *model) byIndex(fn store.IndexFunc, values ...string) []string {
	var out []string
	for key, o := range m.live {
		vals, err := fn(o)
		if err == nil && slices.ContainsFunc(vals, func(v string) bool { return slices.Contains(values, v) }) {
			out = append(out, key)
		}
	}
	return inOrder(out)
}

func inOrder(keys []string) []string {
	slices.SortFunc(keys, func(a, b string) int {
		return strings.Compare(strings.Replace(a, "/", "\x00", 1), strings.Replace(b, "/", "\x00", 1))
	})
	return keys
}

// compare fails the test when a snapshot and the model differ.
func (m *model) compare(t *testing.T, snap *store.Snapshot, rng *rand.Rand, vocabulary []string) {
	t.Helper()
	want := inOrder(slices.Collect(maps.Keys(m.live)))
	var got []string
	bytes := 0
	for o := range snap.All("") {
		got = append(got, o.Key())
		bytes += o.Size()
		if o != m.live[o.Key()] || snap.Get(o.Key()) != o {
			t.Fatalf("%s is not the model's object", o.Key())
		}
	}
	if !slices.Equal(got, want) || snap.Len() != len(want) || snap.Bytes() != bytes {
		t.Fatalf("keys = %q (Len %d, Bytes %d), want %q (bytes %d)", got, snap.Len(), snap.Bytes(), want, bytes)
	}
	if snap.Tombstones() != len(m.tombs) {
		t.Fatalf("%d tombstones, want %d", snap.Tombstones(), len(m.tombs))
	}
	stored, faulty := 0, []string{}
	for _, key := range want {
		o := m.live[key]
		if stored += o.StoredSize(); o.Faulty() {
			faulty = append(faulty, key)
		}
	}
	if got := snap.Faulty().Keys(); !slices.Equal(got, faulty) {
		t.Fatalf("faulty keys = %q, want %q", got, faulty)
	}
	if snap.StoredBytes() != stored || snap.Faults() != len(faulty) || snap.State() != m.state {
		t.Fatalf("StoredBytes %d, Faults %d, State %+v; want %d, %d, %+v", snap.StoredBytes(), snap.Faults(), snap.State(), stored, len(faulty), m.state)
	}
	for _, info := range snap.Indexers() {
		m.compareIndex(t, snap, info, rng, vocabulary)
	}
	m.compareSince(t, snap, uint64(rng.IntN(int(m.state.Position.Sequence)+2)))
}

var indexFuncs = map[string]store.IndexFunc{"words": words, "lengths": lengths, "names": names}

func names(o *store.Object) ([]string, error) {
	return []string{o.Name(), o.Namespace(), o.Name()}, nil
}

func (m *model) compareIndex(t *testing.T, snap *store.Snapshot, info store.IndexInfo, rng *rand.Rand, vocabulary []string) {
	t.Helper()
	fn := indexFuncs[info.Name]
	if info.State == store.Building {
		_, err := snap.ByIndex(info.Name, "red")
		if b, ok := errors.AsType[*store.BuildingError](err); !ok || b.Filed > b.Total || b.Total != len(m.live) {
			t.Fatalf("a building index gives %v", err)
		}
		return
	}
	if info.CompleteFrom.Compare(m.state.Revision) > 0 {
		t.Fatalf("%s is complete from %v at %v", info.Name, info.CompleteFrom, m.state.Revision)
	}
	shown := map[string]int{}
	entries, failed, first := 0, 0, ""
	for _, key := range inOrder(slices.Collect(maps.Keys(m.live))) {
		list, err := safely(fn, m.live[key])
		if err != nil {
			if failed++; first == "" {
				first = key
			}
		}
		slices.Sort(list)
		for _, v := range slices.Compact(list) {
			shown[v]++
			entries++
		}
	}
	if info.Entries != entries || info.Values != len(shown) || info.Failed != failed {
		t.Fatalf("%s: %+v, want %d entries, %d values, %d failed", info.Name, info, entries, len(shown), failed)
	}
	if f, ok := errors.AsType[*store.FailedError](info.Err); ok != (failed > 0) || ok && (f.Key != first || f.Keys != failed) {
		t.Fatalf("%s fails with %v, want first %q of %d", info.Name, info.Err, first, failed)
	}
	for v := range shown {
		if hits, _ := snap.ByIndex(info.Name, v); !slices.Equal(hits.Keys(), m.byIndex(fn, v)) {
			t.Fatalf("ByIndex(%s, %s) = %q, want %q", info.Name, v, hits.Keys(), m.byIndex(fn, v))
		}
	}
	some := []string{vocabulary[rng.IntN(len(vocabulary))], vocabulary[rng.IntN(len(vocabulary))], vocabulary[rng.IntN(len(vocabulary))], "1", "k3"}
	hits, _ := snap.ByIndex(info.Name, some...)
	want := m.byIndex(fn, some...)
	if !slices.Equal(hits.Keys(), want) {
		t.Fatalf("ByIndex(%s, %q) = %q, want %q", info.Name, some, hits.Keys(), want)
	}
	if len(want) > 0 {
		i := rng.IntN(len(want))
		if got := slices.Collect(hits.KeysAfter(want[i])); !slices.Equal(got, want[i+1:]) {
			t.Fatalf("KeysAfter(%s) = %q, want %q", want[i], got, want[i+1:])
		}
	}
	seq, _ := snap.IndexValues(info.Name, "", "")
	if got := maps.Collect(seq); !maps.Equal(got, shown) {
		t.Fatalf("IndexValues(%s) = %v, want %v", info.Name, got, shown)
	}
}

func safely(fn store.IndexFunc, o *store.Object) (list []string, err error) {
	defer func() {
		if r := recover(); r != nil {
			list, err = nil, errors.New("panic")
		}
	}()
	list, err = fn(o)
	return slices.Clone(list), err
}

func (m *model) compareSince(t *testing.T, snap *store.Snapshot, sequence uint64) {
	t.Helper()
	objects, tombs, ok := snap.Since(sequence)
	if ok != (sequence >= m.horizon) {
		t.Fatalf("Since(%d) = %v with horizon %d", sequence, ok, m.horizon)
	}
	if !ok {
		return
	}
	var got, want []string
	for _, o := range objects {
		got = append(got, fmt.Sprint(o.Sequence(), o.Key()))
	}
	for _, x := range tombs {
		got = append(got, fmt.Sprint(x.Sequence, x.Key))
	}
	for _, o := range m.live {
		if o.Sequence() > sequence {
			want = append(want, fmt.Sprint(o.Sequence(), o.Key()))
		}
	}
	for _, x := range m.tombs {
		if x.Sequence > sequence {
			want = append(want, fmt.Sprint(x.Sequence, x.Key))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("Since(%d) = %q, want %q", sequence, got, want)
	}
}

func (m *model) digest() (d delta.Digest) {
	for key, o := range m.live {
		d += delta.DigestOf(key, o.RV())
	}
	return d
}

// step makes one batch from a source of random bytes and applies it to both.
type stepper struct {
	s     *store.Store
	m     *model
	epoch uint64
	rv    int
	seq   uint64
	now   time.Time
	vocab []string
}

func newStepper() *stepper {
	return &stepper{
		s: store.New(store.Options{Indexers: map[string]store.IndexFunc{"words": words}, TombstoneTTL: 100 * 365 * 24 * time.Hour}),
		m: &model{live: map[string]*store.Object{}, tombs: map[string]*store.Tombstone{}}, epoch: 1, now: epoch0,
		vocab: []string{"red", "green", "blue", "tall", "bad"},
	}
}

func (st *stepper) step(next func(int) int) {
	var b store.Batch
	if next(40) == 0 {
		b.Replay = true
		st.m.seen = map[string]bool{}
		st.m.tombs = map[string]*store.Tombstone{}
		st.m.horizon = math.MaxUint64 // until it is set
		if next(2) == 0 {
			st.epoch++
			if next(2) == 0 { // the log was deleted, and is recreated
				st.seq = 0
			}
		}
	}
	for range next(12) {
		if next(6) == 0 {
			if swap := st.swap(next); swap != nil {
				b.Ops = append(b.Ops, store.Op{Swap: swap})
			}
			continue
		}
		st.seq++
		key := fmt.Sprintf("n%d/k%d", next(3), next(30))
		if next(10) == 0 {
			key = fmt.Sprint("c", next(5))
		}
		rv := st.rv + next(4) - next(4)*next(2)
		st.rv = max(st.rv, rv)
		epoch := st.epoch - uint64(min(int(st.epoch), next(8)/7))
		if next(4) == 0 {
			tomb := &store.Tombstone{Key: key, RV: fmt.Sprint(max(rv, 0)), Epoch: epoch, Sequence: st.seq, At: st.now}
			b.Ops = append(b.Ops, store.Op{Delete: tomb})
			st.m.delete(tomb)
			continue
		}
		var list []string
		for range next(4) {
			list = append(list, st.vocab[next(len(st.vocab))])
		}
		c := store.ObjectConfig{
			Key: key, UID: fmt.Sprint(next(3)), RV: fmt.Sprint(max(rv, 0)), Epoch: epoch, Sequence: st.seq,
			Payload: []byte(strings.Join(list, " ")), Fields: text(strings.Join(list, " ")),
		}
		if next(20) == 0 {
			c.Fault = "broken"
		}
		o := store.NewObject(c)
		b.Ops = append(b.Ops, store.Op{Put: o})
		st.m.put(o)
	}
	state := store.State{
		Revision: delta.Revision{Epoch: st.epoch, RV: fmt.Sprint(st.rv)}, Position: delta.Position{Epoch: st.epoch, Sequence: st.seq}, Synced: true,
	}
	b.State, st.m.state = &state, state
	if next(30) == 0 {
		b.Horizon = st.seq / 2
		if st.m.horizon == math.MaxUint64 && b.Horizon > 0 {
			st.m.horizon = b.Horizon
		} else {
			st.m.horizon = max(st.m.horizon, b.Horizon)
		}
	}
	if next(30) == 0 {
		b.Sweep = true
		st.m.sweep(state, st.now)
	}
	proof, unproven := st.m.digest(), state
	unproven.Frozen = true
	b.Proof, b.Unproven = &proof, unproven
	wrong := next(10) == 0
	if wrong {
		proof++
		st.m.state = unproven
	}
	if got := st.s.Apply(b, st.now).Unproven; got != wrong {
		panic(fmt.Sprintf("unproven: %v, want %v", got, wrong))
	}
}

// swap stores a live object otherwise, or with other fields. The one it names
// may have been replaced by then.
func (st *stepper) swap(next func(int) int) *store.Swap {
	live := inOrder(slices.Collect(maps.Keys(st.m.live)))
	if len(live) == 0 {
		return nil
	}
	old := st.m.live[live[next(len(live))]]
	now := old.WithStored([]byte("x"), &upper{})
	if next(2) == 0 {
		now = old.WithFields(text(st.vocab[next(len(st.vocab))]))
	}
	if next(5) == 0 {
		return &store.Swap{Old: now, New: old} // which the store does not hold
	}
	st.m.live[old.Key()] = now
	return &store.Swap{Old: old, New: now}
}

// declare adds or removes an index, or goes on building.
func (st *stepper) declare(t *testing.T, next func(int) int) {
	t.Helper()
	name := []string{"lengths", "names"}[next(2)]
	switch next(6) {
	case 0:
		err := st.s.AddIndexers(map[string]store.IndexFunc{name: indexFuncs[name]})
		if _, taken := errors.AsType[*store.ConflictError](err); err != nil && !taken {
			t.Fatal(err)
		}
	case 1:
		if next(3) == 0 {
			err := st.s.RemoveIndexers(name)
			if _, none := errors.AsType[*store.UnknownIndexError](err); err != nil && !none {
				t.Fatal(err)
			}
		}
	default:
		st.s.Step(1 + next(10))
	}
}

func TestRandomHistoriesAgreeWithANaiveModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			st := newStepper()
			type pin struct {
				snap *store.Snapshot
				m    *model
			}
			var pins []pin
			for i := range 200 {
				st.step(rng.IntN)
				st.declare(t, rng.IntN)
				if i%5 == 0 {
					st.m.compare(t, st.s.Snapshot(), rng, st.vocab)
					pins = append(pins, pin{st.s.Snapshot(), st.m.clone()})
				}
			}
			if err := st.s.Build(t.Context()); err != nil {
				t.Fatal(err)
			}
			st.m.compare(t, st.s.Snapshot(), rng, st.vocab)
			for _, p := range pins { // what was pinned has not changed since
				p.m.compare(t, p.snap, rng, st.vocab)
			}
			again := store.New(store.Options{Indexers: indexFuncs, TombstoneTTL: 100 * 365 * 24 * time.Hour})
			if err := again.Load(st.s.Snapshot().Dump(), st.now); err != nil {
				t.Fatal(err)
			}
			st.m.compare(t, again.Snapshot(), rng, st.vocab)
		})
	}
}

func FuzzApplyAgreesWithANaiveModel(f *testing.F) {
	f.Add([]byte("a few bytes are one history of a few batches"))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 250, 251, 252, 253, 254, 255, 0, 0, 0, 0, 9, 9, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		st := newStepper()
		next := func(n int) int {
			if len(data) == 0 {
				return 0
			}
			x := int(data[0])
			data = data[1:]
			return x % n
		}
		for range 50 {
			st.step(next)
			st.declare(t, next)
			if len(data) == 0 {
				break
			}
		}
		st.m.compare(t, st.s.Snapshot(), rand.New(rand.NewPCG(1, 1)), st.vocab)
	})
}

func TestReadersSeeWholeBatchesAndWatchersRebuildTheStoreFromChanges(t *testing.T) {
	t.Parallel()
	s := store.New(store.Options{Indexers: map[string]store.IndexFunc{"words": words}, RingChanges: 1 << 14})
	s.Apply(store.Batch{State: &store.State{Synced: true}}, epoch0)
	const rounds, width = 400, 16
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() { // every key of a batch carries the batch's number
			for {
				select {
				case <-stop:
					return
				default:
				}
				snap := s.Snapshot()
				seen := ""
				for o := range snap.All("") {
					if seen != "" && o.RV() != seen {
						t.Errorf("one snapshot holds batches %s and %s", seen, o.RV())
						return
					}
					seen = o.RV()
				}
				hits, err := snap.ByIndex("words", "v"+seen)
				if err != nil || hits.Len() != snap.Len() {
					t.Errorf("index has %d of %d keys of batch %s: %v", hits.Len(), snap.Len(), seen, err)
					return
				}
			}
		})
	}
	replica := map[string]*store.Object{}
	wg.Go(func() {
		var n uint64
		for {
			snap := s.Snapshot()
			for n < snap.LastChange() {
				n++
				c, err := s.Change(n)
				if err != nil {
					t.Error(err)
					return
				}
				if c.Old != replica[c.Key] {
					t.Errorf("change %d of %s does not follow the one before", n, c.Key)
				}
				replica[c.Key] = c.New
			}
			if snap.State().Position.Sequence == rounds {
				return
			}
			<-snap.Superseded()
		}
	})
	for r := 1; r <= rounds; r++ {
		b := store.Batch{State: &store.State{Position: delta.Position{Sequence: uint64(r)}, Synced: true}}
		for k := range width {
			b.Ops = append(b.Ops, store.Op{Put: store.NewObject(store.ObjectConfig{
				Key: fmt.Sprint("n/", k), UID: "u", Epoch: 1, RV: fmt.Sprint(r), Sequence: uint64(r*width + k), Fields: text(fmt.Sprintf("v%d", r)),
			})})
		}
		s.Apply(b, epoch0)
	}
	close(stop)
	wg.Wait()
	for o := range s.Snapshot().All("") {
		if replica[o.Key()] != o {
			t.Errorf("the watcher's %s is not the store's", o.Key())
		}
	}
}
