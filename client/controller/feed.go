package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

// configure makes the queues, or changes them.
func (c *Controller) configure(ctx context.Context) error {
	generation, err := c.queue.Configure(ctx, c.o.Queue)
	if err != nil {
		return err
	}
	_, err = c.feed.Configure(ctx, feed.QueueConfig(c.o.FeedLease, c.o.Queue))
	if err == nil {
		c.notice(generation)
	}
	return err
}

// notice passes on a generation of the queue's store that somebody saw.
func (c *Controller) notice(generation string) {
	if generation == "" {
		return
	}
	for {
		select {
		case c.generation <- generation:
			return
		default:
		}
		select {
		case <-c.generation: // an older one
		default:
		}
	}
}

// tend keeps the feed's key in its queue, so that somebody leads also when the queue's store
// lost everything. The answers tell the store's generation.
func (c *Controller) tend(ctx context.Context) {
	for {
		_ = c.keepTrying(ctx, "feed", EventQueueFailed, func() (bool, error) {
			added, err := c.add(ctx, c.feed, client.Keys(feed.Key))
			c.notice(added.Generation)
			return false, err
		})
		if ctx.Err() != nil {
			return
		}
		attempt.SleepUntil(ctx, c.o.Check, c.wake)
	}
}

// add adds to one of the queues, and makes them when they are gone.
func (c *Controller) add(ctx context.Context, to *client.Queue, items []client.AddItem) (client.Added, error) {
	added, err := to.Add(ctx, items...)
	if !errors.Is(err, client.ErrQueueNotFound) {
		return added, err
	}
	if err := c.configure(ctx); err != nil {
		return added, err
	}
	return to.Add(ctx, items...)
}

// leader is the worker of the feed's key: its reconcile is this replica's leadership.
func (c *Controller) leader() (*client.Worker, error) {
	return client.NewWorker(c.conn, client.ReconcilerFunc(c.lead), feed.Led(client.WorkerConfig{
		Queue: c.feed.Name(), Name: c.o.Identity + "/" + c.o.Name + feed.Suffix, Grace: c.o.Grace, Log: c.o.Log,
		OnConnected: func(connected bool, generation string) {
			if !connected {
				return
			}
			c.notice(generation)
			select { // the key may be gone with the server
			case c.wake <- struct{}{}:
			default:
			}
		},
	}, c.o.FeedLease))
}

// worker is that of the keys.
func (c *Controller) worker() (*client.Worker, error) {
	const part = "queue"
	c.health.set(part, errNotConnected)
	return client.NewWorker(c.conn, client.ReconcilerFunc(c.reconcile), client.WorkerConfig{
		Queue: c.queue.Name(), Name: c.o.Identity + "/" + c.o.Name,
		Concurrency: c.o.Concurrency, Lease: c.o.Lease, Timeout: c.o.Timeout, Grace: c.o.Grace, Log: c.o.Log, Tracer: c.o.Tracer,
		OnFinished: func(item client.Item, outcome client.Outcome, err error, took time.Duration) {
			c.metrics.ended(outcome.String(), took, item.Span())
			if err == nil {
				return
			}
			kind := EventReconcileFailed
			if _, ok := errors.AsType[*client.PanicError](err); ok {
				kind = EventReconcilePanicked
			}
			c.emit(Event{Kind: kind, Key: item.Key, Err: err})
		},
		OnLost: func(key string) { c.emit(Event{Kind: EventLeaseLost, Key: key}) },
		OnConnected: func(connected bool, generation string) {
			c.notice(generation)
			if connected {
				c.health.set(part, nil)
			} else {
				c.health.set(part, errNotConnected)
			}
		},
	})
}

var errNotConnected = errors.New("not connected to the queue service")

// lead turns changes into keys for as long as the feed's key is leased.
func (c *Controller) lead(ctx context.Context, item client.Item) (client.Result, error) {
	c.emit(Event{Kind: EventLeading})
	c.metrics.leads(true)
	reason := "stopping"
	defer func() {
		c.metrics.leads(false)
		for _, w := range c.watches {
			c.health.set(w.part(), nil)
		}
		c.emit(Event{Kind: EventLed, Reason: reason})
	}()
	left, err := feed.Decode(item.State)
	if err != nil {
		c.emit(Event{Kind: EventQueueFailed, Reason: "the last leader's position cannot be used", Err: err})
	}
	again := ""
	for {
		generation, err := c.queue.Generation(ctx)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			reason = err.Error()
			return client.Result{Outcome: client.OutcomeRelease}, err
		}
		if err != nil {
			reason = "the queue's generation is not known"
			return client.Result{}, fmt.Errorf("controller: %s: %w", reason, err)
		}
		if again == "" {
			again = begins(left, generation, c.o.Resync)
		}
		again, err = newTerm(c, item, generation, left, again).run(ctx)
		switch {
		case again != "":
			continue
		case ctx.Err() != nil:
			err = context.Cause(ctx)
			reason = err.Error()
		case err != nil:
			reason = err.Error()
		}
		return client.Result{Outcome: client.OutcomeRelease}, err
	}
}
