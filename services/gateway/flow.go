package gateway

import (
	"context"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// listsAtOnce are answered to one caller at the same time, and maxLists are all that it has: those
	// that wait for their turn, up to turnWithin, and those whose reader is slow. A turn ends when
	// nothing was written for turnIdle: what waits for its reader costs little.
	listsAtOnce = 16
	maxLists    = 2048
	turnWithin  = 15 * time.Second
	turnIdle    = 20 * time.Millisecond
	// maxWatches is how many watches one caller has from the index.
	maxWatches = 16_384
)

var (
	tooManyLists   = &refusal{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many lists of one caller wait for their turn: try again later"}
	tooManyWatches = &refusal{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many watches of one caller: end some"}
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

// turn is that of a list, or of the first state of a watch.
type turn struct {
	release, leave func() // once each
	idle           *time.Timer
}

// wrote keeps the turn: something was written.
func (t *turn) wrote() { t.idle.Reset(turnIdle) }

// done ends the list. It may be called again.
func (t *turn) done() {
	t.idle.Stop()
	t.release()
	t.leave()
}

// list waits for the turn of a list of a caller; it reports false when none comes.
func (f *flow) list(ctx context.Context, caller string) (*turn, bool) {
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
	t := &turn{release: sync.OnceFunc(func() { s.turns.Release(1) }), leave: sync.OnceFunc(func() { f.leave(caller, 1, 0) })}
	t.idle = time.AfterFunc(turnIdle, t.release)
	return t, true
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
