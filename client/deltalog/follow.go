package deltalog

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
)

// Position is a place in the log of a collection. The zero value is before its first record.
type Position struct {
	delta.Position
	// Created is when the log was made: a log made at another time is another log.
	Created time.Time
	// Fresh is when the place was current.
	Fresh time.Time
}

// Follow reads the log of a collection, without payloads, from behind a place until ctx ends, which
// is no error, or the handler fails. The handler gets batches in order, each with the place to go
// on from. It waits for a log that does not exist yet and reconnects for as long as it takes. Where
// the place is lost, because the log began again or keeps deletions no longer, reading begins at
// the start with a batch that has Reset set, as it does from the zero place, and the batch with
// Replayed ends the state.
func (c *Conn) Follow(ctx context.Context, collection delta.Collection, from Position, handler func(context.Context, delta.Batch, Position) error) error {
	at := from
	return c.stream.Read(ctx, collection, stream.ReadConfig{
		From: from.Position, FromTime: from.Fresh, Created: from.Created, HeadersOnly: true,
	}, func(ctx context.Context, b delta.Batch) error {
		if b.Reset {
			at = Position{}
		}
		if n := len(b.Records); n > 0 {
			at.Position = b.Records[n-1].Position()
		}
		if b.Next > 0 {
			at.Sequence = b.Next - 1
		}
		if !b.Created.IsZero() {
			at.Created = b.Created
		}
		at.Fresh = time.Now()
		return handler(ctx, b, at)
	})
}
