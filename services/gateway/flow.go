package gateway

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// listsAtOnce are answered to one caller at the same time, and maxLists are all that it has: those
	// that wait for their turn, up to turnWithin, and those whose reader is slow. A turn ends after
	// turnFor: what takes longer waits for its reader, and costs little.
	listsAtOnce = 16
	maxLists    = 2048
	turnWithin  = 15 * time.Second
	turnFor     = 2 * time.Second
	// maxWatches is how many watches one caller has from the index.
	maxWatches = 16_384

	tooManyLists   = "too many lists of one caller wait for their turn: try again later"
	tooManyWatches = "too many watches of one caller: end some"
)

// flow keeps callers from taking a gateway from each other: each has so many lists and watches at
// once. Its zero value is ready.
type flow struct {
	mu  sync.Mutex
	all map[string]*share // guarded by mu: of callers with a request
}

// share is what one caller has of a gateway.
type share struct {
	turns          *semaphore.Weighted
	lists, watches int // guarded by flow.mu
}

// list waits for a turn to answer a list, or the first state of a watch. Done gives it back, once.
func (f *flow) list(ctx context.Context, caller string) (done func(), ok bool) {
	s, ok := f.enter(caller, 1, 0)
	if !ok {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, turnWithin)
	defer cancel()
	if s.turns.Acquire(ctx, 1) != nil {
		f.leave(caller, 1, 0)
		return nil, false
	}
	release := sync.OnceFunc(func() { s.turns.Release(1) })
	over := time.AfterFunc(turnFor, release)
	return sync.OnceFunc(func() {
		over.Stop()
		release()
		f.leave(caller, 1, 0)
	}), true
}

// watch counts a watch until it is done.
func (f *flow) watch(caller string) (done func(), ok bool) {
	if _, ok := f.enter(caller, 0, 1); !ok {
		return nil, false
	}
	return func() { f.leave(caller, 0, 1) }, true
}

func (f *flow) enter(caller string, lists, watches int) (s *share, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*share{}
	}
	if s = f.all[caller]; s == nil {
		s = &share{turns: semaphore.NewWeighted(listsAtOnce)}
		f.all[caller] = s
	}
	if s.lists+lists > maxLists || s.watches+watches > maxWatches {
		return nil, false
	}
	s.lists, s.watches = s.lists+lists, s.watches+watches
	return s, true
}

func (f *flow) leave(caller string, lists, watches int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.all[caller]
	if s.lists, s.watches = s.lists-lists, s.watches-watches; s.lists == 0 && s.watches == 0 {
		delete(f.all, caller)
	}
}
