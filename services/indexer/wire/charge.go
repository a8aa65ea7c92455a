package wire

import (
	"context"

	"github.com/deltaplane/deltaplane/internal/rpc"
	"github.com/deltaplane/deltaplane/services/indexer/limit"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// This file counts the memory of requests that wait: what a watch asks for and
// what its reader knows, calls of Query streams that wait, answers that are not
// sent yet. What they would hold beyond MaxRequestBytes is refused by name.
// Stored bytes that an answer points at are the collection's, and counted there.

const (
	// callCost is what a call of a Query stream takes that waits, beside its request:
	// a goroutine and its context.
	callCost = 4 << 10
	// sendCost is about what the transport holds for an answer that waits, beside the
	// answer; streamCost is what it holds for a call: its stream, headers and trailers.
	sendCost, streamCost = 256, 3 << 10
	// smallAnswer is up to what an answer need not ask for its client's share.
	smallAnswer = 64 << 10
)

// charge counts an answer until it has been sent, and what its call takes beside.
func (s *server) charge(ctx context.Context, o *message.Writer, beside int) error {
	n := o.Own() + beside + sendCost
	if n <= smallAnswer && s.requests.Lend(n) {
		*o.Lease = limit.Lease{From: s.requests, N: n, Lent: true}
		return nil
	}
	client := rpc.Client(ctx)
	if l := s.requests.Take(client, n); l != nil {
		return s.requests.Refuse(l, "answers wait to be sent")
	}
	*o.Lease = limit.Lease{From: s.requests, Client: client, N: n}
	return nil
}
