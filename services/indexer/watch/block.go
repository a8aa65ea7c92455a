package watch

import (
	"time"

	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// block is some changes of a group made ready for the wire.
type block struct {
	message.Events
	n           int    // of the events
	left        int    // cursors that have not taken it
	first, last uint64 // numbers of the changes
	at          place  // behind it; zero within a state
	bounds      bounds
	made        time.Time
}

// newBlock writes events, and where a reader is behind them.
func newBlock(events []message.Event, at place, b bounds) *block {
	return writeBlock(events, false, at, b)
}

// writeBlock is newBlock that also says whether earlier events were left out.
func writeBlock(events []message.Event, folded bool, at place, b bounds) *block {
	return &block{Events: message.EncodeEvents(events, folded, behind(at, b)), n: len(events), at: at, bounds: b, made: time.Now()}
}

// behind is what a message says of a reader that has it.
func behind(at place, b bounds) message.Trailer {
	return message.Trailer{At: at.at, Told: at.told, Selection: at.selection, Scope: at.scope, Revision: b.revision, Upper: b.upper}
}

// merge makes one message of several blocks.
func merge(blocks []*block) *message.Frame {
	list := make([]*message.Events, len(blocks))
	for i, b := range blocks {
		list[i] = &b.Events
	}
	return message.MergeEvents(list)
}
