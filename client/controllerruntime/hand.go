package controllerruntime

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// hand is a request that this process holds: what its reconcile must see and has read and written,
// and what is called for it until it is done. It is safe for concurrent use.
type hand struct {
	item  client.Item
	ctx   context.Context
	index reader
	save  func(ctx context.Context, state []byte) error // with the key, for its next run

	mu       sync.Mutex // guards what follows
	least    client.Barrier
	read     client.Reading
	wrote    client.Barrier
	forgets  bool
	limited  bool
	after    time.Duration
	priority int
	prior    bool // priority is set
	behind   bool // the index was behind what the reconcile must see
	gone     []gone
	forgot   bool // there was more than that, and the queue still keeps it
	settled  bool
}

// reader is *client.Index as far as hands need it.
type reader interface {
	Find(ctx context.Context, collection, key string, o client.ReadOptions) (*client.Object, client.Bounds, error)
}

func (q *requests[T]) newHand(item client.Item) (*hand, error) {
	all, err := remembered(item.State)
	if err != nil {
		return nil, fmt.Errorf("controllerruntime: state of %s: %w", item.Key, err)
	}
	least := maps.Clone(item.Barrier)
	if least == nil {
		least = client.Barrier{}
	}
	return &hand{
		item: item, ctx: q.keys.Context(item.Key), index: q.index, least: least, read: client.Reading{}, wrote: client.Barrier{}, gone: all,
		save: func(ctx context.Context, state []byte) error {
			return q.admin.SaveState(ctx, item.Key, item.Token, state)
		},
	}, nil
}

// Context ends when the lease is about to.
func (h *hand) Context() context.Context { return h.ctx }

// Alive is nil while the lease holds by this process's clock, and else says why not.
func (h *hand) Alive() error {
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	return h.item.Alive()
}

// atLeast is what a read of a collection must see.
func (h *hand) atLeast(collection string) client.Revision {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.least[collection]
}

// Read notes an answer of the index.
func (h *hand) Read(collection string, at client.Bounds) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.read.Raise(collection, at)
	h.least.Raise(collection, at.Revision)
}

// Wrote notes a version that was written.
func (h *hand) Wrote(collection string, at client.Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wrote.Raise(collection, at)
	h.least.Raise(collection, at)
}

// Behind notes that the index was behind: the run does not count as one that failed.
func (h *hand) Behind() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.behind = true
}

// again notes an add of the request. If it has to be one of its own, kept is false; forgot is true
// when a Forget that was noted has to go out before it.
func (h *hand) again(after time.Duration, limited bool, priority int) (kept, forgot bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.settled, limited && h.limited:
		return false, false
	case limited && h.forgets:
		h.forgets = false
		return false, true
	}
	if limited {
		h.limited = true
	}
	if after > 0 && (h.after == 0 || after < h.after) {
		h.after = after
	}
	if !h.prior || priority > h.priority {
		h.priority, h.prior = priority, true
	}
	return true, false
}

// forget notes a Forget of the request. If the settlement cannot say it, forgets is false; limited
// is true when a rate-limited add that was noted has to go out before it.
func (h *hand) forget() (forgets, limited bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.settled || h.limited {
		limited, h.limited = h.limited && !h.settled, false
		return false, limited
	}
	h.forgets = true
	return true, false
}

// behindAgain is when a key comes again that met an index which was behind.
const behindAgain = 2 * time.Second

// result is how the holding ends, and what is to be added besides.
func (h *hand) result() (r client.Result, more keys.AddOptions) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
	r = client.Result{Outcome: client.OutcomeDone, ReadAt: h.read, Wrote: h.wrote}
	if h.prior {
		level := levelOf(h.priority)
		r.Priority = &level
	}
	switch {
	case h.limited && h.behind:
		r.Outcome, r.After, r.Reason = client.OutcomeRelease, behindAgain, "the index is behind"
		more.After = h.after
	case h.limited:
		r.Outcome = client.OutcomeRateLimited
		more.After = h.after
	case h.after > 0 && h.forgets:
		r.Outcome, r.After = client.OutcomeAfter, h.after
	case h.after > 0:
		more.After = h.after
	case h.forgets:
		r.Outcome = client.OutcomeForget
	}
	return r, more
}
