package rpc

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// revisable are the streams whose callers are authorized again when that has changed.
type revisable struct {
	version atomic.Int64 // counts the changes

	mu      sync.Mutex // guards streams
	streams map[*openStream]struct{}
}

// openStream is a stream whose caller was authorized.
type openStream struct {
	ctx     context.Context //nolint:containedctx // it is the call's
	method  string
	call    *calling
	revoked atomic.Pointer[error]
}

func newRevisable() *revisable { return &revisable{streams: map[*openStream]struct{}{}} }

// add notes a stream; the function it returns is to be called at its end.
func (r *revisable) add(s *openStream) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams[s] = struct{}{}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.streams, s)
	}
}

// revised authorizes a call that is under way once more.
func (g *guard) revised(ctx context.Context, method string, call *calling) error {
	now, err := g.authorize(ctx, method)
	switch {
	case err != nil:
		return err
	case now.Name() != call.id.Name():
		return withInfo(status.New(codes.Unauthenticated, "the token is another caller's now"), "UNAUTHENTICATED", nil).Err()
	case now != call.id && now.Key() != call.id.Key():
		return withInfo(status.New(codes.Unauthenticated, "the caller's groups are others now: call again"), "UNAUTHENTICATED", nil).Err()
	}
	return call.holds(ctx)
}

// revisions is how many streams are authorized again at once: what decides may be
// a call away.
const revisions = 64

// revise ends the streams of callers that may not have them any more.
func (g *guard) revise() {
	g.revisable.version.Add(1)
	g.revisable.mu.Lock()
	streams := make([]*openStream, 0, len(g.revisable.streams))
	for s := range g.revisable.streams {
		streams = append(streams, s)
	}
	g.revisable.mu.Unlock()
	var ended atomic.Int64
	var group errgroup.Group
	group.SetLimit(revisions)
	for _, s := range streams {
		group.Go(func() error {
			if err := g.revised(s.ctx, s.method, s.call); err != nil && s.ctx.Err() == nil {
				s.end(g.status(s.ctx, s.method, err))
				ended.Add(1)
			}
			return nil
		})
	}
	_ = group.Wait()
	if n := ended.Load(); n > 0 {
		g.log.Warn("streams ended: their callers may not have them any more", slog.Int64("count", n))
	}
}

// end answers a stream. That ends the context of its handler, which may be in the middle of a
// receive, and what the handler still sends or returns is dropped.
func (s *openStream) end(err error) {
	s.revoked.CompareAndSwap(nil, &err)
	if t, ok := grpc.ServerTransportStreamFromContext(s.ctx).(interface{ WriteStatus(st *status.Status) error }); ok {
		_ = t.WriteStatus(status.Convert(err))
	}
}
