package kv

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// words is a service that follows one key of a bucket, whose value is a list of bytes.
type words struct {
	f *Follower

	mu       sync.Mutex
	value    []byte
	revision uint64
	known    func() // runs once, when the Follower asks for what is known
}

func newWords(c *link.Conn) *words {
	w := &words{}
	w.f = NewFollower(opener(c), FollowConfig{
		Name: "words",
		Known: func(string) uint64 {
			w.mu.Lock()
			known := w.known
			w.known = nil
			w.mu.Unlock()
			if known != nil {
				known()
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.revision
		},
		Forget: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.revision = 0
		},
		Held: func() map[string][]byte {
			w.mu.Lock()
			defer w.mu.Unlock()
			return map[string][]byte{"key": w.value}
		},
	})
	return w
}

func (w *words) noted(b *Bucket, e Entry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.f.Current(b) {
		return false
	}
	w.value, w.revision = e.Value, e.Revision
	return true
}

func (w *words) add(ctx context.Context, word byte) error {
	return w.f.Change(ctx, "key", func(value []byte) ([]byte, bool, error) {
		return append(slices.Clone(value), word), true, nil
	}, w.noted)
}

var errNoWord = errors.New("there is no such word")

func (w *words) remove(ctx context.Context, word byte) error {
	return w.f.Change(ctx, "key", func(value []byte) ([]byte, bool, error) {
		i := slices.Index(value, word)
		if i < 0 {
			return nil, false, errNoWord
		}
		return slices.Delete(slices.Clone(value), i, i+1), true, nil
	}, w.noted)
}

// replace deletes the bucket and has another process create it, which does not know what it held.
func replace(t *testing.T, c *link.Conn) *Bucket {
	t.Helper()
	if err := c.JetStream.DeleteKeyValue(t.Context(), "words"); err != nil {
		t.Error(err)
	}
	b, err := Open(t.Context(), c, "words", 0)
	if err != nil {
		t.Error(err)
	}
	return b
}

// lose makes the service notice that its bucket is gone, as its watch does at any moment.
func lose(t *testing.T, w *words) {
	t.Helper()
	if lost, err := w.f.Lost(t.Context(), w.f.bucket.Load()); !lost || err != nil {
		t.Errorf("the bucket is gone: %v, %v", lost, err)
	}
}

func TestAChangeOfABucketThatIsLostWhileItIsReadKeepsWhatWasKnown(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	w := newWords(c)
	if err := w.add(t.Context(), 'a'); err != nil {
		t.Fatal(err)
	}
	replace(t, c)
	w.known = func() { lose(t, w) } // the key is read, and not judged yet
	if err := w.add(t.Context(), 'b'); err != nil || string(w.value) != "ab" {
		t.Errorf("the key has %q, %v, want ab", w.value, err)
	}
}

func TestAChangeThatReachedTheNextBucketIsMadeOnce(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	w := newWords(c)
	if err := w.add(t.Context(), 'a'); err != nil {
		t.Fatal(err)
	}
	passes := 0
	err := w.f.Change(t.Context(), "key", func(value []byte) ([]byte, bool, error) {
		if passes++; passes == 1 { // by name, the next bucket takes it at this revision
			if _, err := replace(t, c).Update(t.Context(), "key", value, 0); err != nil {
				t.Error(err)
			}
			lose(t, w)
		}
		if !slices.Contains(value, 'a') {
			return nil, false, errNoWord
		}
		return []byte("b"), true, nil
	}, w.noted)
	if err != nil || string(w.value) != "b" || passes != 1 {
		t.Errorf("the key has %q after %d passes, %v, want b after one", w.value, passes, err)
	}
}

// unsure carries out an update and loses the answer.
type unsure struct {
	jetstream.KeyValue
	lost *int
}

func (u unsure) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	if *u.lost == 0 {
		return u.KeyValue.Update(ctx, key, value, revision)
	}
	*u.lost--
	if _, err := u.KeyValue.Update(ctx, key, value, revision); err != nil {
		return 0, err
	}
	return 0, context.DeadlineExceeded
}

func TestAChangeWhoseAnswerIsLostIsRecognised(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	w := newWords(c)
	if err := w.add(t.Context(), 'a'); err != nil {
		t.Fatal(err)
	}
	lost := 1
	b := w.f.bucket.Load()
	b.kv = unsure{b.kv, &lost}
	if err := w.remove(t.Context(), 'a'); err != nil || len(w.value) > 0 {
		t.Errorf("the key has %q, %v, want nothing", w.value, err)
	}
	if err := w.remove(t.Context(), 'a'); !errors.Is(err, errNoWord) {
		t.Errorf("a second removal: %v, want the error of the change", err)
	}
}

// silentStore carries out no update and does not answer.
type silentStore struct{ jetstream.KeyValue }

func (silentStore) Update(context.Context, string, []byte, uint64) (uint64, error) {
	return 0, context.DeadlineExceeded
}

func TestAChangeThatIsNeverAnsweredSaysThatItsOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	w := newWords(c)
	if err := w.add(t.Context(), 'a'); err != nil {
		t.Fatal(err)
	}
	b := w.f.bucket.Load()
	b.kv = silentStore{b.kv}
	if err := w.add(t.Context(), 'b'); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, link.ErrUnavailable) {
		t.Errorf("%v, want an unknown outcome, and why", err)
	}
}
