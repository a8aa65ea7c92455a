package admin

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/deltaplane/deltaplane/core/workqueue"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
	"github.com/deltaplane/deltaplane/services/queue/engine"
	"github.com/deltaplane/deltaplane/services/queue/metrics"
	"github.com/deltaplane/deltaplane/services/queue/wire"
)

const (
	maxDrain  = 24 * time.Hour
	minReport = 100 * time.Millisecond
	maxReport = time.Minute
	// minLookInterval is the least time between two looks at a queue that drains.
	minLookInterval = 20 * time.Millisecond
	// lastReport is how much of a call's deadline is kept for its last report,
	// when a tenth is more.
	lastReport = time.Second
	// maxAwaited is how far delayed keys that are waited for are counted, when
	// not all of them are.
	maxAwaited = 1000
	itemsPage  = 128
)

// drain is one DrainQueue call.
type drain struct {
	s       *Server
	queue   string
	every   time.Duration
	all     bool  // every delayed key is waited for
	within  int64 // else those due this long after the beginning, in microseconds
	horizon int64 // that, by the store's clock; zero until it is known
}

// DrainQueue implements the QueueAdminService.
func (s *Server) DrainQueue(r *queuev1.DrainQueueRequest, stream grpc.ServerStreamingServer[queuev1.DrainQueueResponse]) error {
	ctx := stream.Context()
	if err := s.Permit.Ask(ctx, wire.VerbAdminister, r.GetQueue()); err != nil {
		return err
	}
	c := &wire.Checks{}
	c.Queue("queue", r.GetQueue())
	timeout := c.Duration("timeout", r.GetTimeout(), maxDrain)
	d := drain{
		s: s, queue: r.GetQueue(), all: r.GetDueWithin() == nil,
		within: c.Duration("due_within", r.GetDueWithin(), workqueue.MaxDelay).Microseconds(),
		every:  c.Duration("report_every", r.GetReportEvery(), maxReport),
	}
	if d.every != 0 && d.every < minReport && r.GetReportEvery().AsDuration() > 0 {
		c.Add("report_every", "%v is below %v", d.every, minReport)
	}
	if err := c.Err(); err != nil {
		return err
	}
	if d.every == 0 {
		d.every = time.Second
	}
	if r.GetClose() {
		if err := s.gate(ctx, r.GetQueue(), workqueue.OpClose); err != nil {
			return err
		}
	}
	return d.wait(ctx, bounded(ctx, timeout), stream.Send)
}

// bounded is how long a drain may take: what was asked, less when the call's
// deadline comes first, with time kept to say so.
func bounded(ctx context.Context, timeout time.Duration) time.Duration {
	if timeout == 0 {
		timeout = maxDrain
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		timeout = min(timeout, left-min(left/10, lastReport))
	}
	return timeout
}

// wait reports until nothing is left or time is up. A transaction of this server that
// leaves nothing is noticed at once, one of another replica at the next report.
func (d *drain) wait(ctx context.Context, timeout time.Duration, send func(*queuev1.DrainQueueResponse) error) error {
	l, err := d.s.Queues.Use(ctx, d.queue)
	if err != nil {
		return err
	}
	over := time.NewTimer(timeout)
	defer over.Stop()
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	late := false
	for report := true; ; {
		emptied := l.Metrics.Emptied()
		out, err := d.look(ctx)
		if err != nil {
			return err
		}
		out.TimedOut = late && !out.GetDrained()
		last := out.GetDrained() || late
		if report || last {
			if err := send(out); err != nil || last {
				return err
			}
		}
		pause := time.NewTimer(minLookInterval)
		select {
		case <-pause.C:
		case <-over.C:
			late = true
			continue
		case <-d.s.Stopping:
			return wire.ErrStopping
		case <-ctx.Done():
			return ctx.Err()
		}
		report = false
		select {
		case <-emptied:
		case <-tick.C:
			report = true
		case <-over.C:
			late = true
		case <-d.s.Stopping:
			return wire.ErrStopping
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look counts what is left. Counts of a store are not taken at one instant, so
// a queue is empty when that is seen twice. What cannot be reached may hold keys.
func (d *drain) look(ctx context.Context) (*queuev1.DrainQueueResponse, error) {
	out := &queuev1.DrainQueueResponse{}
	for seen := 0; ; {
		_, st, missing, err := d.s.Look.status(ctx, d.queue)
		if err != nil {
			return nil, err
		}
		out.Counts, out.Unreachable = wire.Counts(st.Counts), missing
		if out.Awaited, err = d.awaited(ctx, st); err != nil {
			return nil, err
		}
		if !metrics.Idle(st.Counts) || out.GetAwaited() > 0 || len(missing) > 0 {
			return out, nil
		}
		if seen++; seen == 2 {
			out.Drained = true
			return out, nil
		}
	}
}

// awaited counts delayed keys that are waited for, when only some are as far
// as maxAwaited.
func (d *drain) awaited(ctx context.Context, st engine.Status) (int64, error) {
	if d.horizon == 0 {
		d.horizon = st.Now + d.within
	}
	if d.all || st.Counts.Delayed == 0 {
		return int64(st.Counts.Delayed), nil
	}
	n, cursor := int64(0), ""
	for {
		page, next, _, err := d.s.Look.items(ctx, d.queue, workqueue.Waiting, cursor, itemsPage)
		if err != nil {
			return 0, err
		}
		for i := range page {
			if page[i].DelayedUntil <= d.horizon {
				n++
			}
		}
		if next == "" || n >= maxAwaited {
			return n, nil
		}
		cursor = next
	}
}
