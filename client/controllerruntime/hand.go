package controllerruntime

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/run"
	keys "github.com/deltaplane/deltaplane/client/workqueue"
)

// hand is a request that this process holds: what its reconcile must see and has read and written,
// and what is called for it until it is done. It is safe for concurrent use.
type hand struct {
	*run.Run
	item client.Item
	ctx  context.Context

	mu       sync.Mutex // guards what follows
	forgets  bool
	limited  bool
	after    time.Duration
	priority int
	prior    bool // priority is set
	behind   bool // the index was behind what the reconcile must see
	settled  bool
}

func (q *requests[T]) newHand(item client.Item) (*hand, error) {
	r, err := run.New(run.Config{Item: item, Index: q.index, Save: func(ctx context.Context, state []byte) error {
		return q.admin.SaveState(ctx, item.Key, item.Token, state)
	}})
	if err != nil {
		return nil, fmt.Errorf("controllerruntime: %w", err)
	}
	return &hand{Run: r, item: item, ctx: q.keys.Context(item.Key)}, nil
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
	r.Outcome = client.OutcomeDone
	r.ReadAt, r.Wrote = h.Results()
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
