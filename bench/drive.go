package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// driveQueue is the queue that the family drive and the ghz profiles use.
const driveQueue = "bench/ghz"

// driveFamily does to a running queue service what ghz cannot: settle what it
// got. It leaves the queue empty, whatever ghz put into it before.
func driveFamily() family {
	return family{
		name:  "drive",
		about: "Add, Get, Settle cycles on a running queue service (--queue), beside Health/Check",
		parts: []part{{"drive", drive}},
	}
}

func drive(ctx context.Context, b *bench) (err error) {
	conns, err := dial(b.queue, queueConnections)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conns.Close()) }()
	c := newCycler(conns, driveQueue)
	if _, err := c.client(0).ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Config: &queuev1.QueueConfig{Name: driveQueue}}); err != nil {
		return fmt.Errorf("queue service at %s: %w", b.queue, err)
	}
	drained, err := c.drain(ctx)
	if err != nil {
		return err
	}
	b.note("drive: %s, %d keys of earlier runs worked off first; %d in flight on %d connections", b.queue, drained, cyclesInFlight, queueConnections)
	rate := func(name string, loop func(context.Context, time.Duration) (turns, error)) side {
		return side{name, func(ctx context.Context, d time.Duration) (map[string]float64, error) {
			t, err := loop(ctx, d)
			return map[string]float64{"rate": t.rate(), "p50": t.latency.quantile(.5).Seconds() * 1e3, "p99": t.latency.quantile(.99).Seconds() * 1e3}, err
		}}
	}
	t, err := interleave(ctx, b, b.plan("drive", 2, 5, time.Second, 5*time.Second),
		rate("health", func(ctx context.Context, d time.Duration) (turns, error) {
			return closedLoop(ctx, d, cyclesInFlight, func(ctx context.Context, caller int) error {
				return healthCheck(ctx, conns[caller%len(conns)])
			})
		}),
		rate("unary", c.unary),
		rate("work", c.work),
	)
	if err != nil {
		return err
	}
	third := scaled(t.of("health", "rate"), 1./3)
	f := compare("drive: Add, Get, Settle by unary calls", "cycles/s", t.of("unary", "rate"), "Health/Check /3", third, nil)
	b.add(f.with("p50", "ms", t.of("unary", "p50")).with("p99", "ms", t.of("unary", "p99")))
	b.add(compare("drive: by the Work stream", "cycles/s", t.of("work", "rate"), "Health/Check", t.of("health", "rate"), nil))
	return c.balance(ctx)
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

// drain works off everything the queue holds. Keys that somebody else holds it
// waits for until their leases end.
func (c *cycler) drain(ctx context.Context) (int, error) {
	q := c.client(0)
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for n := 0; ; {
		got, err := q.Get(limited, &queuev1.GetRequest{Queue: c.queue, SessionId: c.session, MaxItems: 1000})
		if err != nil {
			return n, err
		}
		if len(got.GetLeases()) > 0 {
			if _, err := q.Settle(limited, &queuev1.SettleRequest{SessionId: c.session, Settlements: settlements(got.GetLeases())}); err != nil {
				return n, err
			}
			n += len(got.GetLeases())
			continue
		}
		held, err := q.Len(limited, &queuev1.LenRequest{Queue: c.queue})
		if err != nil {
			return n, err
		}
		if held.GetCounts().GetReady()+held.GetCounts().GetProcessing() == 0 {
			return n, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-limited.Done():
			return n, fmt.Errorf("queue %s: %d keys are still held: %w", c.queue, held.GetCounts().GetProcessing(), limited.Err())
		}
	}
}
