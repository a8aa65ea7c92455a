package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/cmd/deltaplane/internal/cli"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// crowd is a store of many queues, none of which knows any key.
type crowd struct {
	queuev1.UnimplementedQueueAdminServiceServer
	queues int
	asked  atomic.Int64
}

func (c *crowd) ListQueues(context.Context, *queuev1.ListQueuesRequest) (*queuev1.ListQueuesResponse, error) {
	out := &queuev1.ListQueuesResponse{}
	for i := range c.queues {
		out.Queues = append(out.Queues, &queuev1.QueueStatus{Config: &queuev1.QueueConfig{Name: fmt.Sprintf("dev/q%03d", i)}})
	}
	return out, nil
}

func (c *crowd) Inspect(_ context.Context, r *queuev1.InspectRequest) (*queuev1.InspectResponse, error) {
	c.asked.Add(1)
	return &queuev1.InspectResponse{Item: &queuev1.Item{Key: r.GetKey(), State: queuev1.State_STATE_IDLE}}, nil
}

func TestWhySaysHowManyQueuesItDidNotAsk(t *testing.T) {
	t.Parallel()
	for queues, unasked := range map[int]int{200: 0, 207: 7} {
		c := &crowd{queues: queues}
		addr := servedAt(t, func(s *grpc.Server) { queuev1.RegisterQueueAdminServiceServer(s, c) })
		line := []string{"why", "dev/pods.v1", "default/web", "--timeout", "1m", "--queue-url", addr, "--index-url", addr, "--reflector-url", addr}
		out, errs, code := command(t.Context(), "", line...)
		if code != cli.ExitOK || c.asked.Load() != 200 || strings.Contains(out, "and not 7 more") != (unasked > 0) || strings.Contains(out, "No queue that answered knows") == (unasked > 0) {
			t.Errorf("%d queues, %d asked, exit %d, %s:\n%s", queues, c.asked.Load(), code, errs, out)
		}
		var a struct {
			Unasked int `json:"queues_not_asked"`
		}
		if out, _, _ := command(t.Context(), "", append(line, "-o", "json")...); json.Unmarshal([]byte(out), &a) != nil || a.Unasked != unasked {
			t.Errorf("%d queues: %s", queues, out)
		}
	}
}
