package stream

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/kv"
	"github.com/deltaplane/deltaplane/internal/stream/lease"
	"github.com/deltaplane/deltaplane/internal/stream/link"
	"github.com/deltaplane/deltaplane/internal/stream/read"
	"github.com/deltaplane/deltaplane/internal/stream/write"
)

// Conn is a connection to the log. It is safe for concurrent use and reconnects for as long as it
// is open.
type Conn struct {
	link   *link.Conn
	leases *lease.Elections
}

// Connect opens a connection. It fails when the server cannot be reached before ctx ends or within
// the first attempt, or refuses, unless the configuration says Retry; afterwards the connection
// heals itself, also from a refusal. A server without JetStream is not refused: what needs it fails
// with [ErrNoJetStream] and goes on trying.
func Connect(ctx context.Context, cfg Config) (*Conn, error) {
	c, err := link.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Conn{link: c, leases: lease.New(c)}, nil
}

// Close ends the connection; what runs on it fails.
func (c *Conn) Close() {
	c.leases.Close()
	c.link.Close()
}

// Reconnected is closed at the next reconnect.
func (c *Conn) Reconnected() <-chan struct{} { return c.link.Reconnected() }

// Healthy reports whether the connection is up at this moment.
func (c *Conn) Healthy() bool { return c.link.Healthy() }

// Away is nil while the connection is up, and else names the servers and what the last attempt to
// reach one met with.
func (c *Conn) Away() error { return c.link.Away() }

// FollowHealth calls f with whether the connection is up: now, and at each change until ctx ends.
func (c *Conn) FollowHealth(ctx context.Context, f func(up bool)) { c.link.FollowHealth(ctx, f) }

// TombstoneTTL is how long deletions stay in the log.
func (c *Conn) TombstoneTTL() time.Duration { return c.link.TombstoneTTL() }

// MaxPayload is the largest payload in bytes that fits into a record, by our configuration and the
// server's.
func (c *Conn) MaxPayload() int { return c.link.MaxPayload() }

// Encrypts reports whether the payloads of col are encrypted in the log.
func (c *Conn) Encrypts(col delta.Collection) bool { return c.link.Encrypts(col) }

// CheckKeys returns why the file of encryption keys, as it is now, cannot be used; the keys of
// before are used meanwhile.
func (c *Conn) CheckKeys() error { return c.link.Config.Encryption.Check() }

// Key is the key that payloads of col are encrypted with at present, as [delta.Record] names it;
// empty where they are not.
func (c *Conn) Key(col delta.Collection) string { return c.link.Key(col) }

// Hash is the hash under which a payload of col is published: where payloads are encrypted, nobody
// without the key can try by it what a payload is.
func (c *Conn) Hash(col delta.Collection, hash uint64) uint64 { return c.link.Hash(col, hash) }

// Collections lists the collections that have a log, in no particular order.
func (c *Conn) Collections(ctx context.Context) ([]delta.Collection, error) {
	return c.link.Collections(ctx)
}

// Tail reads the state of col's log from the stream's leader; [ErrNoLog] when there is none.
func (c *Conn) Tail(ctx context.Context, col delta.Collection) (Tail, error) {
	return c.link.Tail(ctx, col)
}

// Remove deletes the collection's log. Readers get a reset when it is made again.
func (c *Conn) Remove(ctx context.Context, col delta.Collection) error {
	return c.link.Remove(ctx, col)
}

// Bucket opens the named bucket (letters, digits, "-", "_"), made on first use. A ttl over 0 drops
// keys that old.
func (c *Conn) Bucket(ctx context.Context, name string, ttl time.Duration) (*Bucket, error) {
	return kv.Open(ctx, c.link, name, ttl)
}

// Read follows the log of col until ctx ends (then it returns nil) or the handler fails (then it
// returns that error). It waits for a log that does not exist yet and reconnects with back-off for
// ever. When the place it reads from is lost (a new epoch, a newer term that began at or below its
// position, a log made again, an absence longer than half the tombstone TTL) it starts again from
// the beginning with a batch that has Reset set; the first batch of a read without From has Reset
// too. The end of every replay is reported by a batch with Replayed set.
//
// A record that needs a later build is never passed over: the read stands still before it, says so
// by batches with Newer set, and tries again with back-off. While the log's leader announces such
// records, what the handler holds is not begun again.
func (c *Conn) Read(ctx context.Context, col delta.Collection, cfg ReadConfig, h Handler) error {
	return read.Log(ctx, c.link, col, cfg, h)
}

// Check tells whether a position can be resumed: nil, or an error wrapping [ErrBootstrap] or
// [ErrNoLog].
func (c *Conn) Check(ctx context.Context, col delta.Collection, from delta.Position) error {
	return read.Check(ctx, c.link, col, from)
}

// Consume hands every record of the collections to one of the replicas that share cfg.Name, at
// least once, and acknowledges a batch after the handler returned nil; on an error the batch comes
// again after a back-off. Handlers of different collections run concurrently. It returns nil when
// ctx ends.
func (c *Conn) Consume(ctx context.Context, cfg ConsumeConfig, handler func(context.Context, Work) error) error {
	return read.Consume(ctx, c.link, cfg, handler)
}

// Writer takes the log over for a term: it makes the log when there is none, fences it against
// every append an earlier leader may still have under way, appends the term record and awaits its
// acknowledgement. A new epoch begins when the log is new, ends below cfg.Acked, or cfg asks for
// it; [Writer.Fresh] tells.
func (c *Conn) Writer(ctx context.Context, col delta.Collection, cfg WriterConfig) (*Writer, error) {
	return write.New(ctx, c.link, col, cfg)
}

// Lease waits until the lease is free, its holder is gone, or silent for too long, takes it and
// keeps renewing it. The term is the revision of the write that took it, or more when Floor asks
// for it, so it grows even if the bucket was lost. It returns only on success, when ctx ends, or
// when no connection for leases can be made.
//
// A holder is gone when the server knows nobody who answers its pings; it is silent when it has not
// answered for the ping timeout, or, whatever it answers, has not renewed for the TTL. Taking the
// lease from somebody who lives costs a change of leader and nothing else: the log is fenced.
func (c *Conn) Lease(ctx context.Context, cfg LeaseConfig) (*Lease, error) {
	return c.leases.Lease(ctx, cfg)
}
