package top

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// remote is a queue server some way off, of whose queues one hangs.
type remote struct {
	queuev1.QueueAdminServiceClient
	trip  time.Duration
	hangs string
}

func (r remote) ListItems(ctx context.Context, in *queuev1.ListItemsRequest, _ ...grpc.CallOption) (*queuev1.ListItemsResponse, error) {
	trip := time.After(r.trip)
	if in.GetQueue() == r.hangs {
		trip = nil
	}
	select {
	case <-trip:
		return &queuev1.ListItemsResponse{Items: []*queuev1.Item{{Key: "ns/k"}}}, nil
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

func TestKeysBehindASlowLinkAreLookedAtWithinTheTimeout(t *testing.T) {
	t.Parallel()
	for hangs, want := range map[string][3]int{"": {20, 10, 0}, "dev/q3": {18, 9, 3}} {
		synctest.Test(t, func(t *testing.T) {
			s := &sample{queues: &queuev1.ListQueuesResponse{}}
			for i := range mostQueues {
				s.queues.Queues = append(s.queues.Queues, &queuev1.QueueStatus{
					Config: &queuev1.QueueConfig{Name: fmt.Sprintf("dev/q%d", i)}, Counts: &queuev1.Counts{Processing: 1, Dirty: 1, Delayed: 1},
				})
			}
			ctx, cancel := context.WithTimeout(t.Context(), every)
			defer cancel()
			err := s.keys(ctx, remote{trip: every / 8, hangs: hangs}) // 30 calls
			if got := [3]int{len(s.held), len(s.backoffs), int(s.unlooked)}; err != nil || got != want {
				t.Errorf("where %q hangs, held, delayed and not looked at are %v, want %v; %v", hangs, got, want, err)
			}
		})
	}
}

func TestAPanicOfACallIsThatPartsFault(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"ListQueues", "ListItems", "ListReflections"} {
		d := &cli.DialFlags{Reflector: "passthrough:///r", Index: "passthrough:///i", Queue: "passthrough:///q", Timeout: time.Minute}
		d.Config.Extra = []grpc.DialOption{grpc.WithUnaryInterceptor(func(_ context.Context, method string, _, reply any, _ *grpc.ClientConn, _ grpc.UnaryInvoker, _ ...grpc.CallOption) error {
			if strings.HasSuffix(method, where) {
				panic("here")
			}
			if all, ok := reply.(*queuev1.ListQueuesResponse); ok {
				all.Queues = []*queuev1.QueueStatus{{Config: &queuev1.QueueConfig{Name: "dev/a"}, Counts: &queuev1.Counts{Delayed: 1}}}
			}
			return nil
		})}
		p, err := connect(d)
		if err != nil {
			t.Fatal(err)
		}
		s := p.ask(t.Context())
		p.close()
		if len(s.silent) != 1 || s.silent[0].Why != "is not understood: panic: here" {
			t.Errorf("panicking in %s, silent are %v", where, s.silent)
		}
	}
}
