package kv

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/embedded/embeddedtest"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// FuzzUnescapeKey: any text is a key, in characters that a bucket takes, and
// comes back; what somebody else has written does not panic and is no longer
// than it was.
func FuzzUnescapeKey(f *testing.F) {
	for _, seed := range []string{"", "pods.v1", "a=b", "=", "=4", "=GG", "=2E=2e", "ä/ö*>\x00\xff", "=3D2E"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key := EscapeKey(text)
		if i := strings.IndexFunc(key, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=", r)
		}); i >= 0 {
			t.Fatalf("%q is written %q", text, key)
		}
		if back := unescapeKey(key); back != text {
			t.Fatalf("%q is written %q and read %q", text, key, back)
		}
		foreign := unescapeKey(text)
		if len(foreign) > len(text) || unescapeKey(EscapeKey(foreign)) != foreign {
			t.Fatalf("%q is read %q", text, foreign)
		}
	})
}

// connected is a connection to a server of the test's own.
func connected(t *testing.T, cfg link.Config) *link.Conn {
	t.Helper()
	cfg.URL = embeddedtest.NATS(t).URL()
	c, err := link.Dial(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// early watches as NATS' library does when a key is written while it counts: it says that all was
// told after the first.
type early struct{ jetstream.KeyValue }

type earlyWatch struct {
	jetstream.KeyWatcher
	updates chan jetstream.KeyValueEntry
}

func (w earlyWatch) Updates() <-chan jetstream.KeyValueEntry { return w.updates }

func (h early) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := h.KeyValue.WatchAll(ctx, opts...)
	if err != nil {
		return nil, err
	}
	out := make(chan jetstream.KeyValueEntry, 16)
	go func() {
		defer close(out)
		first := true
		for e := range w.Updates() {
			if e == nil {
				continue
			}
			if out <- e; first {
				out <- nil
			}
			first = false
		}
	}()
	return earlyWatch{KeyWatcher: w, updates: out}, nil
}

// TestAWatchSaysThatAllWasToldWhenItWas: what a follower holds and is not told again is taken for
// gone.
func TestAWatchSaysThatAllWasToldWhenItWas(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	b, err := Open(t.Context(), c, "early", 0)
	if err != nil {
		t.Fatal(err)
	}
	b.kv = early{b.kv}
	put := func(key string) uint64 {
		t.Helper()
		revision, err := b.Put(t.Context(), key, []byte(key))
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	for _, key := range []string{"a", "b", "c"} {
		put(key)
	}
	told := func() (keys []string) {
		t.Helper()
		entries, err := b.Entries(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			keys = append(keys, e.Key)
		}
		return keys
	}
	if got := told(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("told %q, want all three", got)
	}
	put("a")
	if got := told(); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("told %q, want all three", got)
	}
	// The newest of all is gone: it is not waited for.
	put("d")
	s, err := c.JetStream.Stream(t.Context(), bucketStream+"early")
	if err == nil {
		err = s.Purge(t.Context(), jetstream.WithPurgeSubject(bucketSubjects+"early.d"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := told(); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("told %q, want the three that are left", got)
	}
}

// mute does not say what it is.
type mute struct{ jetstream.KeyValue }

func (mute) Status(context.Context) (jetstream.KeyValueStatus, error) {
	return nil, context.DeadlineExceeded
}

// TestAKeyThatIsMissedIsNotEmptyBeforeItsBucketWasLookedAt: who takes it for empty writes over what
// the one who makes the bucket again puts there.
func TestAKeyThatIsMissedIsNotEmptyBeforeItsBucketWasLookedAt(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{Memory: true})
	f := NewFollower(opener(c), FollowConfig{
		Name: "mute", Known: func(string) uint64 { return 1 }, Forget: func() {}, Held: func() map[string][]byte { return map[string][]byte{"a": []byte("known")} },
	})
	b, err := f.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opened := b.kv
	b.kv = mute{opened}
	if _, e, err := f.Get(t.Context(), "a"); !errors.Is(err, link.ErrUnavailable) {
		t.Errorf("a key that should be there is %q, %v", e.Value, err)
	}
	b.kv = opened
	if err := c.JetStream.DeleteKeyValue(t.Context(), "mute"); err != nil {
		t.Fatal(err)
	}
	if _, e, err := f.Get(t.Context(), "a"); err != nil || string(e.Value) != "known" {
		t.Errorf("once the bucket is known to be gone, the key is %q, %v", e.Value, err)
	}
}

// silent never answers.
type silent struct{ jetstream.KeyValue }

func (silent) Update(ctx context.Context, _ string, _ []byte, _ uint64) (uint64, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

func (silent) Get(ctx context.Context, _ string) (jetstream.KeyValueEntry, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestARequestThatIsNeverAnsweredDoesNotWaitForItsCallersDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &Bucket{name: "b", kv: silent{}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if _, err := b.Update(ctx, "k", nil, 1); !errors.Is(err, link.ErrUnavailable) {
			t.Errorf("Update: %v", err)
		}
		if _, err := b.Get(ctx, "k"); !errors.Is(err, link.ErrUnavailable) {
			t.Errorf("Get: %v", err)
		}
		if took := time.Since(began); took != 2*answerWithin {
			t.Errorf("two requests took %v", took)
		}
	})
}

// opener opens buckets on a connection, as a Follower asks for them.
func opener(c *link.Conn) func(context.Context, string, time.Duration) (*Bucket, error) {
	return func(ctx context.Context, name string, ttl time.Duration) (*Bucket, error) {
		return Open(ctx, c, name, ttl)
	}
}
