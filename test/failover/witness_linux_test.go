package failover

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

var pods = delta.Collection{Cluster: "dev", Version: "v1", Resource: "pods"}

// witness reads the log as any consumer does and judges what it reads.
type witness struct {
	t   *testing.T
	src *source

	mu       sync.Mutex // guards what follows
	follower delta.Follower
	held     map[delta.Key]delta.Record
	claimed  int // the resource version claimed so far
	resets   int
	terms    []uint64
	writers  []string
	term     uint64 // the newest since the last reset
	oldTerm  int
	gaps     int
	deltas   int
	// first is when the first change of each term came.
	first   map[uint64]time.Time
	changed chan struct{} // cap 1
}

func newWitness(t *testing.T, url string, src *source) *witness {
	t.Helper()
	conn, err := stream.Connect(t.Context(), stream.Config{URL: url, Log: role{Name: "witness"}.log()})
	if err != nil {
		t.Fatal(err)
	}
	w := &witness{t: t, src: src, held: map[delta.Key]delta.Record{}, first: map[uint64]time.Time{}, changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- conn.Read(ctx, pods, stream.ReadConfig{}, w.take) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Read() = %v", err)
		}
		conn.Close()
	})
	return w
}

func (w *witness) take(_ context.Context, b delta.Batch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if b.Reset { // records of earlier terms are read again
		w.resets++
		w.term = 0
	}
	w.gaps += len(b.Unreadable)
	for i := range b.Records {
		w.record(&b.Records[i])
	}
	if rev := w.follower.Apply(b); rev.RV != "" {
		w.claim(rev)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
	return nil
}

func (w *witness) record(r *delta.Record) {
	if r.Term < w.term {
		w.oldTerm++
	}
	w.term = max(w.term, r.Term)
	switch r.Kind {
	case delta.KindTerm:
		w.terms, w.writers = append(w.terms, r.Term), append(w.writers, r.Writer)
	case delta.KindDelta:
		w.deltas++
		if _, ok := w.first[r.Term]; !ok {
			w.first[r.Term] = time.Now()
		}
		if held, ok := w.held[r.Key]; !ok || delta.Apply(held.Stamp(), r.Stamp()) {
			w.held[r.Key] = *r
		}
	}
}

// claim checks that every change up to the revision has been seen, or a later one of its key.
func (w *witness) claim(rev delta.Revision) {
	rv, err := strconv.Atoi(rev.RV)
	if err != nil {
		w.t.Errorf("revision %v: %v", rev, err)
		return
	}
	if w.claimed == 0 {
		w.claimed = rv // the first state is checked at the end
	}
	for w.claimed < rv {
		w.claimed++
		c := w.src.at(w.claimed)
		held := w.held[delta.Key(name(c.key))]
		at, _ := strconv.Atoi(held.RV)
		if at < w.claimed || at == w.claimed && held.Tombstone() != (c.kind == "DELETED") {
			if w.gaps++; w.gaps < 5 {
				w.t.Errorf("revision %s is claimed, and %s, %s at %d, is held at %s %s", rev.RV, name(c.key), c.kind, w.claimed, held.RV, held.Type)
			}
		}
	}
}

// leadership returns the last term and who leads.
func (w *witness) leadership() (term uint64, holder string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.terms) == 0 {
		return 0, ""
	}
	return w.terms[len(w.terms)-1], w.writers[len(w.writers)-1]
}

// after waits for the first change of a term after the given one.
func (w *witness) after(term uint64, timeout time.Duration) (at time.Time, ok bool) {
	w.until(timeout, func() bool {
		for t, first := range w.first {
			if t > term && (!ok || first.Before(at)) {
				at, ok = first, true
			}
		}
		return ok
	})
	return at, ok
}

// until waits until cond, which runs with the witness held, is true.
func (w *witness) until(timeout time.Duration, cond func() bool) bool {
	deadline := time.After(timeout)
	for {
		w.mu.Lock()
		ok := cond()
		w.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-w.changed:
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			return false
		}
	}
}

// settle waits until everything is claimed, and compares the state with the source's. The source
// must stand still.
func (w *witness) settle() {
	w.t.Helper()
	want, rv := w.src.now()
	if !w.until(60*time.Second, func() bool { return w.claimed == rv }) {
		w.mu.Lock()
		w.t.Errorf("revision %d was not reached: %d is claimed", rv, w.claimed)
		w.mu.Unlock()
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	live := 0
	for key, r := range w.held {
		at, there := want[string(key)]
		if r.Tombstone() == there || there && strconv.Itoa(at) != r.RV {
			w.t.Errorf("%s is held at %s %s, the source has it at %d (%v)", key, r.RV, r.Type, at, there)
		}
		if !r.Tombstone() {
			live++
		}
	}
	if live != len(want) {
		w.t.Errorf("%d objects, the source has %d", live, len(want))
	}
}
