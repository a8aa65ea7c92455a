package stream

import (
	"context"
	"errors"
	"time"
)

// ErrNoKey: the bucket does not hold the key.
var ErrNoKey = errors.New("stream: no such key")

// ErrConflict: the key was changed by somebody else.
var ErrConflict = errors.New("stream: key was changed by somebody else")

// Entry is one key of a bucket. Revision grows with every write to the bucket.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	// Deleted is set only in watches.
	Deleted bool
}

// Bucket keeps small state beside the log: a trigger's generation, index definitions, reflections. Keys are any text of up to 512
// bytes. It is safe for concurrent use.
type Bucket struct{}

// Bucket opens the named bucket (letters, digits, "-", "_"), made on first use. A ttl over 0 drops keys that old.
func (c *Conn) Bucket(ctx context.Context, name string, ttl time.Duration) (*Bucket, error) {
	return nil, errors.ErrUnsupported
}

// Get returns a key's entry, or [ErrNoKey].
func (b *Bucket) Get(ctx context.Context, key string) (Entry, error) {
	return Entry{}, errors.ErrUnsupported
}

// Put writes a key whatever it holds and returns the new revision.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	return 0, errors.ErrUnsupported
}

// Update writes a key if it is still at revision (0: if it does not exist), or fails with [ErrConflict].
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	return 0, errors.ErrUnsupported
}

// Delete removes a key; a missing key is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error { return errors.ErrUnsupported }

// Entries returns all keys, in no particular order.
func (b *Bucket) Entries(ctx context.Context) ([]Entry, error) { return nil, errors.ErrUnsupported }

// Watch calls fn for every entry, then for every change, until ctx ends (nil) or fn fails (its error). After the initial entries it calls
// fn once with an empty Entry. It reconnects by itself and then begins again with the initial entries.
func (b *Bucket) Watch(ctx context.Context, fn func(Entry) error) error { return errors.ErrUnsupported }
