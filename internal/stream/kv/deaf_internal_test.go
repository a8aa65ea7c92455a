package kv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// deaf is a bucket of which the server deleted the files: it answers everything but what it would
// have to store. How long that is waited for is left out.
type deaf struct{ jetstream.KeyValue }

func (deaf) Delete(context.Context, string, ...jetstream.KVDeleteOpt) error {
	return context.DeadlineExceeded
}

func (deaf) Create(context.Context, string, []byte, ...jetstream.KVCreateOpt) (uint64, error) {
	return 0, context.DeadlineExceeded
}

func (deaf) Update(context.Context, string, []byte, uint64) (uint64, error) {
	return 0, context.DeadlineExceeded
}

// deafFollower follows a bucket that opens in turn as deaf says, and holds the value of one key.
func deafFollower(c *link.Conn, deafAt func(n int) bool) *Follower {
	n := 0
	return NewFollower(func(ctx context.Context, name string, ttl time.Duration) (*Bucket, error) {
		b, err := Open(ctx, c, name, ttl)
		if n++; err == nil && deafAt(n) {
			b.kv = deaf{b.kv}
		}
		return b, err
	}, FollowConfig{
		Name: "b", Take: func(*Bucket, Entry) error { return nil }, Known: func(string) uint64 { return 0 }, Forget: func() {},
		Held: func() map[string][]byte { return map[string][]byte{"k": []byte("v")} },
	})
}

func TestABucketMadeAgainThatStoresNothingIsReplaced(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	f := deafFollower(c, func(n int) bool { return n == 2 })
	first, _, err := f.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, e, err := f.Get(t.Context(), "k")
	if err != nil || string(e.Value) != "v" {
		t.Fatalf("Get: %q, %v, want what was held", e.Value, err)
	}
	if gone, err := b.Lost(t.Context()); err != nil || gone {
		t.Errorf("the bucket that is used is gone: %v, %v", gone, err)
	}
}

func TestABucketThatStoresNothingFromSoonAfterItWasMadeIsReplacedByAWrite(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	f := deafFollower(c, func(int) bool { return false })
	first, _, err := f.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	b, _, err := f.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	b.kv = deaf{b.kv}
	err = f.Change(t.Context(), "k", func(value []byte) ([]byte, bool, error) { return append(value, 'w'), true, nil },
		f.keep)
	if err != nil {
		t.Fatal(err)
	}
	if _, e, err := f.Get(t.Context(), "k"); err != nil || string(e.Value) != "vw" {
		t.Errorf("Get: %q, %v", e.Value, err)
	}
}

// A bucket that was not lost is never removed: what others put into it would go with it.
func TestABucketThatWasNeverLostIsKeptWhenItStoresNothing(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	f := deafFollower(c, func(int) bool { return true })
	b, _, err := f.Get(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Change(t.Context(), "k", func([]byte) ([]byte, bool, error) { return []byte("w"), true, nil }, f.keep); err == nil {
		t.Error("a write that is not answered succeeds")
	}
	if gone, err := b.Lost(t.Context()); err != nil || gone {
		t.Errorf("the bucket is gone: %v, %v", gone, err)
	}
}

func (f *Follower) keep(b *Bucket, _ Entry) bool { return f.Current(b) }

func TestTheProbeOfABucketIsNoKey(t *testing.T) {
	t.Parallel()
	c := connected(t, link.Config{})
	b, err := Open(t.Context(), c, "b", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := b.Entries(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("Entries: %v, %v", all, err)
	}
	end := errors.New("the end")
	err = b.Watch(t.Context(), func(e Entry) error {
		if e.Key != "" {
			t.Errorf("the watch has %+v", e)
		}
		return end
	})
	if !errors.Is(err, end) {
		t.Error(err)
	}
}

func TestAClusterThatIsNotWholeYetIsUnavailable(t *testing.T) {
	t.Parallel()
	if err := link.Named(&jetstream.APIError{Code: 400, ErrorCode: 10005}); !errors.Is(err, link.ErrUnavailable) {
		t.Error(err)
	}
}
