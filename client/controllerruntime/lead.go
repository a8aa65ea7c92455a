package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
	"github.com/deltaplane/deltaplane/internal/attempt"
)

const (
	// checkEvery is how often each replica makes sure that somebody may lead, and that the queue's
	// store lost nothing.
	checkEvery = 5 * time.Second
	// saveEvery is the least time between two positions that are saved.
	saveEvery = 100 * time.Millisecond
	// lastWrites is how long a leader that stops may take to save.
	lastWrites = 3 * time.Second
)

// lead makes this replica one of those of which one calls the handlers.
type lead struct {
	o    *Operator
	feed *client.Queue
	stop chan struct{} // closed when nothing more is to be led
	wake chan struct{} // tend should look

	mu         sync.Mutex // guards what follows
	informers  []*informer
	generation string // of the queue's store, as last seen
	changed    chan struct{}
}

func newLead(o *Operator) *lead {
	return &lead{
		o: o, feed: client.NewQueue(o.conn, o.queueName(feed.Key), ""), stop: make(chan struct{}), wake: make(chan struct{}, 1), changed: make(chan struct{}),
	}
}

// look has the leader look at an informer's handlers.
func (l *lead) look(i *informer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.informers, i) {
		l.informers = append(l.informers, i)
	}
	l.signal()
}

func (l *lead) wakeUp() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.signal()
}

func (l *lead) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// notice notes a generation of the queue's store that somebody saw.
func (l *lead) notice(generation string) {
	if generation == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.generation != generation {
		l.generation = generation
		l.signal()
	}
}

// present returns what there is to lead, and what is closed when that changes.
func (l *lead) present() (all []*registration, generation string, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, i := range l.informers {
		i.mu.Lock()
		for _, r := range i.handlers {
			if r.led() {
				all = append(all, r)
			}
		}
		i.mu.Unlock()
	}
	return all, l.generation, l.changed
}

// run takes part in the lead until ctx ends, from when there is something to lead. It fails when
// the queue service refuses it permanently.
func (l *lead) run(ctx context.Context) error {
	if !l.awaitHandlers(ctx) {
		return nil
	}
	w, err := client.NewWorker(l.o.conn, client.ReconcilerFunc(l.lead), feed.Led(client.WorkerConfig{
		Queue: l.feed.Name(), Name: l.o.o.Identity + "/" + l.o.o.Name + feed.Suffix, Grace: 2 * lastWrites, Log: l.o.o.Log,
		OnConnected: func(connected bool, generation string) {
			if connected {
				l.notice(generation)
				select { // the key may be gone with the server
				case l.wake <- struct{}{}:
				default:
				}
			}
		},
	}, l.o.o.FeedLease))
	if err != nil {
		return err
	}
	if !l.prepare(ctx) {
		return nil
	}
	var tending sync.WaitGroup
	tending.Go(func() { l.tend(ctx) })
	defer tending.Wait()
	stopped := context.AfterFunc(ctx, func() { close(l.stop) })
	defer stopped()
	return w.Run(ctx)
}

// startsWithin is how long controllers may take to start before it is reported.
const startsWithin = 30 * time.Second

// awaitHandlers waits until there is a handler and every controller has started; false when ctx
// ended first. In a manager with leader election controllers start once it is elected. A replica
// that led without their handlers would keep changes from the elected one.
func (l *lead) awaitHandlers(ctx context.Context) bool {
	var late <-chan time.Time
	for {
		all, _, changed := l.present()
		switch waiting := l.o.unstarted(); {
		case len(all) == 0:
		case waiting == 0:
			return true
		case late == nil:
			late = time.After(startsWithin)
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		case <-late:
			l.o.report("feed", l.feed.Name(), fmt.Errorf("this replica does not lead: %d of its controllers have not started, and only their queues tell that they have", l.o.unstarted()))
		}
	}
}

// prepare makes the queue of the feed's key; false when ctx ended first.
func (l *lead) prepare(ctx context.Context) bool {
	wait := attempt.Wait{First: 50 * time.Millisecond, Most: 2 * time.Second, Low: 0.5, High: 1}
	for {
		err := l.configure(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		l.o.report("feed", l.feed.Name(), err)
		if !wait.Sleep(ctx, 0) {
			return false
		}
	}
}

func (l *lead) configure(ctx context.Context) error {
	generation, err := l.feed.Configure(ctx, feed.QueueConfig(l.o.o.FeedLease, l.o.o.Queue))
	if err == nil {
		l.notice(generation)
	}
	return err
}

// tend keeps the feed's key in its queue, also when the queue's store lost everything.
func (l *lead) tend(ctx context.Context) {
	var failures attempt.Report
	for {
		added, err := l.feed.Add(ctx, client.Keys(feed.Key)...)
		if errors.Is(err, client.ErrQueueNotFound) {
			if err = l.configure(ctx); err == nil {
				added, err = l.feed.Add(ctx, client.Keys(feed.Key)...)
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && failures.Due(err.Error()) {
			l.o.report("feed", l.feed.Name(), err)
		}
		l.notice(added.Generation)
		if err != nil {
			attempt.Sleep(ctx, time.Second)
			continue
		}
		attempt.SleepUntil(ctx, checkEvery, l.wake)
	}
}

// lead calls the handlers for as long as the feed's key is leased.
func (l *lead) lead(ctx context.Context, item client.Item) (client.Result, error) {
	left, err := feed.Decode(item.State)
	if err != nil {
		l.o.report("feed", "position", err)
	}
	l.o.o.Log.Info("leading the feed")
	defer l.o.o.Log.Info("leading the feed no more")
	for {
		generation, err := l.feed.Generation(ctx)
		if err != nil {
			return client.Result{Outcome: client.OutcomeRelease}, fmt.Errorf("controllerruntime: the queue's generation is not known: %w", err)
		}
		l.notice(generation)
		if left.Generation != generation {
			left = feed.State{Generation: generation, Swept: time.Now().Unix()}
		}
		again, err := newTerm(l, item, left).run(ctx)
		if !again {
			return client.Result{Outcome: client.OutcomeRelease}, err
		}
		left = feed.State{}
	}
}
