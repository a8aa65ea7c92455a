package reflector

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// A watch with a selector tells a deletion and a departure from the selector by the same event:
// DELETED, with the last state that was selected and the version of the change. Nothing in it tells
// them apart, so the API server is asked whether the object lives.
const (
	// maxPending are open at once in a collection; deletions beyond them are not asked about.
	maxPending = 4096
	// asking is how many requests are under way at once.
	asking = 16
	// askFor bounds how long a deletion is held back.
	askFor = 2 * time.Second
)

// answered is who said what became of an object that a selector's watch calls deleted, as the
// metric calls it.
type answered string

const (
	byServerGone      answered = "deleted"
	byServerLeft      answered = "left"
	byEvent           answered = "event"     // the key's next event
	byNobody          answered = "none"      // in time, or an error
	byNobodyForbidden answered = "forbidden" // not asked any more
	byNobodyCrowded   answered = "crowded"   // not asked: too many lookups were open
)

// deletionResolver stages what events bring. It holds a deletion back until it is known whether the
// object lives with the same UID: then it was [delta.FilteredOut], otherwise [delta.Observed], also
// when nobody answers in time or the reflector may not ask. Meanwhile other keys go on; the
// watermark waits. What follows for the same key answers by itself. Without a selector by which
// objects can leave, it asks nothing.
type deletionResolver struct {
	r      *reflection
	p      *publisher
	on     bool
	slots  chan struct{}
	ctx    context.Context // of the lookups
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	held   []*pendingDeletion // in the order of their events; guarded by mu
	high   delta.RV           // every event up to it was told, guarded by mu
	denied bool               // guarded by mu
	empty  chan struct{}
}

// pendingDeletion is a deletion that is held back.
type pendingDeletion struct {
	rec    delta.Record
	floor  delta.RV // the version of the event before it
	cancel context.CancelFunc
}

func newDeletionResolver(ctx context.Context, r *reflection, p *publisher, w delta.RV) *deletionResolver {
	a := &deletionResolver{r: r, p: p, high: w, on: canLeave(r.want.Scope), slots: make(chan struct{}, asking), empty: make(chan struct{}, 1)}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// canLeave reports whether an object can leave the scope without being deleted. Name and namespace
// do not change.
func canLeave(scope kube.Scope) bool {
	if scope.LabelSelector != "" {
		return true
	}
	for _, term := range strings.FieldsFunc(scope.FieldSelector, func(r rune) bool { return r == ',' }) {
		if field := strings.TrimSpace(term); !strings.HasPrefix(field, "metadata.name") {
			return true
		}
	}
	return false
}

// close ends all lookups without an answer. They move no watermark, so that the next leader meets
// their events again.
func (a *deletionResolver) close() {
	a.cancel()
	a.wg.Wait()
}

// event stages what one event brought, if anything, and moves the watermark as far as no lookup is
// open. It returns false when there was no room for the record.
func (a *deletionResolver) event(rec delta.Record, publish bool, rv delta.RV) (taken bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	floor := a.high
	a.high = delta.MaxRV(a.high, rv)
	if publish {
		if i := a.find(rec.Key); i >= 0 {
			a.answer(a.held[i], rec.UID != "" && rec.UID == a.held[i].rec.UID, byEvent)
		}
	}
	switch asks := a.on && publish && rec.Tombstone(); {
	case asks && a.denied:
		a.count(byNobodyForbidden)
	case asks && len(a.held) >= maxPending:
		a.count(byNobodyCrowded)
	case asks:
		a.ask(&pendingDeletion{rec: rec, floor: floor})
		return true
	}
	a.p.add(func(st *delta.Stage) {
		taken = !publish || st.Offer(rec)
		a.advance(st)
	})
	return taken
}

// pass says that the event of rv brought nothing. It is in no hurry: the log is told soon, of many
// together.
func (a *deletionResolver) pass(rv delta.RV) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.high = delta.MaxRV(a.high, rv)
	a.p.addLater(a.advance)
}

// told says that everything up to rv was told by other means: a complete list.
func (a *deletionResolver) told(rv delta.RV) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.high = delta.MaxRV(a.high, rv)
}

// holds reports whether deletions are held back.
func (a *deletionResolver) holds() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held) > 0
}

func (a *deletionResolver) advance(st *delta.Stage) {
	rv := a.high
	if len(a.held) > 0 {
		rv = a.held[0].floor
	}
	if rv != "" {
		st.Advance(rv)
	}
}

func (a *deletionResolver) count(by answered) {
	a.r.metrics.departures.WithLabelValues(a.r.label(), string(by)).Inc()
}

func (a *deletionResolver) find(key delta.Key) int {
	return slices.IndexFunc(a.held, func(q *pendingDeletion) bool { return q.rec.Key == key })
}

func (a *deletionResolver) ask(q *pendingDeletion) {
	ctx, cancel := context.WithTimeout(a.ctx, askFor)
	q.cancel = cancel
	a.held = append(a.held, q)
	a.wg.Go(func() {
		defer cancel()
		var uid string
		var err error
		select {
		case a.slots <- struct{}{}:
			ref := kube.Ref{Resource: a.r.resource}
			ref.Namespace, ref.Name = q.rec.Key.Namespace(), q.rec.Key.Name()
			uid, err = a.r.kube.Lives(ctx, ref, q.rec.RV)
			<-a.slots
		case <-ctx.Done():
			err = ctx.Err()
		}
		if a.ctx.Err() != nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		lives, by := err == nil && uid != "" && uid == q.rec.UID, byServerGone
		switch {
		case kube.IsForbidden(err):
			a.denied, by = true, byNobodyForbidden
		case err != nil:
			by = byNobody
		case lives:
			by = byServerLeft
		}
		a.answer(q, lives, by)
	})
}

// answer stages a deletion that was held back; a second answer is ignored.
func (a *deletionResolver) answer(q *pendingDeletion, lives bool, by answered) {
	i := slices.Index(a.held, q)
	if i < 0 {
		return
	}
	a.count(by)
	a.held = slices.Delete(a.held, i, i+1)
	q.cancel()
	if lives {
		q.rec.DeleteReason = delta.FilteredOut
	}
	a.p.add(func(st *delta.Stage) {
		st.Offer(q.rec) // a deletion is always taken
		a.advance(st)
	})
	if len(a.held) == 0 {
		select {
		case a.empty <- struct{}{}:
		default:
		}
	}
}

// settled waits until no lookup is open: what a list tells must not overtake them.
func (a *deletionResolver) settled(ctx context.Context) {
	for {
		a.mu.Lock()
		n := len(a.held)
		a.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-a.empty:
		case <-ctx.Done():
			return
		}
	}
}
