package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// grpc-go bounds messages by server and not by method. Here a message is read whose length is known
// to be within the method's bound: what is longer is refused by its first five bytes.

// transportStream is the part of grpc-go's stream that messages are read from. Where a stream of
// another version lacks it the server's bound holds alone.
type transportStream interface {
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// bounded returns how messages of one call are read that have at most largest bytes. Without more
// there is one message and the client's end.
func (g *guard) bounded(ctx context.Context, read func(any) error, largest int, more bool) func(any) error {
	s, ok := grpc.ServerTransportStreamFromContext(ctx).(transportStream)
	if !ok {
		return read
	}
	return func(m any) error { return g.receive(s, m, largest, more) }
}

func (g *guard) receive(s transportStream, m any, largest int, more bool) error {
	data, err := message(s, largest)
	switch {
	case errors.Is(err, io.EOF) && more:
		return io.EOF
	case errors.Is(err, io.EOF):
		return status.Error(codes.Internal, "the call has no message")
	case err != nil:
		return received(err)
	}
	err = g.unmarshal(data, m)
	data.Free()
	if err != nil {
		return status.Errorf(codes.Internal, "cannot read the message: %v", err)
	}
	if more {
		return nil
	}
	var head [messageHead]byte
	switch err := s.ReadMessageHeader(head[:]); {
	case err == nil:
		return status.Error(codes.Internal, "the call has more than one message")
	case errors.Is(err, io.EOF):
		return nil
	default:
		return received(err)
	}
}

// messageHead is what gRPC puts before a message: a flag and the length.
const messageHead = 5

func message(s transportStream, largest int) (mem.BufferSlice, error) {
	var head [messageHead]byte
	if err := s.ReadMessageHeader(head[:]); err != nil {
		return nil, err
	}
	if head[0] != 0 {
		return nil, errCompressed
	}
	n := binary.BigEndian.Uint32(head[1:])
	if uint64(n) > uint64(largest) {
		return nil, status.Errorf(codes.ResourceExhausted, "the message has %d bytes, this method takes %d", n, largest)
	}
	data, err := s.Read(int(n))
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// received is the status of an error of the transport.
func received(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return status.Error(codes.Internal, "the message ends early")
	}
	return status.Error(codes.Unavailable, err.Error())
}

// boundedStream is a stream whose messages are read within a bound.
type boundedStream struct {
	grpc.ServerStream
	read func(any) error
}

// RecvMsg implements grpc.ServerStream.
func (s *boundedStream) RecvMsg(m any) error { return s.read(m) }
