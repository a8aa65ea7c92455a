package view

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
)

// question is what of a collection is watched.
type question struct{ collection, namespace, labels, index, value, cel string }

const (
	// againAfter is how long a watch that was refused is not tried again.
	againAfter = 2 * time.Second
	// fullFor is how long a collection that did not fit is not read again.
	fullFor = 30 * time.Second
)

// feed keeps the keys of a collection that a question chooses, by one watch. Their objects are
// fetched for those rows alone that somebody looks at.
type feed struct {
	again
	h      *Hub
	q      question
	filter *filter

	mu       sync.Mutex
	keys     map[string]uint64 // guarded by mu: the change that a key had last
	failed   map[string]bool   // guarded by mu: keys on which the expression fails
	coming   map[string]uint64 // guarded by mu: an initial state that is not complete; nil for none
	sorted   []string          // guarded by mu, never changed: the keys, as of the set
	came     []string          // guarded by mu: keys that sorted lacks
	went     bool              // guarded by mu: sorted has keys that are not there any more
	change   uint64            // guarded by mu: number of the last change
	set      uint64            // guarded by mu: number of the last change of which keys there are
	revision client.Revision   // guarded by mu
	upper    client.Revision   // guarded by mu
	synced   bool              // guarded by mu
	lagging  bool              // guarded by mu
	err      error             // guarded by mu
	readers  map[chan struct{}]struct{}
}

func newFeed(h *Hub, q question, f *filter) *feed {
	return &feed{h: h, q: q, filter: f, again: newAgain(), keys: map[string]uint64{}, failed: map[string]bool{}, readers: map[chan struct{}]struct{}{}}
}

func (f *feed) run(ctx context.Context) {
	o := client.WatchOptions{
		Namespace: f.q.namespace, Labels: f.q.labels, Index: f.q.index, Value: f.q.value, VisibleOnly: true, View: client.ViewKeys,
		BookmarkEvery: time.Second, Log: f.h.log,
		OnRetry: func(r client.WatchRetry) {
			if !errors.Is(r.Err, client.ErrStreamEnded) {
				f.fail(r.Err)
			}
		},
		OnLagging: func(since time.Time) { f.lags(!since.IsZero()) },
	}
	if f.filter != nil {
		o.View = client.ViewFull
	}
	defer f.drop()
	for ctx.Err() == nil {
		wait := againAfter
		f.begin()
		for e, err := range f.h.index.Watch(ctx, f.q.collection, o) {
			if err != nil {
				f.fail(err)
				break
			}
			if !f.take(&e) {
				f.drop()
				f.fail(errTooManyKeys)
				f.later() // what was asked for meanwhile is part of what does not fit
				wait = fullFor
				break
			}
		}
		f.pause(ctx, wait)
	}
}

// begin expects a whole state.
func (f *feed) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expect()
}

// expect expects a whole state in place of what came of one. f.mu is locked.
func (f *feed) expect() {
	f.h.keys.free(len(f.coming) + len(f.failed))
	f.coming, f.failed = map[string]uint64{}, map[string]bool{}
}

// drop gives up all keys.
func (f *feed) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expect()
	f.forget()
}

// forget gives up the keys that are shown. f.mu is locked.
func (f *feed) forget() {
	f.h.keys.free(len(f.keys))
	f.change++
	f.keys, f.sorted, f.came, f.went, f.set, f.synced = map[string]uint64{}, nil, nil, false, f.change, false
}

// room takes room for a key. What is shown gives way to a state that comes. f.mu is locked.
func (f *feed) room() bool {
	if f.h.keys.take() {
		return true
	}
	if f.coming == nil || len(f.keys) == 0 {
		return false
	}
	f.forget()
	return f.h.keys.take()
}

func (f *feed) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	f.wake()
}

func (f *feed) lags(is bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lagging = is
	f.wake()
}

// wake has those who look at the feed look again. f.mu is locked.
func (f *feed) wake() {
	for r := range f.readers {
		select {
		case r <- struct{}{}:
		default:
		}
	}
}

// take takes in what the watch says. It reports whether the keys fit.
func (f *feed) take(e *client.Event) (fits bool) {
	var chosen, fails bool
	if e.Type == client.EventAdded || e.Type == client.EventUpdated {
		chosen = true
		if f.filter != nil && !e.Object.Quarantined {
			yes, ok := f.filter.takes(e.Object.Payload)
			chosen, fails = yes && ok, !ok
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = nil
	if !e.Revision.IsZero() {
		f.revision = e.Revision
	}
	if !e.Upper.IsZero() {
		f.upper = e.Upper
	}
	switch e.Type {
	case client.EventGap:
		f.expect()
		return true
	case client.EventInitialEnd:
		if f.coming != nil {
			f.change++
			f.h.keys.free(len(f.keys))
			f.keys, f.coming, f.set = f.coming, nil, f.change
			f.sorted, f.came, f.went = slices.Sorted(maps.Keys(f.keys)), nil, false
		}
		f.synced = true
	case client.EventBookmark:
	default:
		f.change++
		if !f.put(e.Object.Key, chosen, fails) {
			return false
		}
		if f.coming != nil {
			return true
		}
	}
	f.wake()
	return true
}

// put takes in a key. It reports whether that fits. f.mu is locked.
func (f *feed) put(key string, chosen, fails bool) (fits bool) {
	switch {
	case fails == f.failed[key]:
	case fails:
		if !f.room() {
			return false
		}
		f.failed[key] = true
	default:
		f.h.keys.free(1)
		delete(f.failed, key)
	}
	into := f.keys
	if f.coming != nil {
		into = f.coming
	}
	_, known := into[key]
	switch {
	case chosen:
		if !known && !f.room() {
			return false
		}
		into[key] = f.change
	case known:
		f.h.keys.free(1)
		delete(into, key)
	}
	if known == chosen || f.coming != nil {
		return true
	}
	f.set = f.change
	if chosen {
		f.came = append(f.came, key)
	} else {
		f.went = true
	}
	return true
}

// all are the keys in order, and the number of the last change of which there are.
func (f *feed) all() ([]string, uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.came) > 0 || f.went {
		f.sorted = f.ordered()
		f.came, f.went = nil, false
	}
	return f.sorted, f.set
}

// ordered is the list of keys with what came and without what went. A key may have done both, and
// more than once. f.mu is locked.
func (f *feed) ordered() []string {
	slices.Sort(f.came)
	came := slices.Compact(f.came)
	out := make([]string, 0, len(f.keys))
	add := func(key string) {
		if _, there := f.keys[key]; there || !f.went {
			out = append(out, key)
		}
	}
	for _, key := range f.sorted {
		for len(came) > 0 && came[0] < key {
			add(came[0])
			came = came[1:]
		}
		if len(came) > 0 && came[0] == key {
			came = came[1:]
		}
		add(key)
	}
	for _, key := range came {
		add(key)
	}
	return out
}

// shown is the feed as one reader needs it.
type shown struct {
	changes         []uint64 // of the keys asked for; 0 where a key is not there any more
	revision, upper client.Revision
	state           string
	failed          int
	err             error
}

func (f *feed) look(keys []string) shown {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := shown{changes: make([]uint64, len(keys)), revision: f.revision, upper: f.upper, state: "serving", failed: len(f.failed), err: f.err}
	for i, key := range keys {
		s.changes[i] = f.keys[key]
	}
	switch {
	case !f.synced:
		s.state = "loading"
	case f.lagging:
		s.state = "lagging"
	}
	return s
}

// watched is a channel that has something whenever the feed has changed, until stop.
func (f *feed) watched() (wake chan struct{}, stop func()) {
	wake = make(chan struct{}, 1)
	f.mu.Lock()
	f.readers[wake] = struct{}{}
	f.mu.Unlock()
	return wake, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.readers, wake)
	}
}

// Collection shows a range of a collection's objects.
func (h *Hub) Collection(ctx context.Context, v *consolev1.CollectionView, changed func()) (Reader, error) {
	q := question{v.GetCollection(), v.GetNamespace(), v.GetLabelSelector(), v.GetIndex(), v.GetIndexValue(), v.GetCel()}
	if err := checkRange(v.GetLimit()); err != nil {
		return nil, err
	}
	filter, err := compile(v.GetCel())
	if err != nil {
		return nil, err
	}
	q.collection = h.resolve(ctx, q.collection)
	s, release, err := h.share("collection\x00"+strings.Join([]string{q.collection, q.namespace, q.labels, q.index, q.value, q.cel}, "\x00"), func() source { return newFeed(h, q, filter) })
	if err != nil {
		return nil, err
	}
	return h.newRows(s.(*feed), v, changed, release) //nolint:forcetypeassert // as in polled
}

// mostKept is how many keys of collections are kept for one caller, in all views together.
const mostKept = 1_000_000

// errTooManyKeys says that a view has more keys than there is room for.
var errTooManyKeys = rpc.Status(errFull, []rpc.Rule{{Is: errFull, Code: codes.ResourceExhausted, Reason: "TOO_MANY_KEYS"}})

var errFull = errors.New("what the pages of this caller choose together has more objects than a console keeps: choose by namespace, label or index, or close other pages")

// room counts what is kept. It is safe for concurrent use.
type room struct {
	most int64
	kept atomic.Int64
}

// take takes room for one; false where there is none.
func (r *room) take() bool {
	if r.kept.Add(1) <= r.most {
		return true
	}
	r.kept.Add(-1)
	return false
}

// free gives room back.
func (r *room) free(n int) { r.kept.Add(-int64(n)) }
