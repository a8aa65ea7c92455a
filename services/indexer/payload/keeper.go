package payload

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/deltaplane/deltaplane/core/store"
)

// Config bounds a Keeper; zero fields mean the defaults.
type Config struct {
	// After is how long an object must not have changed to be compressed;
	// default 10 s. What a replay of the log brings is compressed at once.
	After time.Duration
	// Backlog is how many bytes may wait to be compressed during a replay before
	// Backlog tells the reader of the log to wait; default 64 MiB.
	Backlog int
	// Least is the size of a collection below which it stays as it is; default
	// 256 KiB.
	Least int
	// Samples and Dictionary are how many objects a dictionary is made of and how
	// large it may be; defaults 1500 and 256 KiB.
	Samples, Dictionary int
}

func (c Config) withDefaults() Config {
	c.After = cmp.Or(c.After, 10*time.Second)
	c.Backlog = cmp.Or(c.Backlog, 64<<20)
	c.Least = cmp.Or(c.Least, 256<<10)
	c.Samples = cmp.Or(c.Samples, 1500)
	c.Dictionary = cmp.Or(c.Dictionary, 256<<10)
	return c
}

// Keeper keeps the payloads of one store. Put is for the goroutine that fills
// the store, Step for one in the background; everything is safe for concurrent
// use.
//
//	Put ──> raw ──(unchanged for a while)──> compact
//	         └───────(segment is sparse)──────┴──> put again
type Keeper struct {
	store *store.Store
	cfg   Config

	raw, packed Slab
	gone        Slab // apart: what the ring of changes drops soon keeps no segment of what lives
	compact     atomic.Bool
	eager       atomic.Bool
	idle        atomic.Bool  // nothing that waits can be compressed
	put, done   atomic.Int64 // payload bytes that came, and those looked at by a walk
	progress    chan struct{}
	dictionary  atomic.Pointer[Dictionary]
	in, out     atomic.Int64 // bytes compressed, and into how many
	trainings   atomic.Int64
	failed      atomic.Int64 // decode errors of all dictionaries
	versions    atomic.Int32 // dictionaries in use, as of the last walk
	small       atomic.Int64 // bytes stored compressed, as of the last walk
	held        atomic.Int64 // bytes of the segments, as of the last step

	mu        sync.Mutex // guards the rest, which is Step's
	encoder   *Encoder
	lastID    uint32
	made      training
	tries     int   // to make a first dictionary that failed, one after the other
	again     int64 // bytes that are to have come before it is tried again
	marks     []mark
	synced    bool
	epoch     uint64
	settledTo uint64 // what is raw up to this sequence stays so
	replay    uint64 // the last sequence that a replay has brought
	walk      *walk
	nextAt    time.Time // of a walk for objects that changed
	sweepAt   time.Time // of a look for sparse segments
}

// mark says which records were applied at a time.
type mark struct {
	at       time.Time
	sequence uint64
}

// NewKeeper returns a keeper of the payloads of s.
func NewKeeper(s *store.Store, cfg Config) *Keeper {
	return &Keeper{store: s, cfg: cfg.withDefaults(), progress: make(chan struct{}, 1)}
}

// Put copies a payload that is about to be put into the store.
func (k *Keeper) Put(payload []byte) []byte {
	k.put.Add(int64(len(payload)))
	return k.raw.Put(payload)
}

// PutGone copies a payload that only the store's ring of changes is to hold, of an
// object as it was deleted. It counts in Held and is left as it is.
func (k *Keeper) PutGone(payload []byte) []byte { return k.gone.Put(payload) }

// Compact says that objects are to be compressed; eager, that those that have
// changed recently are too when it makes a difference. It is not undone.
func (k *Keeper) Compact(eager bool) {
	k.compact.Store(true)
	if eager {
		k.eager.Store(true)
		k.idle.Store(false) // what was too little for a dictionary may have become enough
	}
}

// Compacting reports whether Compact was called.
func (k *Keeper) Compacting() bool { return k.compact.Load() }

// Adopt makes a dictionary known whose objects are being put into the store,
// for instance from a file.
func (k *Keeper) Adopt(d *Dictionary) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.count.Store(&k.failed)
	if d.id > k.lastID {
		k.lastID, k.encoder = d.id, nil
		k.dictionary.Store(d)
	}
}

// AdoptBlocks makes buffers known whose payloads are being put into the store as
// they are: they are counted, and what little is left of one is put elsewhere.
func (k *Keeper) AdoptBlocks(blocks [][]byte) {
	for _, b := range blocks {
		k.raw.Adopt(b)
	}
	k.Measure()
}

// Backlog reports whether so much waits to be compressed that the reader of a
// replay should wait for it, and a channel that tells when there is less.
func (k *Keeper) Backlog() (bool, <-chan struct{}) {
	return k.compact.Load() && !k.idle.Load() && k.put.Load()-k.done.Load() > int64(k.cfg.Backlog), k.progress
}

// Measure makes Held say what the segments take as of the last garbage
// collection.
func (k *Keeper) Measure() { k.held.Store(int64(k.raw.Size() + k.packed.Size() + k.gone.Size())) }

// Behind reports whether much waits to be compressed, as after a replay.
func (k *Keeper) Behind() bool {
	return k.compact.Load() && !k.idle.Load() && k.put.Load()-k.done.Load() > int64(k.cfg.Backlog/4)
}

// Pending reports whether there is something that Step may yet make smaller.
func (k *Keeper) Pending() bool {
	return k.compact.Load() && !k.idle.Load() && k.put.Load()-k.done.Load() > int64(k.cfg.Least)
}

// Stats describes what a keeper keeps.
type Stats struct {
	// Raw and Packed are the bytes stored in each form, as of the last walk over
	// the store; Held are those of the segments behind them, holes included.
	Raw, Packed, Held int
	// Dictionaries in use, and made so far.
	Dictionaries, Trained int
	// In and Out are the bytes compressed so far and what became of them.
	In, Out int
	// Failed counts payloads that could not be decoded.
	Failed int
}

// Stats returns the present figures.
func (k *Keeper) Stats() Stats {
	small := int(k.small.Load())
	return Stats{
		Raw: max(0, k.store.Snapshot().StoredBytes()-small), Packed: small, Held: k.Held(), Dictionaries: int(k.versions.Load()), Trained: int(k.trainings.Load()),
		In: int(k.in.Load()), Out: int(k.out.Load()), Failed: int(k.failed.Load()),
	}
}

// Held is how many bytes the segments take, as of the last step and the garbage
// collection before it.
func (k *Keeper) Held() int { return int(k.held.Load()) }

const (
	// A step looks at so many objects and works on so few, some milliseconds in
	// all, before others may run.
	stepLooks, stepWorks = 4096, 64
	// Walks follow one another no faster than this, nor take more than a share of
	// the time.
	walkEvery, walkShare = 2 * time.Second, 20
	// Segments are looked at this often, when what is not in use comes to so many
	// bytes and half of what is.
	sweepEvery = 5 * time.Second
	sweepLeast = 2 << 20
	// mostVersions is how many dictionaries may be in use before what the old
	// ones hold is written with the newest.
	mostVersions = 4
)

// walk is one pass over the store, in the order of keys.
type walk struct {
	began    time.Time
	after    string
	compress bool
	cool     uint64 // objects up to this sequence are compressed
	put      int64  // bytes that had come when it began
	worked   int64  // bytes looked at since
	sparse   [2]func([]byte) bool
	recode   bool
	encoder  *Encoder
	from     map[*Dictionary]int
	small    int
	in, out  int
}

// Step does a little of what is due and reports whether there is more to do.
func (k *Keeper) Step(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	snap := k.store.Snapshot()
	k.note(snap.State(), now)
	if k.walk == nil && !k.begin(snap, now) {
		return false
	}
	k.advance(snap, now)
	select {
	case k.progress <- struct{}{}:
	default:
	}
	return true
}

// note remembers which records were there at which time.
func (k *Keeper) note(st store.State, now time.Time) {
	at := st.Position
	if at.Epoch != k.epoch || len(k.marks) > 0 && at.Sequence < k.marks[len(k.marks)-1].sequence {
		k.epoch, k.settledTo, k.marks, k.walk = at.Epoch, 0, nil, nil
	}
	replayed := st.Synced && !k.synced
	k.synced = st.Synced
	switch n := len(k.marks); {
	case !st.Synced || replayed || n == 0:
		k.replay = at.Sequence
		k.marks = append(k.marks[:0], mark{time.Time{}, at.Sequence}) // a replay brings what is old
	case now.Sub(k.marks[n-1].at) >= k.cfg.After/8:
		k.marks = append(k.marks, mark{now, at.Sequence})
	}
	for len(k.marks) > 1 && now.Sub(k.marks[1].at) >= k.cfg.After {
		k.marks = k.marks[1:]
	}
}

// begin starts a walk if one is due.
func (k *Keeper) begin(snap *store.Snapshot, now time.Time) bool {
	w := &walk{began: now, cool: k.marks[0].sequence, put: k.put.Load(), from: map[*Dictionary]int{}}
	if k.eager.Load() && k.put.Load()-k.done.Load() > int64(k.cfg.Least) {
		w.cool = snap.State().Position.Sequence
	}
	if k.compact.Load() && w.cool > k.settledTo && k.worth(snap, now) {
		w.compress = k.prepare(snap, now)
		k.idle.Store(!w.compress)
		w.encoder = k.encoder
		w.recode = w.compress && k.versions.Load() >= mostVersions
		if !w.compress {
			k.nextAt = now.Add(walkEvery)
		}
	}
	if now.After(k.sweepAt) {
		k.sweepAt = now.Add(sweepEvery)
		k.Measure()
		if used := snap.StoredBytes(); k.Held() > used+used/2+sweepLeast {
			live := func(yield func([]byte) bool) {
				for o := range snap.All("") {
					if stored, _ := o.Stored(); !yield(stored) {
						return
					}
				}
			}
			w.sparse = [2]func([]byte) bool{k.raw.Sparse(live), k.packed.Sparse(live)}
		}
	}
	if !w.compress && w.sparse[0] == nil && w.sparse[1] == nil {
		return false
	}
	k.walk = w
	return true
}

// worth reports whether enough has come to look at.
func (k *Keeper) worth(snap *store.Snapshot, now time.Time) bool {
	switch waiting := k.put.Load() - k.done.Load(); {
	case k.eager.Load() && waiting > int64(k.cfg.Least):
		return true
	case snap.State().Synced:
		return !now.Before(k.nextAt)
	default:
		return waiting > int64(k.cfg.Backlog/2)
	}
}

// advance goes on with the walk.
func (k *Keeper) advance(snap *store.Snapshot, now time.Time) {
	w := k.walk
	var ops []store.Op
	looks, ended := 0, true
	for o := range snap.All(w.after) {
		if looks++; looks > stepLooks || len(ops) >= stepWorks {
			ended = false
			break
		}
		w.after = o.Key()
		if n := k.improved(w, o); n != nil {
			ops = append(ops, store.Op{Swap: &store.Swap{Old: o, New: n}})
			o = n
		}
		stored, codec := o.Stored()
		if d, ok := codec.(*Dictionary); ok {
			w.from[d]++
			w.small += len(stored)
		}
	}
	k.swap(ops, now)
	if w.compress {
		k.done.Store(min(k.done.Load()+w.worked, w.put))
		w.worked = 0
	}
	if ended {
		k.end(snap, now)
	}
}

// swap puts the better forms into the store. An object that was given other
// fields meanwhile is not the one that was looked at, but its payload is: it
// would not be looked at again.
func (k *Keeper) swap(ops []store.Op, now time.Time) {
	for len(ops) > 0 {
		if k.store.Apply(store.Batch{Ops: ops}, now).Swapped == len(ops) {
			return
		}
		snap, again := k.store.Snapshot(), []store.Op(nil)
		for _, op := range ops {
			o := snap.Get(op.Swap.Old.Key())
			if o == nil || o == op.Swap.New || !sameStored(o, op.Swap.Old) {
				continue // swapped, or replaced by what a later walk looks at
			}
			stored, codec := op.Swap.New.Stored()
			n := o.Moved(stored)
			if _, was := o.Stored(); was != codec {
				n = o.WithStored(stored, codec)
			}
			again = append(again, store.Op{Swap: &store.Swap{Old: o, New: n}})
		}
		ops = again
	}
}

// sameStored reports whether two objects share their payload.
func sameStored(a, b *store.Object) bool {
	x, xCodec := a.Stored()
	y, yCodec := b.Stored()
	return xCodec == yCodec && len(x) == len(y) && unsafe.SliceData(x) == unsafe.SliceData(y)
}

func (k *Keeper) end(snap *store.Snapshot, now time.Time) {
	w := k.walk
	k.walk = nil
	k.versions.Store(int32(len(w.from)))
	k.small.Store(int64(w.small))
	if !w.compress {
		return
	}
	k.settledTo = w.cool
	k.done.Store(w.put)
	k.nextAt = now.Add(max(walkEvery, walkShare*now.Sub(w.began)))
	if k.settledTo < k.replay { // what came during the walk; it would stay raw for many times the walk
		k.nextAt = now
	}
	k.Measure()
	k.made.learn(w.in, w.out)
	if snap.State().Synced && k.settledTo >= k.replay {
		k.encoder = nil // a megabyte; the next walk makes one
	}
}

// improved returns how an object is better stored, nil when it is well as it is.
func (k *Keeper) improved(w *walk, o *store.Object) *store.Object {
	stored, codec := o.Stored()
	if len(stored) == 0 {
		return nil
	}
	if w.compress && (codec == nil && o.Sequence() <= w.cool && o.Sequence() > k.settledTo || w.recode && codec != nil && codec != store.Codec(w.encoder.Dictionary())) {
		if n := k.compressed(w, o, stored, codec); n != nil {
			return n
		}
	}
	for i, slab := range [...]*Slab{&k.raw, &k.packed} {
		if w.sparse[i] != nil && w.sparse[i](stored) {
			return o.Moved(slab.Put(stored))
		}
	}
	return nil
}

func (k *Keeper) compressed(w *walk, o *store.Object, stored []byte, codec store.Codec) *store.Object {
	served, err := o.Payload()
	if err != nil {
		return nil // who reads it is told
	}
	if codec == nil {
		w.worked += int64(len(stored))
	}
	b, ok := w.encoder.Encode(served)
	if !ok {
		return nil
	}
	w.in, w.out = w.in+len(served), w.out+len(b)
	k.in.Add(int64(len(served)))
	k.out.Add(int64(len(b)))
	return o.WithStored(k.packed.Put(b), w.encoder.Dictionary())
}
