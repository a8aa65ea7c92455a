package load

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/bench/internal/harness"
	queuev1 "github.com/deltaplane/deltaplane/proto/deltaplane/queue/v1"
)

// CyclesInFlight is how many keys are under way at a time: added and not yet
// settled with the settlement acknowledged.
const CyclesInFlight = 256

// Cycler drives one queue. Its keys have 23 bytes and are never used twice.
type Cycler struct {
	Pool    Pool
	queue   string
	session string
	next    atomic.Uint64
	streams atomic.Uint64 // opened so far
	// What happened since the beginning, for the books at the end.
	adds, deduped, settled atomic.Int64
}

// NewCycler drives a queue over the connections of a pool.
func NewCycler(p Pool, queue string) *Cycler {
	return &Cycler{Pool: p, queue: queue, session: "bench-" + rand.Text()[:8]}
}

func (c *Cycler) key() string { return fmt.Sprintf("bench/%017d", c.next.Add(1)) }

// Client is a client of the i-th connection.
func (c *Cycler) Client(i int) queuev1.QueueServiceClient {
	return queuev1.NewQueueServiceClient(c.Pool[i%len(c.Pool)])
}

// Admin is a client for operators.
func (c *Cycler) Admin() queuev1.QueueAdminServiceClient {
	return queuev1.NewQueueAdminServiceClient(c.Pool[0])
}

// Unary makes cycles of three calls: Add, Get, Settle. A caller settles
// whatever key it got, which need not be the one it added.
func (c *Cycler) Unary(ctx context.Context, d time.Duration) (Turns, error) {
	return ClosedLoop(ctx, d, CyclesInFlight, func(ctx context.Context, caller int) error {
		q := c.Client(caller)
		if err := c.add(ctx, q, []string{c.key()}); err != nil {
			return err
		}
		var leases []*queuev1.Lease
		for len(leases) == 0 {
			got, err := q.Get(ctx, &queuev1.GetRequest{Queue: c.queue, SessionId: c.session, MaxItems: 1, Wait: durationpb.New(5 * time.Second)})
			if err != nil {
				return err
			}
			leases = got.GetLeases()
		}
		done, err := q.Settle(ctx, &queuev1.SettleRequest{SessionId: c.session, Settlements: settlements(leases)})
		if err != nil {
			return err
		}
		return c.count(done.GetResults())
	})
}

func (c *Cycler) add(ctx context.Context, q queuev1.QueueServiceClient, keys []string) error {
	items := make([]*queuev1.AddItem, len(keys))
	for i, key := range keys {
		items[i] = &queuev1.AddItem{Key: key}
	}
	got, err := q.Add(ctx, &queuev1.AddRequest{Queue: c.queue, Items: items})
	if err != nil {
		return err
	}
	for i, r := range got.GetResults() {
		switch r.GetStatus() {
		case queuev1.AddStatus_ADD_STATUS_QUEUED:
			c.adds.Add(1)
		case queuev1.AddStatus_ADD_STATUS_ALREADY_QUEUED, queuev1.AddStatus_ADD_STATUS_MARKED_DIRTY:
			c.adds.Add(1)
			c.deduped.Add(1)
		default:
			return fmt.Errorf("add of %s answered %v", keys[i], r.GetStatus())
		}
	}
	return nil
}

func settlements(leases []*queuev1.Lease) []*queuev1.Settlement {
	out := make([]*queuev1.Settlement, len(leases))
	for i, l := range leases {
		out[i] = &queuev1.Settlement{Queue: l.GetQueue(), Key: l.GetKey(), Token: l.GetToken(), Outcome: queuev1.Outcome_OUTCOME_FORGET}
	}
	return out
}

// count takes acknowledged settlements into the books.
func (c *Cycler) count(results []*queuev1.SettleResult) error {
	for _, r := range results {
		if r.GetStatus() != queuev1.SettleStatus_SETTLE_STATUS_SETTLED {
			return fmt.Errorf("settlement of %s answered %v", r.GetKey(), r.GetStatus())
		}
	}
	c.settled.Add(int64(len(results)))
	return nil
}

// Window hands out the right to have keys under way, in batches.
type Window struct {
	mu     sync.Mutex // guards what follows
	change *sync.Cond
	size   int
	free   int
	closed bool
}

// NewWindow lets size be under way at once.
func NewWindow(size int) *Window {
	w := &Window{size: size, free: size}
	w.change = sync.NewCond(&w.mu)
	return w
}

// Take waits until any are free and takes all of them; 0 once closed.
func (w *Window) Take() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free == 0 && !w.closed {
		w.change.Wait()
	}
	if w.closed {
		return 0
	}
	n := w.free
	w.free = 0
	return n
}

// Give gives back n that are no longer under way.
func (w *Window) Give(n int) {
	w.mu.Lock()
	w.free += n
	w.mu.Unlock()
	w.change.Broadcast()
}

// Drain closes the window and waits until everything taken was given back, or broken says so.
func (w *Window) Drain(broken func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.change.Broadcast()
	for w.free < w.size && !broken() {
		w.change.Wait()
	}
}

const (
	WorkStreams   = 4
	WorkProducers = 2
)

// Work makes cycles by the Work stream. Producers add whatever the window lets
// them in one call; every assignment is settled in one message at once.
func (c *Cycler) Work(ctx context.Context, d time.Duration) (Turns, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w := NewWindow(CyclesInFlight)
	context.AfterFunc(ctx, func() { w.Give(0) }) // a failure must wake who waits
	before := c.settled.Load()
	var group sync.WaitGroup
	began := time.Now()
	var quiet sync.WaitGroup // streams that got a goodbye
	stop := make(chan struct{})
	for i := range WorkStreams {
		quiet.Go(func() {
			if err := c.stream(ctx, i, w, stop); err != nil {
				cancel(err)
			}
		})
	}
	for i := range WorkProducers {
		group.Go(func() {
			q := c.Client(i)
			for n := w.Take(); n > 0; n = w.Take() {
				keys := make([]string, n)
				for k := range keys {
					keys[k] = c.key()
				}
				if err := c.add(ctx, q, keys); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	w.Drain(func() bool { return ctx.Err() != nil })
	t := Turns{Done: c.settled.Load() - before, Elapsed: time.Since(began), Latency: &harness.Histogram{}}
	group.Wait()
	close(stop)
	quiet.Wait()
	return t, context.Cause(ctx)
}

// stream is one worker: it settles what it is assigned until stop, then says goodbye.
func (c *Cycler) stream(ctx context.Context, i int, w *Window, stop <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := c.Client(i).Work(ctx)
	if err != nil {
		return err
	}
	// A session of its own for every stream: its request ids begin at 1.
	hello := &queuev1.Hello{SessionId: fmt.Sprintf("%s-%d", c.session, c.streams.Add(1)), Client: "bench", Queues: []string{c.queue}}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	credit := &queuev1.Credit{Items: CyclesInFlight / WorkStreams}
	if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Credit{Credit: credit}}); err != nil {
		return err
	}
	go func() { // nothing is assigned any more when stop is closed
		select {
		case <-stop:
		case <-ctx.Done():
		}
		cancel()
	}()
	for id := uint64(1); ; {
		m, err := s.Recv()
		if err != nil {
			select {
			case <-stop:
				return nil
			default:
				return err
			}
		}
		switch {
		case m.GetAssign() != nil:
			batch := &queuev1.SettleBatch{RequestId: id, Settlements: settlements(m.GetAssign().GetLeases())}
			id++
			if err := s.Send(&queuev1.WorkRequest{Kind: &queuev1.WorkRequest_Settle{Settle: batch}}); err != nil {
				return err
			}
		case m.GetSettled() != nil:
			if err := c.count(m.GetSettled().GetResults()); err != nil {
				return err
			}
			w.Give(len(m.GetSettled().GetResults()))
		case m.GetControl() != nil:
			return fmt.Errorf("server asked for %v: %s", m.GetControl().GetAction(), m.GetControl().GetReason())
		}
	}
}

// Balance checks the books: every accepted add became a cycle or joined one, and nothing is left.
func (c *Cycler) Balance(ctx context.Context) error {
	got, err := c.Client(0).Len(ctx, &queuev1.LenRequest{Queue: c.queue})
	if err != nil {
		return err
	}
	n := got.GetCounts()
	left := n.GetReady() + n.GetDelayed() + n.GetProcessing() + n.GetDirty() + n.GetDead()
	adds, settled, deduped := c.adds.Load(), c.settled.Load(), c.deduped.Load()
	if left != 0 || adds != settled+deduped+left {
		return errors.Join(ErrBooks, fmt.Errorf("queue %s: %d adds, %d settled, %d deduplicated, %d left", c.queue, adds, settled, deduped, left))
	}
	return nil
}

// ErrBooks says that keys were lost or invented.
var ErrBooks = errors.New("the books do not balance")

// Drain works off everything the queue holds. Keys that somebody else holds it
// waits for until their leases end.
func (c *Cycler) Drain(ctx context.Context) (int, error) {
	q := c.Client(0)
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
