package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// ErrNoKey says that the bucket does not hold the key.
var ErrNoKey = errors.New("stream: no such key")

// ErrConflict says that the key was changed by somebody else.
var ErrConflict = errors.New("stream: key was changed by somebody else")

// How NATS names a bucket's stream, and its subjects.
const (
	bucketStream   = "KV_"
	bucketSubjects = "$KV."
)

// Subjects are those on which a service publishes that makes and writes a bucket.
func Subjects(name string) []string {
	return []string{bucketSubjects + name + ".>", "$JS.API.STREAM.CREATE." + bucketStream + name}
}

// answerWithin is how long an answer to one request is waited for, however long the caller would:
// what is sent to a bucket while it is deleted and made again may never be answered.
const answerWithin = 5 * time.Second

// Entry is one key of a bucket. Revision grows with every write to the bucket.
type Entry struct {
	Key      string
	Value    []byte
	Revision uint64
	// Deleted is set only in watches.
	Deleted bool
}

// Bucket keeps small state beside the log: a trigger's generation, index definitions, reflections.
// Keys are any text of up to 512 bytes. It is safe for concurrent use. A call whose answer does not
// come within 5 s fails with [link.ErrUnavailable]; a write may have been carried out.
type Bucket struct {
	c       *link.Conn
	name    string
	kv      jetstream.KeyValue
	created time.Time
}

// Open opens the named bucket (letters, digits, "-", "_"), made on first use. A ttl over 0 drops
// keys that old.
func Open(ctx context.Context, c *link.Conn, name string, ttl time.Duration) (*Bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	storage := jetstream.FileStorage
	if c.Config.Memory {
		storage = jetstream.MemoryStorage
	}
	kv, err := c.JetStream.CreateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: name, TTL: ttl, Storage: storage, Replicas: c.Config.Replicas, Description: "deltaplane state",
	})
	if errors.Is(err, jetstream.ErrBucketExists) {
		kv, err = c.JetStream.KeyValue(ctx, name) // made with other limits, by an older version or another configuration: use it as it is
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, link.Named(err))
	}
	b := &Bucket{c: c, name: name, kv: kv}
	if b.created, err = b.made(ctx); err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", name, link.Named(err))
	}
	return b, nil
}

// Lost reports whether the bucket that was opened is gone, also when another one has its name by
// now: what it held is gone with it. No answer is an error.
func (b *Bucket) Lost(ctx context.Context) (bool, error) {
	created, err := b.made(ctx)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at bucket %s: %w", b.name, link.Named(err))
	}
	return !created.Equal(b.created), nil
}

// made is when the bucket of that name was made.
func (b *Bucket) made(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	status, err := b.kv.Status(ctx)
	if err != nil {
		return time.Time{}, err
	}
	if of, ok := status.(*jetstream.KeyValueBucketStatus); ok {
		return of.StreamInfo().Created, nil
	}
	return time.Time{}, nil
}

// Get returns a key's entry, or [ErrNoKey].
func (b *Bucket) Get(ctx context.Context, key string) (Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	e, err := b.kv.Get(ctx, EscapeKey(key))
	if err != nil {
		return Entry{}, b.fail("get", key, err)
	}
	return Entry{Key: key, Value: e.Value(), Revision: e.Revision()}, nil
}

// Put writes a key whatever it holds and returns the new revision.
func (b *Bucket) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	rev, err := b.kv.Put(ctx, EscapeKey(key), value)
	if err != nil {
		return 0, b.fail("put", key, err)
	}
	return rev, nil
}

// Update writes a key if it is still at revision (0: if it does not exist), or fails with
// [ErrConflict].
func (b *Bucket) Update(ctx context.Context, key string, value []byte, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	var rev uint64
	var err error
	if revision == 0 {
		rev, err = b.kv.Create(ctx, EscapeKey(key), value)
	} else {
		rev, err = b.kv.Update(ctx, EscapeKey(key), value, revision)
	}
	if err != nil {
		return 0, b.fail("update", key, err)
	}
	return rev, nil
}

// Delete removes a key; a missing key is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := b.kv.Purge(ctx, EscapeKey(key)); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return b.fail("delete", key, err)
	}
	return nil
}

// probeKey is not the form of any key: [EscapeKey] writes no dot. Watches leave it out.
const probeKey = "deltaplane.probe"

// probe writes to the bucket: that a key is deleted which nobody can have. It fails with
// [link.ErrUnavailable] after 2 s without an answer; a healthy server has long answered.
func (b *Bucket) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := b.kv.Delete(ctx, probeKey); err != nil {
		return b.fail("delete", probeKey, err)
	}
	return nil
}

// remove removes the bucket with all that is in it. Nobody else having made another one by that
// name in between is for the caller to find out before.
func (b *Bucket) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := b.c.JetStream.DeleteKeyValue(ctx, b.name); err != nil && !errors.Is(err, jetstream.ErrBucketNotFound) {
		return fmt.Errorf("remove bucket %s: %w", b.name, link.Named(err))
	}
	return nil
}

// Entries returns all keys, in no particular order.
func (b *Bucket) Entries(ctx context.Context) ([]Entry, error) {
	var out []Entry
	stop := errors.New("done")
	err := b.watchOnce(ctx, func(e Entry) error {
		if e.Key == "" {
			return stop
		}
		if !e.Deleted {
			out = append(out, e)
		}
		return nil
	})
	if failed, ok := errors.AsType[*link.HandlerError](err); ok && errors.Is(failed.Err, stop) {
		return out, nil
	}
	if err == nil {
		err = ctx.Err()
	}
	return nil, err
}

// Watch calls fn for every entry, then for every change, until ctx ends (nil) or fn fails (its
// error). After the initial entries it calls fn once with an empty Entry; by then every key has
// been told that was there when the watch began. When the connection was lost it begins again with
// the initial entries.
func (b *Bucket) Watch(ctx context.Context, fn func(Entry) error) error {
	for {
		err := b.watchOnce(ctx, fn)
		var failed *link.HandlerError
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &failed):
			return failed.Err
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-b.c.Events.Wait():
		case <-ctx.Done():
			return nil
		}
	}
}

func (b *Bucket) watchOnce(ctx context.Context, fn func(Entry) error) error {
	reconnected := b.c.Events.Wait()
	w, err := b.kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch bucket %s: %w", b.name, link.Named(err))
	}
	defer func() { _ = w.Stop() }()
	var seen, last uint64 // the newest revision told, and the one that ends the initial entries
	said, told := false, false
	for {
		var again <-chan time.Time
		if said && !told {
			again = time.After(500 * time.Millisecond)
		}
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return fmt.Errorf("watch bucket %s: closed", b.name)
			case e == nil && !said: // too early, perhaps: a key that is written at that moment is not counted
				said = true
				last, err = b.newest(ctx)
			case e != nil && e.Key() == probeKey:
				seen = e.Revision()
			case e != nil:
				entry := Entry{Key: unescapeKey(e.Key()), Value: e.Value(), Revision: e.Revision(), Deleted: e.Operation() != jetstream.KeyValuePut}
				if err := fn(entry); err != nil {
					return &link.HandlerError{Err: err}
				}
				seen = entry.Revision
			}
		case <-again: // the newest may have been deleted
			last, err = b.newestLeft(ctx)
		case <-reconnected:
			return fmt.Errorf("watch bucket %s: reconnected", b.name)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("watch bucket %s: %w", b.name, link.Named(err))
		}
		if said && !told && seen >= last {
			told = true
			if err := fn(Entry{}); err != nil {
				return &link.HandlerError{Err: err}
			}
		}
	}
}

// newest is the revision of the last write; 0 when nothing is left of any.
func (b *Bucket) newest(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s, err := b.c.JetStream.Stream(ctx, bucketStream+b.name)
	if err != nil {
		return 0, err
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 {
		return 0, nil
	}
	return state.LastSeq, nil
}

// newestLeft is the revision of the last write that was not deleted; it may be that of a replica
// that is a little behind.
func (b *Bucket) newestLeft(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	s, err := b.c.JetStream.Stream(ctx, bucketStream+b.name)
	if err != nil {
		return 0, err
	}
	m, err := s.GetLastMsgForSubject(ctx, bucketSubjects+b.name+".>")
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.Sequence, nil
}

func (b *Bucket) fail(op, key string, err error) error {
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound), errors.Is(err, jetstream.ErrKeyDeleted):
		return fmt.Errorf("%s %q in bucket %s: %w", op, key, b.name, ErrNoKey)
	case errors.Is(err, jetstream.ErrKeyExists), errors.Is(err, jetstream.ErrKeyRevisionMismatch):
		return fmt.Errorf("%s %q in bucket %s: %w", op, key, b.name, ErrConflict)
	}
	return fmt.Errorf("%s %q in bucket %s: %w", op, key, b.name, link.Named(err))
}

const hexDigits = "0123456789ABCDEF"

// EscapeKey writes any text with the characters a bucket's keys allow; "=" begins an escape.
func EscapeKey(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			b.WriteByte('=')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

func unescapeKey(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '=' && i+2 < len(s) {
			hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
			if hi >= 0 && lo >= 0 {
				b = append(b, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}
