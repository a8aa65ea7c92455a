package pleg

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	rules "github.com/deltaplane/deltaplane/core/pleg"
	"github.com/deltaplane/deltaplane/services/nodeagent/container"
)

// Cache holds the last status of every pod, as the runtime told it, and how fresh
// it is. It is safe for concurrent use; statuses from it must not be changed.
type Cache struct {
	// waits is notified of every call that has to wait, and for what is newer than when, outside the
	// lock; nil for nobody.
	waits func(types.UID, time.Time)

	mu   sync.Mutex
	pods map[types.UID]*entry
	// current is when all pods were as the cache says, those on hold excepted.
	current time.Time
	// held are pods that changed and whose status is being asked for.
	held    map[types.UID]struct{}
	waiters map[types.UID][]*waiter
}

type entry struct {
	// status is the last good one, also while err is set.
	status *container.PodStatus
	err    error
	// at is when what is here was true.
	at    time.Time
	stamp rules.Stamp
}

type waiter struct {
	newer time.Time
	done  chan struct{}
	// status and err are written before done is closed.
	status *container.PodStatus
	err    error
}

func newCache() *Cache {
	return &Cache{pods: map[types.UID]*entry{}, held: map[types.UID]struct{}{}, waiters: map[types.UID][]*waiter{}}
}

// Get is the last status of a pod: one with nothing but the UID for a pod that
// the runtime does not know. The error is the one that the last inspection about the
// pod ended with; there is no status then.
func (c *Cache) Get(uid types.UID) (*container.PodStatus, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answer(uid)
}

// GetNewerThan waits until the cache knows the pod as it was at some moment after
// t, and answers as Get does. Otherwise it ends with the context's error.
func (c *Cache) GetNewerThan(ctx context.Context, uid types.UID, t time.Time) (*container.PodStatus, error) {
	c.mu.Lock()
	if c.fresh(uid).After(t) {
		defer c.mu.Unlock()
		return c.answer(uid)
	}
	w := &waiter{newer: t, done: make(chan struct{})}
	c.waiters[uid] = append(c.waiters[uid], w)
	c.mu.Unlock()
	if c.waits != nil {
		c.waits(uid, t)
	}
	select {
	case <-w.done:
		return w.status, w.err
	case <-ctx.Done():
		c.leave(uid, w)
		return nil, ctx.Err()
	}
}

// Delete forgets a pod.
func (c *Cache) Delete(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, uid)
}

// set stores an answer that was true at a time, unless it has a newer one.
func (c *Cache) set(uid types.UID, status *container.PodStatus, err error, at time.Time, stamp rules.Stamp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.pods[uid]
	if e == nil {
		e = &entry{}
		c.pods[uid] = e
	} else if e.newer(at, stamp) {
		return
	}
	e.err, e.at, e.stamp = err, at, stamp
	if err == nil {
		e.status = status
	}
	c.wake(uid, at)
}

// takes reports whether set would store an answer.
func (c *Cache) takes(uid types.UID, at time.Time, stamp rules.Stamp) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.pods[uid]
	return e == nil || !e.newer(at, stamp)
}

// newer reports that the entry is newer than an answer. Of two of one instant the stamp tells.
func (e *entry) newer(at time.Time, stamp rules.Stamp) bool {
	return e.at.After(at) || e.at.Equal(at) && e.stamp > stamp
}

// absent forgets a pod that the runtime did not know at a time.
func (c *Cache) absent(uid types.UID, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, uid)
	c.wake(uid, at)
}

// last is the last good status of a pod, or nil.
func (c *Cache) last(uid types.UID) *container.PodStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.pods[uid]; e != nil {
		return e.status
	}
	return nil
}

// hold keeps declare from speaking for a pod until it is released.
func (c *Cache) hold(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[uid] = struct{}{}
}

func (c *Cache) release(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, uid)
	c.wake(uid, c.current)
}

// declare says that all pods but those on hold were at that time as the cache has them.
func (c *Cache) declare(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !at.After(c.current) {
		return
	}
	c.current = at
	for uid := range c.waiters {
		if _, held := c.held[uid]; !held {
			c.wake(uid, at)
		}
	}
}

// has reports whether the pod was asked about, or told of, after t.
func (c *Cache) has(uid types.UID, t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.pods[uid]
	return e != nil && e.err == nil && e.at.After(t)
}

// waiting are the pods that somebody waits for.
func (c *Cache) waiting() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []types.UID
	for uid := range c.waiters {
		out = append(out, uid)
	}
	return out
}

// fresh is the latest moment at which the cache knows the pod. The caller holds mu.
func (c *Cache) fresh(uid types.UID) time.Time {
	at := c.current
	if _, held := c.held[uid]; held {
		at = time.Time{}
	}
	if e := c.pods[uid]; e != nil && e.at.After(at) {
		at = e.at
	}
	return at
}

// answer is what Get returns. The caller holds mu.
func (c *Cache) answer(uid types.UID) (*container.PodStatus, error) {
	switch e := c.pods[uid]; {
	case e == nil:
		return &container.PodStatus{UID: uid}, nil
	case e.err != nil:
		return nil, e.err
	default:
		return e.status, nil
	}
}

// wake answers those who wait for a moment before at. The caller holds mu.
func (c *Cache) wake(uid types.UID, at time.Time) {
	var rest []*waiter
	for _, w := range c.waiters[uid] {
		if !at.After(w.newer) {
			rest = append(rest, w)
			continue
		}
		w.status, w.err = c.answer(uid)
		close(w.done)
	}
	c.keep(uid, rest)
}

func (c *Cache) leave(uid types.UID, gone *waiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var rest []*waiter
	for _, w := range c.waiters[uid] {
		if w != gone {
			rest = append(rest, w)
		}
	}
	c.keep(uid, rest)
}

func (c *Cache) keep(uid types.UID, rest []*waiter) {
	if len(rest) == 0 {
		delete(c.waiters, uid)
		return
	}
	c.waiters[uid] = rest
}
