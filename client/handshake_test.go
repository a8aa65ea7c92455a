package client

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// greeted is a stream whose server answers once it wants to.
type greeted struct {
	grpc.BidiStreamingClient[queuev1.WorkRequest, queuev1.WorkResponse]
	ctx   context.Context //nolint:containedctx // a stream has one
	sends error
	after time.Duration
	says  error
}

func (g *greeted) Send(*queuev1.WorkRequest) error { return g.sends }

func (g *greeted) Recv() (*queuev1.WorkResponse, error) {
	select {
	case <-time.After(g.after):
		return &queuev1.WorkResponse{}, g.says
	case <-g.ctx.Done():
		return nil, status.FromContextError(g.ctx.Err()).Err()
	}
}

func TestAStreamIsWelcomedInTimeOrSaysWhy(t *testing.T) {
	t.Parallel()
	refusal := status.Error(codes.InvalidArgument, "hello.queues is empty")
	for _, c := range []struct {
		name  string
		opens error
		sends error
		after time.Duration
		says  error
		want  string // of the error; "" for none
	}{
		{name: "at once"},
		{name: "late", after: welcomeTimeout - time.Second},
		{name: "too late", after: welcomeTimeout + time.Second, want: "no welcome in 10s"},
		{name: "not opened", opens: status.Error(codes.Unavailable, "away"), want: "away"},
		{name: "refused", says: refusal, want: "hello.queues"},
		{name: "refused before the hello was sent", sends: io.EOF, says: refusal, want: "hello.queues"},
		{name: "not sent", sends: status.Error(codes.Internal, "too large"), want: "too large"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				open := func(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[queuev1.WorkRequest, queuev1.WorkResponse], error) {
					if c.opens != nil {
						return nil, c.opens
					}
					return &greeted{ctx: ctx, sends: c.sends, after: c.after, says: c.says}, nil
				}
				s, resp, err := handshake(ctx, cancel, open, func() *queuev1.WorkRequest { return &queuev1.WorkRequest{} })
				if c.want == "" {
					if err != nil || s == nil || resp == nil || ctx.Err() != nil {
						t.Errorf("handshake = %v, %v, %v", s, resp, err)
					}
					return
				}
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("handshake = %v, want %q", err, c.want)
				}
			})
		})
	}
}
