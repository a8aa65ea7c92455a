package stream_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream"
)

const shelf = "shelf"

// shelfkeeper knows what a bucket holds, as a service does.
type shelfkeeper struct {
	f  *stream.Follower
	mu sync.Mutex
	// Guarded by mu.
	known map[string]stream.Entry
	told  map[string]bool // in this watch
	ends  []int           // how many keys each watch had told when it said that these were all
	lost  int             // buckets
	meet  func() error    // what the next key that is told meets, if anything
}

func newShelfkeeper(t testing.TB, c *stream.Conn) *shelfkeeper {
	t.Helper()
	k := &shelfkeeper{known: map[string]stream.Entry{}, told: map[string]bool{}}
	k.f = stream.NewFollower(c.Bucket, stream.FollowConfig{
		Name: shelf,
		Take: func(b *stream.Bucket, e stream.Entry) error {
			k.mu.Lock()
			meet := k.meet
			k.meet = nil
			k.mu.Unlock()
			if meet != nil {
				return meet()
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			switch {
			case !k.f.Current(b):
			case e.Key == "":
				k.ends = append(k.ends, len(k.told))
				clear(k.told)
			default:
				k.known[e.Key], k.told[e.Key] = e, true
			}
			return nil
		},
		Known: func(key string) uint64 { return k.entry(key).Revision },
		Forget: func() {
			k.mu.Lock()
			defer k.mu.Unlock()
			for key, e := range k.known {
				e.Revision = 0
				k.known[key] = e
			}
			clear(k.told)
			k.lost++
		},
		Held: func() map[string][]byte {
			k.mu.Lock()
			defer k.mu.Unlock()
			values := map[string][]byte{}
			for key, e := range k.known {
				values[key] = e.Value
			}
			return values
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

func (k *shelfkeeper) entry(key string) stream.Entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.known[key]
}

// add puts a word to a key's. A server that does not answer in time is asked again.
func (k *shelfkeeper) add(ctx context.Context, key, word string) error {
	for {
		err := k.f.Change(ctx, key, func(value []byte) ([]byte, bool, error) {
			if strings.Contains(string(value), word+" ") { // an attempt that was not answered
				return value, false, nil
			}
			return append(value, word+" "...), true, nil
		}, func(b *stream.Bucket, _ stream.Entry) bool { return k.f.Current(b) })
		if ctx.Err() != nil || !errors.Is(err, stream.ErrConflict) && !errors.Is(err, stream.ErrUnavailable) && !errors.Is(err, stream.ErrOutcomeUnknown) {
			return err
		}
	}
}

// TestABucketThatIsLostUnderItsCallersLosesNothingThatWasKnown: the first caller makes it again,
// and no call meets it empty.
func TestABucketThatIsLostUnderItsCallersLosesNothingThatWasKnown(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	js := operator(t, url)
	keepers := []*shelfkeeper{newShelfkeeper(t, connect(t, url, nil)), newShelfkeeper(t, connect(t, url, nil))}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	want := map[string][]string{}
	for round := range 6 {
		if round > 0 {
			if err := js.DeleteKeyValue(ctx, shelf); err != nil {
				t.Fatal(err)
			}
		}
		var calls sync.WaitGroup
		for i, k := range keepers {
			for _, key := range []string{"a", "b"} {
				word := fmt.Sprintf("%d.%d", round, i)
				want[key] = append(want[key], word)
				calls.Go(func() {
					if err := k.add(ctx, key, word); err != nil {
						t.Errorf("round %d, caller %d, key %s: %v", round, i, key, err)
					}
				})
			}
		}
		calls.Wait()
		for i, k := range keepers { // what one has learnt from nobody else is the others' to lose
			for _, key := range []string{"a", "b"} {
				for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
					lacks := ""
					for _, word := range want[key] {
						if !strings.Contains(string(k.entry(key).Value), word+" ") {
							lacks = word
						}
					}
					if lacks == "" && k.entry(key).Revision > 0 {
						break
					}
					if ctx.Err() != nil || t.Failed() {
						t.Fatalf("round %d: caller %d knows %q of key %s, without %s", round, i, k.entry(key).Value, key, lacks)
					}
				}
			}
		}
	}
	for i, k := range keepers {
		k.mu.Lock()
		for n, told := range k.ends[1:] {
			if told < 2 {
				t.Errorf("caller %d: watch %d said that %d keys were all there are", i, n+1, told)
			}
		}
		k.mu.Unlock()
	}
}

// until waits for ok, which runs with the lock held.
func (k *shelfkeeper) until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		k.mu.Lock()
		there := ok()
		k.mu.Unlock()
		if there {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("waiting for %s", what)
		}
	}
}

// TestABucketThatSomebodyMakesAgainEmptyIsFilledBeforeItIsUsed: it answers like any other, but for
// what is known and not in it.
func TestABucketThatSomebodyMakesAgainEmptyIsFilledBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	js := operator(t, url)
	k := newShelfkeeper(t, connect(t, url, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, key := range []string{"a", "b"} {
		if err := k.add(ctx, key, "first"); err != nil {
			t.Fatal(err)
		}
		k.until(ctx, t, "what was written to be told", func() bool { return k.known[key].Revision > 0 })
	}
	if err := js.DeleteKeyValue(ctx, shelf); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: shelf}); err != nil {
		t.Fatal(err)
	}
	if err := k.add(ctx, "a", "second"); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"a": "first second ", "b": "first "} {
		if _, e, err := k.f.Get(ctx, key); err != nil || string(e.Value) != want {
			t.Errorf("key %s holds %q, %v; want %q", key, e.Value, err, want)
		}
	}
	k.mu.Lock()
	lost := k.lost
	k.mu.Unlock()
	if lost != 1 {
		t.Errorf("%d buckets were forgotten, want one", lost)
	}
}

// TestAWatchThatBeginsAgainOnAnEmptyBucketDoesNotSayThatItWasAll: what was known would be taken for
// gone.
func TestAWatchThatBeginsAgainOnAnEmptyBucketDoesNotSayThatItWasAll(t *testing.T) {
	t.Parallel()
	url := embeddedtest.NATS(t).URL()
	js := operator(t, url)
	k := newShelfkeeper(t, connect(t, url, nil))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	k.until(ctx, t, "the first end", func() bool { return len(k.ends) == 1 })
	if err := k.add(ctx, "a", "first"); err != nil {
		t.Fatal(err)
	}
	k.until(ctx, t, "what was written", func() bool { return k.known["a"].Revision > 0 })
	k.mu.Lock()
	k.meet = func() error { // the bucket goes while no watch is open
		if err := js.DeleteKeyValue(ctx, shelf); err != nil {
			return err
		}
		_, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: shelf})
		return errors.Join(errors.New("another watch, please"), err)
	}
	k.mu.Unlock()
	if err := k.add(ctx, "b", "first"); err != nil {
		t.Fatal(err)
	}
	k.until(ctx, t, "the end of another watch", func() bool { return len(k.ends) > 1 })
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ends[1] < 1 || k.lost != 1 || string(k.known["a"].Value) != "first " {
		t.Errorf("ends after %v keys, %d buckets forgotten, known %v; want a told again", k.ends, k.lost, k.known)
	}
}
