package indexer

import (
	"context"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// This file counts the memory of requests that wait: what a watch asks for and
// what its reader knows, calls of Query streams that wait, answers that are not
// sent yet. What they would hold beyond MaxRequestBytes is refused by name.
// Stored bytes that an answer points at are the collection's, and counted there.

const (
	// termCost is about what a term of a selector takes once it was read, knownCost
	// what an entry of a map of strings does beside them.
	termCost, knownCost = 160, 72
	// callCost is what a call of a Query stream takes that waits, beside its request:
	// a goroutine and its context.
	callCost = 4 << 10
	// sendCost is about what the transport holds for an answer that waits, beside the
	// answer; streamCost is what it holds for a call: its stream, headers and trailers.
	sendCost, streamCost = 256, 3 << 10
	// smallAnswer is up to what an answer need not ask for its client's share.
	smallAnswer = 64 << 10
)

// hold takes memory for a client; free gives it back, once.
func (s *Service) hold(client string, n int, what string) (free func(), err error) {
	if l := s.requests.take(client, n); l != nil {
		return nil, s.refuse(errRequestMemory, l, what)
	}
	return func() { s.requests.give(client, n) }, nil
}

// watchCost is about what a watch holds for as long as it is open: its request,
// the selection made from it, and the name of its group.
func watchCost(req *indexv1.WatchRequest) int {
	n := selectorCost(req.GetLabelSelector()) + selectorCost(req.GetFieldSelector())
	for _, list := range [...][]string{req.GetNamespaces(), req.GetIndexValues(), req.GetFieldMask().GetPaths()} {
		for _, text := range list {
			n += 3*len(text) + knownCost
		}
	}
	return n + 3*(len(req.GetCollection())+len(req.GetNamespace())+len(req.GetIndex())+len(req.GetIndexValue()))
}

func selectorCost(text string) int {
	if text == "" {
		return 0
	}
	return 3*len(text) + termCost*(strings.Count(text, ",")+1)
}

// knownSize is about what a reader's knowledge takes.
func knownSize(known map[string]string) int {
	n := 0
	for key, rv := range known {
		n += knownCost + len(key) + len(rv)
	}
	return n
}

// lease is the memory that an answer is counted for until the transport lets go
// of it.
type lease struct {
	from   *quota // nil while there is none
	client string
	n      int
	lent   bool
	after  func() // nil for none; it must not reach the answer
}

// charge counts an answer until it has been sent, and what its call takes beside.
func (s *Service) charge(ctx context.Context, o *out, beside int) error {
	n := o.own() + beside + sendCost
	if n <= smallAnswer && s.requests.lend(n) {
		*o.lease = lease{from: &s.requests, n: n, lent: true}
		return nil
	}
	client := rpc.Client(ctx)
	if l := s.requests.take(client, n); l != nil {
		return s.refuse(errRequestMemory, l, "answers wait to be sent")
	}
	*o.lease = lease{from: &s.requests, client: client, n: n}
	return nil
}

// end gives back what is held.
func (l *lease) end() {
	switch {
	case l.from == nil:
	case l.lent:
		l.from.giveLent(l.n)
	default:
		l.from.give(l.client, l.n)
	}
	if l.after != nil {
		l.after()
	}
	*l = lease{}
}
