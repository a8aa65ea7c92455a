package authority

import (
	"context"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
)

const (
	// decidedFor is how long a decision is kept when nothing that it depends on has changed lately.
	decidedFor = 30 * time.Second
	// unsettledFor is how long one is kept that was made within unsettledAfter of a change: the API
	// server's own view of its roles may lag behind ours.
	unsettledFor   = 500 * time.Millisecond
	unsettledAfter = 10 * time.Second
	// failedFor is how long nobody is asked again after an error.
	failedFor = 500 * time.Millisecond

	maxCallers   = 20_000
	maxDecisions = 2048 // of one caller
	callerIdle   = 5 * time.Minute
)

// decision is an answer, or one that is being asked for.
type decision struct {
	done    chan struct{} // closed when the rest is set
	allowed bool
	reason  string
	err     error
	until   time.Time
	version uint64
}

// caller is what was decided about one identity.
type caller struct {
	id *access.Identity

	mu        sync.Mutex
	decisions map[access.Attributes]*decision // guarded by mu
	used      time.Time                       // guarded by mu
}

// callers are known by their identity's key, and by the pointer that their calls carry, which is
// found without writing the key again.
type callers struct {
	mu      sync.Mutex
	byKey   map[string]*caller
	byIdent sync.Map // *access.Identity to *caller
}

// intern returns the identity that stands for all that are equal to id.
func (c *callers) intern(id *access.Identity) *access.Identity {
	return c.of(id).id
}

// of is the caller of an identity, known or new.
func (c *callers) of(id *access.Identity) *caller {
	if known, ok := c.byIdent.Load(id); ok {
		return known.(*caller)
	}
	key, now := id.Key()+" "+id.Name(), time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.byKey[key]; known != nil {
		return known
	}
	if len(c.byKey) >= maxCallers {
		c.shrink(now)
	}
	n := &caller{id: id, decisions: map[access.Attributes]*decision{}, used: now}
	c.byKey[key] = n
	c.byIdent.Store(id, n)
	return n
}

// expire forgets callers that have not called for a while.
func (c *callers) expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, one := range c.byKey {
		one.mu.Lock()
		idle := now.Sub(one.used) > callerIdle
		for a, d := range one.decisions {
			if d.over(now) {
				delete(one.decisions, a)
			}
		}
		one.mu.Unlock()
		if idle {
			c.forget(key, one)
		}
	}
}

// shrink makes room: those that hold no decision go, or any. c.mu is locked.
func (c *callers) shrink(now time.Time) {
	for key, one := range c.byKey {
		if len(c.byKey) < maxCallers-maxCallers/10 {
			return
		}
		one.mu.Lock()
		idle := now.Sub(one.used) > decidedFor
		one.mu.Unlock()
		if idle {
			c.forget(key, one)
		}
	}
	for key, one := range c.byKey {
		if len(c.byKey) < maxCallers {
			return
		}
		c.forget(key, one)
	}
}

func (c *callers) forget(key string, one *caller) {
	delete(c.byKey, key)
	c.byIdent.Delete(one.id)
}

func (c *callers) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byKey)
}

// over reports whether a decision may go. The caller's mu is locked.
func (d *decision) over(now time.Time) bool { return d.settled() && !now.Before(d.until) }

// settled reports whether a decision was made.
func (d *decision) settled() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// decide returns what is known, or has an authority ask: a decision to wait for.
func (c *caller) decide(ctx context.Context, by *Authority, a access.Attributes, now time.Time) *decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used = now
	version := by.version.Load()
	d := c.known(version, &a, now)
	if d != nil {
		return d
	}
	if len(c.decisions) >= maxDecisions {
		clear(c.decisions)
	}
	d = &decision{done: make(chan struct{}), version: version}
	c.decisions[a] = d
	c.ask(ctx, by, a, d)
	return d
}

// permitted reports whether it is known that the caller may do something.
func (c *caller) permitted(version uint64, a *access.Attributes, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := c.known(version, a, now)
	if d == nil || !d.settled() || !d.allowed {
		return false
	}
	c.used = now
	return true
}

// known is a decision that counts, be it made or being asked for; nil for none. c.mu is locked.
func (c *caller) known(version uint64, a *access.Attributes, now time.Time) *decision {
	if d := c.decisions[*a]; d != nil && d.version == version && !d.over(now) {
		return d
	}
	return nil
}

// ask has an authority decide. Calls that want the same wait for one answer, which outlives each of
// them. It is apart from decide so that what is known costs no memory.
func (c *caller) ask(ctx context.Context, by *Authority, a access.Attributes, d *decision) {
	go func() {
		defer close(d.done)
		got := by.ask(context.WithoutCancel(ctx), c.id, a)
		c.mu.Lock()
		defer c.mu.Unlock()
		d.allowed, d.reason, d.err, d.until = got.allowed, got.reason, got.err, got.until
	}()
}

// pauser is the context of a call that is asked before it waits, and may refuse to.
type pauser interface {
	Pause() error
	Resume()
}

func (d *decision) wait(ctx context.Context) (*decision, error) {
	if d.settled() {
		return d, nil
	}
	if p, ok := ctx.(pauser); ok {
		if err := p.Pause(); err != nil {
			return nil, err
		}
		defer p.Resume()
	}
	select {
	case <-d.done:
		return d, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
