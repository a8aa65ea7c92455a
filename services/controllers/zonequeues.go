package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/deltaplane/deltaplane/client"
	rules "github.com/deltaplane/deltaplane/core/nodelifecycle"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/controllers/nodelifecycle"
)

// zoneQueues are the queues in which nodes wait for their zone's rate, one per
// zone, and this replica's workers on them.
type zoneQueues struct {
	s       *Service
	adapter *nodeAdapter
	started chan rules.Zone // zones whose queue now exists

	mu     sync.Mutex // guards queues
	queues map[rules.Zone]*client.Queue
}

// zoneEvery is how often the zones are judged.
const zoneEvery = 5 * time.Second

func (z *zoneQueues) queue(zone rules.Zone) *client.Queue {
	z.mu.Lock()
	defer z.mu.Unlock()
	if z.queues[zone] == nil {
		z.queues[zone] = client.NewQueue(z.s.deps.Queue, z.name(zone), "")
	}
	return z.queues[zone]
}

func (z *zoneQueues) name(zone rules.Zone) string { return ZoneQueue(z.s.cfg.Cluster, zone) }

// ZoneQueue is the name of the queue in which a zone's nodes wait for their
// NoExecute taint; its dispatch limiter is the zone's rate, and it is paused while
// that is zero. The zone stands in it as the nodes' labels have it. Parts that are not
// there are "-", which no label value is.
func ZoneQueue(cluster string, zone rules.Zone) string {
	part := func(s string) string {
		switch {
		case s == "":
			return "-"
		case len(validation.IsValidLabelValue(s)) > 0: // of a server that does not check labels
			return "_" + code(s)
		}
		return s
	}
	return cluster + "/nodelifecycle/" + part(zone.Region) + "/" + part(zone.Name)
}

// code writes what is no letter and no digit as a code, so that different zones have
// different names. With a "_" before it, it is no label value either.
func code(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02X", c)
		}
	}
	return b.String()
}

// Add implements the port of the waiting nodes.
func (z *zoneQueues) Add(ctx context.Context, zone rules.Zone, node string) error {
	_, err := z.queue(zone).Add(ctx, client.Keys(node)...)
	if errors.Is(err, client.ErrQueueNotFound) {
		z.adapter.rec.Zones().Again() // the next refresh makes it
	}
	return err
}

// Remove implements the port of the waiting nodes.
func (z *zoneQueues) Remove(ctx context.Context, zone rules.Zone, node string) error {
	err := z.queue(zone).Delete(ctx, node)
	if errors.Is(err, client.ErrQueueNotFound) {
		return nil
	}
	return err
}

// Limit implements the port of the waiting nodes: burst 1, paused at zero.
func (z *zoneQueues) Limit(ctx context.Context, zone rules.Zone, rate float64) error {
	q := z.queue(zone)
	if rate == 0 {
		if err := q.Pause(ctx); !errors.Is(err, client.ErrQueueNotFound) {
			return err
		}
	}
	_, err := q.Configure(ctx, client.QueueConfig{
		RateLimiter: client.Exponential(50*time.Millisecond, 10*time.Second),
		DispatchQPS: max(rate, 1e-6), DispatchBurst: 1, MaxDeliveries: maxDeliveries, Lease: z.s.cfg.Lease,
	})
	if err != nil {
		return err
	}
	if rate == 0 {
		err = q.Pause(ctx)
	} else {
		err = q.Resume(ctx)
	}
	if err != nil {
		return err
	}
	select {
	case z.started <- zone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run judges the zones every few seconds and works on their queues, until ctx ends.
func (z *zoneQueues) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		working := map[rules.Zone]bool{}
		for {
			select {
			case <-ctx.Done():
				return nil
			case zone := <-z.started:
				if !working[zone] {
					working[zone] = true
					g.Go(func() error { return z.work(ctx, zone) })
				}
			}
		}
	})
	g.Go(func() error {
		every := min(zoneEvery, z.s.cfg.Nodes.WithDefaults().Gap/4)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			if err := z.refresh(ctx); err != nil && ctx.Err() == nil {
				z.s.log.Debug("zones cannot be judged", slog.Any("error", err))
				z.adapter.rec.Zones().Forget(3 * every)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	})
	return g.Wait()
}

func (z *zoneQueues) refresh(ctx context.Context) error {
	return z.adapter.rec.Zones().Refresh(ctx, func(ctx context.Context) ([][]byte, error) { return z.adapter.all(ctx, "") })
}

// work taints the nodes of one zone as its queue hands them out.
func (z *zoneQueues) work(ctx context.Context, zone rules.Zone) error {
	generation := ""
	rec := client.ReconcilerFunc(func(ctx context.Context, item client.Item) (client.Result, error) {
		after, err := z.adapter.rec.Taint(ctx, nodelifecycle.Turn{Zone: zone, Name: item.Key, Nodes: z.adapter.all, Alive: item.Alive})
		res := client.Result{}
		if after > 0 {
			res.Outcome, res.After = client.OutcomeRelease, after
		}
		return settled(res, err, nodelifecycle.ErrStale)
	})
	w, err := client.NewWorker(z.s.deps.Queue, rec, client.WorkerConfig{
		Queue: z.name(zone), Name: z.s.cfg.Identity + "/nodelifecycle", Concurrency: 1, Lease: z.s.cfg.Lease, Timeout: z.s.cfg.Timeout, Grace: z.s.cfg.Grace,
		Log: z.s.log.With(slog.String(telemetry.KeyController, "nodelifecycle")), Tracer: z.s.deps.Telemetry.Tracer,
		OnConnected: func(connected bool, now string) {
			if connected && now != generation {
				if generation != "" { // the store is another one: its rates may be gone
					z.adapter.rec.Zones().Again()
				}
				generation = now
			}
		},
	})
	if err != nil {
		return fmt.Errorf("controllers: nodelifecycle: zone %q: %w", zone, err)
	}
	return w.Run(ctx)
}
