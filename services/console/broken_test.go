package console_test

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// broken is a connection on which a method can be cut: its streams end, and calls of it fail until
// it is mended.
type broken struct {
	grpc.ClientConnInterface
	method string

	mu   sync.Mutex
	cut  bool                 // guarded by mu
	ends []context.CancelFunc // guarded by mu: of streams
}

func (b *broken) set(cut bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cut = cut
	for _, end := range b.ends {
		end()
	}
	b.ends = nil
}

func (b *broken) may(method string) error {
	if b.cut && method == b.method {
		return status.Error(codes.Unavailable, "the connection is cut")
	}
	return nil
}

func (b *broken) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	b.mu.Lock()
	err := b.may(method)
	b.mu.Unlock()
	if err != nil {
		return err
	}
	return b.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}

func (b *broken) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.may(method); err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	b.ends = append(b.ends, end)
	return b.ClientConnInterface.NewStream(ctx, desc, method, opts...)
}
