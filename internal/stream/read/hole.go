package read

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

// holeEnd is what a reader of a replicated log knows behind a hole. A hole is where records were
// replaced before they were read; the revision may move again once those that replaced them have
// been read. All of them were in the store of the server that feeds the reader when it left the
// hole out. The end of the log is not the place to wait for: the log's leader says it, and its
// store may be behind that server's, because every server of a group applies what was agreed on at
// its own pace. It is certain that all have been read once
//   - two records of one subject were read behind the hole. The first was in the store, or came
//     later; a store keeps one record of a subject, so that the second came after all that were
//     there. Or
//   - the feeding server has nothing more to send, and the leader holds nothing beyond it.
//
// The end that the leader says must be reached as well: a server that is catching up with the
// others leaves out what was replaced there, and has less than they.
type holeEnd struct {
	open  bool
	read  map[subject]struct{} // behind the last hole
	twice bool                 // two of one subject were
	// least must be read too. It is set when another consumer found the hole, whose server may have
	// been ahead of this one's and of the leader: the end as the leader says, and what a writer may
	// have under way.
	least uint64
}

// subject names what the log keeps one record of.
type subject struct {
	kind delta.Kind
	key  delta.Key
}

// begin notes a hole in front of the next record.
func (h *holeEnd) begin() {
	h.open, h.twice = true, false
	if len(h.read) < 64 { // to clear a map costs what it could hold
		clear(h.read)
	} else {
		h.read = nil
	}
}

// inherit goes on with a hole that another consumer found. last is the log's end as the leader says
// now.
func (h *holeEnd) inherit(last uint64) {
	if h.open {
		h.begin()
		h.least = last + link.MaxInFlight
	}
}

// saw takes a record that was read behind the hole.
func (h *holeEnd) saw(r *delta.Record) {
	if !h.open {
		return
	}
	if !h.twice {
		if h.read == nil {
			h.read = map[subject]struct{}{}
		}
		n := len(h.read)
		h.read[subject{r.Kind, r.Key}] = struct{}{}
		h.twice = len(h.read) == n
	}
	if h.twice && r.Sequence >= h.least {
		h.close()
	}
}

func (h *holeEnd) close() { *h = holeEnd{} }

// exhausted reports whether there is nothing more to read: the server that feeds the consumer has
// sent all it has, and the leader holds nothing beyond it. tail was read before.
//
// That the server counts nothing as pending proves neither: a record that is replaced is taken off
// the count at once, the one that replaces it is added later, so that the count of nats-server
// 2.15.2 is 0 for a while with 150 records to send. The leader's store says the rest. The server
// that feeds a replicated log's consumer may be ahead of the leader; it is asked twice, with a
// request for records waiting there meanwhile, for which it would have sent what it had.
func (r *reader) exhausted(ctx context.Context, cons jetstream.Consumer, tail link.Tail) (bool, error) {
	info, err := cons.Info(ctx)
	if err != nil {
		return false, err
	}
	calm := r.calm
	r.calm = false
	switch {
	case info.Delivered.Consumer != r.consumerSeq:
		return false, nil // on its way
	case info.NumPending > 0:
		return false, r.widen(ctx)
	case r.replicas > 1 && !calm:
		r.calm = info.NumWaiting > 0
		return false, nil
	case tail.Last <= r.pos.Sequence:
		return true, nil
	}
	next, err := r.c.Message(ctx, r.col, struct {
		Seq     uint64 `json:"seq"`
		NextFor string `json:"next_by_subj"`
	}{r.pos.Sequence + 1, ">"})
	return err == nil && next == nil, err // what lay there may have expired
}

// widen ends a session whose next record the server does not send because it is larger than a
// request: the log was configured for larger records when it was written. The server answers such
// requests, and says only that.
func (r *reader) widen(ctx context.Context) error {
	was := r.stuck
	if r.stuck = true; !was || r.pull == 0 || r.fits > r.pos.Sequence {
		return nil // it may be about to send it
	}
	log, err := r.c.JetStream.Stream(ctx, r.col.StreamName())
	if err != nil {
		return err
	}
	// Any server that has the record may answer, with the record as it is: the leader's answer is
	// JSON, of which so much takes seconds.
	next, err := log.GetMsg(ctx, r.pos.Sequence+1, jetstream.WithGetMsgSubject(">"))
	switch {
	case err == nil && len(next.Data)+link.HeaderRoom > r.pull:
		r.largest = len(next.Data) + link.HeaderRoom
		return fmt.Errorf("%w: %d bytes, %d are requested", errNarrow, len(next.Data), r.pull)
	case err == nil:
		r.fits = next.Sequence
	}
	return nil // whatever it was is asked again, or is not there any more
}
