package indexer

import (
	"context"
	"runtime"
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
	// smallAnswer is what an answer may take without being counted. Those are
	// bounded by how many calls a client may make.
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

// lease is memory that an answer holds until the transport lets go of it.
type lease struct {
	end     func()
	cleanup runtime.Cleanup
}

// charge counts an answer until it has been sent.
func (s *Service) charge(ctx context.Context, o *out) error {
	n := o.own()
	if n <= smallAnswer {
		return nil
	}
	free, err := s.hold(rpc.Client(ctx), n, "answers wait to be sent")
	if err != nil {
		return err
	}
	o.lease = &lease{end: free}
	// An answer whose connection breaks may be left to the collector.
	o.lease.cleanup = runtime.AddCleanup(o.lease, func(free func()) { free() }, free)
	return nil
}

func (l *lease) release() {
	l.cleanup.Stop()
	l.end()
}
