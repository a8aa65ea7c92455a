package testing

import (
	"context"
	"io"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// breakable is a stream that can break as if its connection had.
type breakable struct {
	grpc.ClientStream
	ctx    context.Context //nolint:containedctx // the stream's
	cancel context.CancelFunc
	broken atomic.Bool
}

// newBreakable opens a stream. It ends with ctx, and tells ended so.
func newBreakable(ctx context.Context, open func(context.Context) (grpc.ClientStream, error), ended func()) (*breakable, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	if ended != nil {
		context.AfterFunc(ctx, ended)
	}
	return &breakable{ClientStream: s, ctx: ctx, cancel: cancel}, nil
}

var errBroken = status.Error(codes.Unavailable, "the connection broke (package client/testing broke it)")

// tear breaks the stream. The server sees it cancelled.
func (s *breakable) tear() {
	s.broken.Store(true)
	s.cancel()
}

// SendMsg implements grpc.ClientStream.
func (s *breakable) SendMsg(m any) error {
	if s.broken.Load() {
		return io.EOF
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements grpc.ClientStream.
func (s *breakable) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.broken.Load() {
		err = errBroken
	}
	if err != nil {
		s.cancel()
	}
	return err
}
