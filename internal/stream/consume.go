package stream

import (
	"context"
	"errors"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
)

// Gap says why the keys named so far may not be all that matter: the consumer's owner must enqueue every key.
type Gap string

// The reasons for a gap. Empty means none.
const (
	// GapNew: the durable consumer did not exist before.
	GapNew Gap = "new_consumer"
	// GapEpoch: the log's epoch is not the one this consumer last acknowledged.
	GapEpoch Gap = "new_epoch"
	// GapLag: more than the tombstone TTL has passed since this consumer last acknowledged a record.
	GapLag Gap = "lag"
	// GapLost: the log was made anew, so the consumer was too.
	GapLost Gap = "log_lost"
)

// Work is one batch for a shared durable consumer.
type Work struct {
	Collection delta.Collection
	// Records of kind delta, in the order the server handed them out; a record comes again when its batch was not acknowledged.
	Records []delta.Record
	// Gap is set on the first batch after a gap was found, which may have no records, and again until the handler returned nil for it.
	Gap Gap
	// Epoch is the log's epoch when the batch was read.
	Epoch uint64
}

// ConsumeConfig names a shared durable consumer.
type ConsumeConfig struct {
	// Name of the consumer, shared by its replicas: letters, digits, "-" and "_".
	Name string
	// Collections to consume; one that has no log yet is waited for.
	Collections []delta.Collection
	// HeadersOnly leaves the payloads out.
	HeadersOnly bool
	// MaxBatch bounds the records of one batch; default 256.
	MaxBatch int
	// AckWait is how long a batch may take before its records are handed to another replica; default 30 s.
	AckWait time.Duration
}

// Consume hands every record of the collections to one of the replicas that share cfg.Name, at least once, and acknowledges a batch
// after the handler returned nil; on an error the batch comes again after a back-off. Handlers of different collections run
// concurrently. It returns nil when ctx ends.
func (c *Conn) Consume(ctx context.Context, cfg ConsumeConfig, handler func(context.Context, Work) error) error {
	return errors.ErrUnsupported
}
