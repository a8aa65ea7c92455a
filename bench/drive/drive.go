package drive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	"github.com/deltaplane/deltaplane/bench/internal/load"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// driveQueue is the queue that the family drive and the ghz profiles use.
const driveQueue = "bench/ghz"

// Family does to a running queue service what ghz cannot: settle what it
// got. It leaves the queue empty, whatever ghz put into it before.
func Family() harness.Family {
	return harness.Family{
		Name:  "drive",
		About: "Add, Get, Settle cycles on a running queue service (--queue), beside Health/Check",
		Parts: []harness.Part{{Name: "drive", Run: drive}},
	}
}

func drive(ctx context.Context, b *harness.Bench) (err error) {
	conns, err := load.Dial(b.Queue, load.QueueConnections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	c := load.NewCycler(conns, driveQueue)
	if _, err := c.Admin().ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: driveQueue}}); err != nil {
		return fmt.Errorf("queue service at %s: %w", b.Queue, err)
	}
	drained, err := c.Drain(ctx)
	if err != nil {
		return err
	}
	b.Note("drive: %s, %d keys of earlier runs worked off first; %d in flight on %d connections", b.Queue, drained, load.CyclesInFlight, load.QueueConnections)
	rate := func(name string, loop func(context.Context, time.Duration) (load.Turns, error)) harness.Side {
		return harness.Side{Name: name, Run: func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			t, err := loop(ctx, d)
			return map[string]float64{"rate": t.Rate(), "p50": t.Latency.Quantile(.5).Seconds() * 1e3, "p99": t.Latency.Quantile(.99).Seconds() * 1e3}, err
		}}
	}
	t, err := harness.Interleave(ctx, b, b.Plan("drive", 2, 5, time.Second, 5*time.Second),
		rate("health", func(ctx context.Context, d time.Duration) (load.Turns, error) {
			return load.ClosedLoop(ctx, d, load.CyclesInFlight, func(ctx context.Context, caller int) error {
				return healthCheck(ctx, conns[caller%len(conns)])
			})
		}),
		rate("unary", c.Unary),
		rate("work", c.Work),
	)
	if err != nil {
		return err
	}
	third := harness.Scaled(t.Of("health", "rate"), 1./3)
	f := harness.Compare("drive: Add, Get, Settle by unary calls", "cycles/s", t.Of("unary", "rate"), "Health/Check /3", third, nil)
	b.Add(f.With("p50", "ms", t.Of("unary", "p50")).With("p99", "ms", t.Of("unary", "p99")))
	b.Add(harness.Compare("drive: by the Work stream", "cycles/s", t.Of("work", "rate"), "Health/Check", t.Of("health", "rate"), nil))
	return c.Balance(ctx)
}

func healthCheck(ctx context.Context, conn *grpc.ClientConn) error {
	got, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		return err
	}
	if got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("health is %v", got.GetStatus())
	}
	return nil
}
