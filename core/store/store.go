package store

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Options are the bounds of a store; zero fields mean the defaults.
type Options struct {
	// TombstoneTTL is how long a delete is remembered; default 30 minutes.
	TombstoneTTL time.Duration
	// RingChanges and RingBytes bound the changes kept for watchers; defaults
	// 8192 changes and 64 MiB of superseded payloads.
	RingChanges, RingBytes int
	// Indexers are built in from the start.
	Indexers map[string]IndexFunc
}

// Store holds one collection. Reads are safe at any time and never wait;
// writes exclude each other.
type Store struct {
	ttl  time.Duration
	ring *ring
	snap atomic.Pointer[Snapshot]

	mu      sync.Mutex // guards the rest, which is the writer's own
	slots   slots
	seen    bitset // the slots that the replay has named
	replay  bool   // there was a replay; without one every slot is named
	expiry  queue  // of tombstones
	chunk   int    // how many objects Build takes in while it holds the lock
	adds    uint64 // calls of AddIndexers
	watched bool   // synced once: watchers may exist, the ring is kept, indexes are built
}

// New returns an empty store that is not synced. Its indexes become ready with
// the first sync: until then no read is answered, and built at once they take
// a tenth of the time.
func New(opts Options) *Store {
	s := &Store{
		chunk: buildChunk,
		ttl:   cmp.Or(opts.TombstoneTTL, 30*time.Minute),
		ring:  newRing(cmp.Or(opts.RingChanges, 8192), cmp.Or(opts.RingBytes, 64<<20)),
	}
	snap := &Snapshot{next: make(chan struct{})}
	for _, name := range sortedNames(opts.Indexers) {
		snap.indexes = append(snap.indexes, &index{name: name, fn: opts.Indexers[name]})
	}
	s.snap.Store(snap)
	return s
}

// Snapshot returns the latest snapshot: one atomic load.
func (s *Store) Snapshot() *Snapshot { return s.snap.Load() }

// Change returns change number n of at most the latest snapshot's LastChange.
// The error is *OverrunError when the ring has dropped it.
func (s *Store) Change(n uint64) (*Change, error) { return s.ring.get(n) }

// Resume returns the number of the first change after a log sequence, for a
// reader of snap that has applied the log up to there. It reports false when
// the ring does not reach back that far; Snapshot.Since may then still help.
func (s *Store) Resume(snap *Snapshot, sequence uint64) (uint64, bool) {
	return s.ring.after(snap.last, sequence)
}

// Op is one record to apply: exactly one of Put, Delete, Doubt and Swap is set, and Final at most
// beside Delete.
type Op struct {
	Put    *Object
	Delete *Tombstone
	// Final is, beside Delete, the object as it was deleted, or nil. Changes have it;
	// it is kept no longer than they are.
	Final *Object
	Doubt *Doubt
	Swap  *Swap
	// Trace is the W3C traceparent of what the record came of, or empty. Changes have it.
	Trace string
}

// Swap replaces the stored form of a version. When the key does not hold Old any
// more, nothing happens. New is made from Old by
// WithStored or WithFields. Watchers receive nothing; indexes are filed again
// when the fields differ.
type Swap struct{ Old, New *Object }

// Doubt says that a record of a key could not be read: whatever the store has
// for it is out of date. The key becomes faulty, until a record that is newer
// than what it had before.
type Doubt struct {
	Key             string
	Epoch, Sequence uint64
	Fault           string
}

// Batch is applied as one step: readers see all of it or nothing.
type Batch struct {
	// Replay begins a full replay of the log before Ops. From here the log is
	// the truth, not what the store held before: the first Op on a key replaces
	// that whatever its resource version, tombstones are forgotten, and keys
	// that no Op names until a Sweep are deleted by it.
	Replay bool
	Ops    []Op
	// Sweep ends the replay after Ops.
	Sweep bool
	// State replaces the state; nil keeps it.
	State *State
	// Proof, if not nil, is the digest of the store after Ops and Sweep. When it differs the
	// state becomes Unproven.
	Proof    *delta.Digest
	Unproven State
	// Horizon raises the least sequence from which Since can answer; zero leaves it.
	// A Replay forgets it, since the log may be another: from then on Since answers
	// nothing until a Horizon was given.
	Horizon uint64
}

// noHorizon is that of a replay whose horizon is not known yet.
const noHorizon = math.MaxUint64

// Result counts what a batch did.
type Result struct {
	Added, Updated, Deleted int
	// Swept is how many of Deleted a sweep found.
	Swept int
	// Stale records were older than what the store had, Same ones equal to it.
	Stale, Same int
	// Unproven: the store did not hold what the batch's proof says.
	Unproven bool
	// Swapped is how many swaps found their version.
	Swapped int
}

// Apply applies a batch and publishes the new snapshot. now drives the expiry
// of tombstones. Records that are not newer by (epoch, RV, sequence) than what
// is known of their key, tombstones included, change nothing.
func (s *Store) Apply(b Batch, now time.Time) Result {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.begin()
	if b.State != nil {
		w.snap.state = *b.State
	}
	if b.Replay {
		s.replay, s.seen = true, nil
		w.snap.tombs, s.expiry = tree[*Tombstone]{}, queue{}
		w.snap.horizon = noHorizon
		s.ring.cut()
	}
	for _, op := range b.Ops {
		if w.trace = nil; op.Trace != "" {
			trace := op.Trace // a pointer into op would move every op to the heap
			w.trace = &trace
		}
		switch {
		case op.Put != nil:
			w.put(op.Put)
		case op.Delete != nil:
			w.delete(op.Delete, op.Final, now)
		case op.Doubt != nil:
			w.doubt(op.Doubt)
		case op.Swap != nil:
			w.swap(op.Swap)
		}
	}
	w.trace = nil
	if b.Sweep {
		w.sweep(now)
	}
	if b.Proof != nil && *b.Proof != w.snap.sums.digest {
		w.snap.state, w.result.Unproven = b.Unproven, true
	}
	if w.snap.horizon != noHorizon {
		w.snap.horizon = max(w.snap.horizon, b.Horizon)
	} else if b.Horizon > 0 {
		w.snap.horizon = b.Horizon
	}
	w.expire(now)
	w.settle()
	w.publish()
	return w.result
}

// settle does what follows from the new state.
func (w *write) settle() {
	if !w.snap.state.Synced {
		return
	}
	if !w.s.watched {
		w.s.watched = true
		w.complete()
		w.s.ring.cut()
	}
	w.s.ring.complete(w.snap.state.Position.Sequence)
}

// write is one edit of the store in progress.
type write struct {
	s       *Store
	e       *edit
	snap    *Snapshot
	keys    editor[key]
	objects editor[Object]
	result  Result
	trace   *string // of the op
}

func (s *Store) begin() *write {
	old := s.snap.Load()
	snap := *old
	snap.next = make(chan struct{})
	snap.indexes = make([]*index, len(old.indexes))
	copies := make([]index, len(old.indexes))
	for i, x := range old.indexes {
		copies[i] = *x
		snap.indexes[i] = &copies[i]
	}
	return &write{
		s: s, e: new(edit), snap: &snap, keys: editor[key]{vector: old.keyring}, objects: editor[Object]{vector: old.objects},
	}
}

func (w *write) publish() {
	w.snap.keyring, w.snap.objects = w.keys.vector, w.objects.vector
	w.snap.last, w.snap.run = w.s.ring.next-1, w.s.ring.run
	close(w.s.snap.Swap(w.snap).next)
}
