package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
)

// Puller leases keys one by one for callers that ask for them, where a [Worker]
// calls a reconciler. It leases no key ahead: there is one lease per call of Get
// and per key in hand. Leases are extended until they are settled. It is safe
// for concurrent use.
type Puller struct{ w *Worker }

// endless bounds nothing: a caller may hold a key as long as its process lives.
const endless = 10 * 365 * 24 * time.Hour

// NewPuller returns a puller on a connection to the queue service. Of cfg it
// ignores Concurrency, Prefetch and Timeout, and of the hooks Started and
// Finished.
func NewPuller(conn grpc.ClientConnInterface, cfg WorkerConfig) (*Puller, error) {
	cfg.Concurrency, cfg.Prefetch, cfg.Timeout = 1, 0, endless
	w, err := NewWorker(conn, nil, cfg)
	if err != nil {
		return nil, err
	}
	w.pulls = true
	return &Puller{w}, nil
}

// Run leases until ctx ends, as [Worker.Run] does: it then leases no more, and
// waits for the grace period until everything in hand is settled.
func (p *Puller) Run(ctx context.Context) error { return p.w.Run(ctx) }

// Connected reports whether the Work stream is open.
func (p *Puller) Connected() bool { return p.w.Connected() }

// Held is a key under a lease, to be settled by its holder.
type Held struct {
	w *Worker
	t *task
}

// Item is the key with what came with it.
func (h *Held) Item() Item { return h.t.item }

// Context ends when the lease is about to, as a reconcile's does, and when it
// is settled.
func (h *Held) Context() context.Context { return &h.t.context }

// Settle ends the lease, once. It does not wait for the service; see Flush. A
// zero Outcome is OutcomeForget, or OutcomeAfter when After is set. Errors:
// [ErrLeaseLost] when it is known to be lost already, and nothing is sent then.
func (h *Held) Settle(r Result) error {
	h.w.mu.Lock()
	over, lost := h.w.busy[h.t.id.key] != h.t, h.t.lost
	h.w.mu.Unlock()
	if over {
		return fmt.Errorf("client: %s was settled already", h.t.id.key)
	}
	h.w.finish(h.t, decide(r, nil, nil))
	if lost {
		return fmt.Errorf("%w: %s", ErrLeaseLost, h.t.id.key)
	}
	return nil
}

// Get waits for a key. Errors: [ErrShutDown] when the session was shut down by
// somebody, [ErrStopped] when Run ends, and ctx's.
func (p *Puller) Get(ctx context.Context) (*Held, error) {
	w := p.w
	c := make(chan *task, 1)
	w.mu.Lock()
	if w.draining {
		w.mu.Unlock()
		return nil, w.over()
	}
	w.getters = append(w.getters, c)
	w.hand()
	w.notify()
	w.mu.Unlock()
	var err error
	select {
	case t := <-c:
		return &Held{w, t}, nil
	case <-ctx.Done():
		err = wrap(ctx.Err(), "get from queue %s", w.cfg.Queue)
	case <-w.drained:
		err = w.over()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if i := slices.Index(w.getters, c); i >= 0 {
		w.getters = slices.Delete(w.getters, i, i+1)
		return nil, err
	}
	return &Held{w, <-c}, nil // it came at the same moment
}

func (w *Worker) over() error {
	if closed(w.shut) {
		return ErrShutDown
	}
	return ErrStopped
}

// unclaimed is how long a key that nobody asks for any more is kept for the next
// one who asks.
const unclaimed = 200 * time.Millisecond

// hand gives ready keys to those that wait for them. Mu must be held.
func (w *Worker) hand() {
	for len(w.getters) > 0 {
		t := w.begin()
		if t == nil {
			return
		}
		w.getters[0] <- t
		w.getters = w.getters[1:]
	}
	if len(w.ready) > 0 {
		w.watch(time.Now().Add(unclaimed))
	}
}

// unclaim gives back what nobody asks for. It returns when to look again, zero
// for never. Mu must be held.
func (w *Worker) unclaim(now time.Time) (next time.Time) {
	if !w.pulls || len(w.getters) > 0 {
		return time.Time{}
	}
	kept := w.ready[:0]
	for _, t := range w.ready {
		if until := t.received.Add(unclaimed); until.After(now) {
			kept, next = append(kept, t), until
			continue
		}
		w.release(t, "nobody asks for it any more")
		w.notify()
	}
	clear(w.ready[len(kept):])
	w.ready = kept
	return next
}

// Held is how many keys callers hold, and how many more have come for callers of
// Get that are gone: they go to the next one who asks, or back after a moment.
func (p *Puller) Held() (held, unclaimed int) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return len(p.w.busy), len(p.w.ready)
}

// Flush waits until every settlement so far has been answered.
func (p *Puller) Flush(ctx context.Context) error {
	w := p.w
	w.mu.Lock()
	if w.unanswered() == 0 {
		w.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	w.flushed = append(w.flushed, c)
	w.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return wrap(ctx.Err(), "settle in queue %s", w.cfg.Queue)
	}
}
