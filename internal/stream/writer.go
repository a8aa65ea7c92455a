package stream

import (
	"context"

	"github.com/deltaplane/deltaplane/core/delta"
)

// MaxInFlight is how many appends a writer may have unacknowledged. It is a constant of the protocol: a new leader fences the log by
// writing one record more than that, so every writer must keep to it.
const MaxInFlight = 256

// Tail is the state of a log.
type Tail struct {
	// First and Last are the log's sequences; Last is 0 for a log nothing was ever written to.
	First, Last uint64
	// Messages is how many records the log holds.
	Messages uint64
	// Epoch, Term and Start are those of the last term record; 0 without one.
	Epoch, Term, Start uint64
}

var _ = context.Background
var _ delta.Collection
