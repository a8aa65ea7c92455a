package stream

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Handler takes a batch of a collection's log. Batches come in order, one at a time, never empty of both records and
// flags. The records and their payloads may be kept but not changed. An error ends the read and is returned by it.
type Handler func(ctx context.Context, b delta.Batch) error

// ReadConfig says where and how to read. The zero value replays the log from its start and follows it.
type ReadConfig struct {
	// From is the position to resume behind; zero replays from the start.
	From delta.Position
	// FromTime is when From was current. A position older than half the tombstone TTL is not resumed (design 6.4). The zero time
	// means "just now".
	FromTime time.Time
	// HeadersOnly leaves the payloads out.
	HeadersOnly bool
	// MaxBatch bounds the records of one batch; default 1024.
	MaxBatch int
	// PullBytes bounds what the server sends ahead; default 4 MiB.
	PullBytes int
}

// Read follows the log of col until ctx ends (then it returns nil) or the handler fails (then it returns that error). It waits for a log
// that does not exist yet and reconnects with back-off for ever. When the place it reads from is lost (a new epoch, a newer term that
// began at or below its position, a log made anew, an absence longer than half the tombstone TTL) it starts again from the
// beginning with a batch that has Reset set; the first batch of a read without From has Reset too. The end of every
// replay is reported by a batch with Replayed set.
func (c *Conn) Read(ctx context.Context, col delta.Collection, cfg ReadConfig, h Handler) error {
	return errors.ErrUnsupported
}

// Check tells whether a position can be resumed: nil, or an error wrapping [ErrBootstrap] or [ErrNoLog].
func (c *Conn) Check(ctx context.Context, col delta.Collection, from delta.Position) error {
	return errors.ErrUnsupported
}

// Tail reads the state of col's log; [ErrNoLog] when there is none.
func (c *Conn) Tail(ctx context.Context, col delta.Collection) (Tail, error) {
	return Tail{}, errors.ErrUnsupported
}
