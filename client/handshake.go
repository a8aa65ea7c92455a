package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/internal/rpc"
)

// welcomeTimeout is how long a stream may take to be opened and welcomed.
const welcomeTimeout = 10 * time.Second

// handshake opens a stream, says hello, and returns the first answer. Cancel must end
// ctx, and is called when that takes too long.
func handshake[Req, Resp any](
	ctx context.Context, cancel context.CancelFunc,
	open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Resp], error), hello func() *Req,
) (grpc.BidiStreamingClient[Req, Resp], *Resp, error) {
	timer := time.AfterFunc(welcomeTimeout, cancel)
	defer timer.Stop()
	s, err := open(ctx)
	if err == nil {
		err = s.Send(hello())
	}
	if err == nil || s != nil && errors.Is(err, io.EOF) { // Recv knows why it ended
		var resp *Resp
		if resp, err = s.Recv(); err == nil {
			return s, resp, nil
		}
	}
	if !timer.Stop() && rpc.Code(err) == codes.Canceled {
		err = fmt.Errorf("client: no welcome in %v", welcomeTimeout)
	}
	return nil, nil, err
}
