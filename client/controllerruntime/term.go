package controllerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/client"
	"github.com/deltaplane/deltaplane/client/internal/feed"
)

// term is a part of a replica's lead, in one generation of the queue's store.
//
//	watch ──> handlers ──> queues ──> flush ──> save the positions
type term struct {
	l    *lead
	item client.Item
	left feed.State // of the term before

	mu        sync.Mutex // guards what follows
	at        map[source]reached
	dirty     bool
	shut      bool // a queue takes nothing any more
	moves     chan struct{}
	followers map[*registration]*follower
}

// source is a handler in one of its informer's scopes.
type source struct {
	r     *registration
	scope int
}

// reached is how far a handler has come.
type reached struct {
	position client.Position // zero within a state
	upper    client.Revision
}

type follower struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newTerm(l *lead, item client.Item, left feed.State) *term {
	return &term{
		l: l, item: item, left: left, at: map[source]reached{}, dirty: true,
		moves: make(chan struct{}, 1), followers: map[*registration]*follower{},
	}
}

// place names a scope of a kind: its handlers share a position, which is the first of theirs.
func place(r *registration, scope int) string {
	i := r.informer
	return feed.Name(i.collection, fmt.Sprintf("%d;%s", i.form, i.scopes[scope].id()))
}

// fed names what changes are handed to: the revision of the program, its controllers and, since
// nobody can tell handlers apart, how many there are of a kind.
func (t *term) fed(all []*registration) []string {
	names := []string{"revision " + t.l.o.o.Revision}
	t.l.o.mu.Lock()
	for name := range t.l.o.queues {
		names = append(names, "controller "+name)
	}
	t.l.o.mu.Unlock()
	count := map[string]int{}
	for _, r := range all {
		kind := fmt.Sprintf("%s %d", r.informer.collection, r.informer.form)
		count[kind]++
		names = append(names, fmt.Sprintf("handler %s %d", kind, count[kind]))
	}
	slices.Sort(names)
	return names
}

// run leads until ctx ends, or the program stops. Again says that every handler has to be called
// with every object.
func (t *term) run(ctx context.Context) (again bool, err error) {
	follow, stop := context.WithCancel(ctx)
	again, err = t.work(follow)
	stop()
	t.wait()
	if again || err != nil || ctx.Err() != nil {
		return again, err
	}
	last, cancel := context.WithTimeout(ctx, lastWrites)
	defer cancel()
	return false, t.save(last)
}

// work starts followers and saves what they reached until there is a reason not to.
func (t *term) work(ctx context.Context) (again bool, err error) {
	var rest <-chan time.Time // between two saves
	for {
		all, generation, changed := t.l.present()
		if generation != t.left.Generation || t.news(all) {
			return true, nil
		}
		t.start(ctx, all)
		moves := t.moves
		if rest != nil {
			moves = nil
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-t.l.stop:
			return false, nil
		case <-changed:
		case <-rest:
			rest = nil
		case <-moves:
			if t.over() { // what follows is for another replica
				return false, nil
			}
			err := t.save(ctx)
			if errors.Is(err, client.ErrLeaseLost) || ctx.Err() != nil {
				return false, err
			}
			if err != nil {
				t.l.o.report("feed", "position", err)
				t.move()
			}
			rest = time.After(saveEvery)
		}
	}
}

// news reports whether somebody is to be handed changes who had none of those up to the positions
// that the term goes on from.
func (t *term) news(all []*registration) bool {
	if len(t.left.At) == 0 {
		return false
	}
	for _, name := range t.fed(all) {
		if !slices.Contains(t.left.Fed, name) {
			t.l.o.o.Log.Info("every object is handed to handlers again", slog.String("reason", "no leader has fed this before"), slog.String("what", name))
			return true
		}
	}
	return false
}

// start follows for handlers that are new, and ends it for those that were removed.
func (t *term) start(ctx context.Context, all []*registration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r, f := range t.followers {
		if !slices.Contains(all, r) {
			f.cancel()
			delete(t.followers, r)
			maps.DeleteFunc(t.at, func(s source, _ reached) bool { return s.r == r })
		}
	}
	for _, r := range all {
		if t.followers[r] != nil {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		f := &follower{cancel: cancel, done: make(chan struct{})}
		t.followers[r] = f
		go func() {
			defer close(f.done)
			r.follow(own, t, time.Unix(t.left.Swept, 0))
		}()
	}
}

// wait returns when no handler is called any more.
func (t *term) wait() {
	t.mu.Lock()
	all := slices.Collect(maps.Values(t.followers))
	t.mu.Unlock()
	for _, f := range all {
		f.cancel()
		<-f.done
	}
}

func (t *term) from(r *registration, scope int) client.Position {
	left, ok := t.left.At[place(r, scope)]
	if !ok {
		return client.Position{}
	}
	var at client.Position
	if err := at.UnmarshalText([]byte(left.Position)); err != nil {
		t.l.o.report("feed", r.informer.collection, err)
		return client.Position{}
	}
	t.l.o.feeds(r.informer.collection, client.Revision{Epoch: left.Epoch, RV: left.RV})
	return at
}

func (t *term) moved(r *registration, scope int, at client.Position, upper client.Revision) bool {
	shut := t.l.o.shuttingDown()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shut = t.shut || shut
	if !t.shut {
		t.at[source{r, scope}] = reached{at, upper}
		t.dirty = true
	}
	t.move()
	return !t.shut
}

func (t *term) move() {
	select {
	case t.moves <- struct{}{}:
	default:
	}
}

// over reports whether a queue takes nothing any more: the program stops.
func (t *term) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shut
}

// save leaves what was reached to the next leader, once all that handlers added is acknowledged.
func (t *term) save(ctx context.Context) error {
	all, _, _ := t.l.present()
	state, err := t.state(all)
	if state == nil || err != nil {
		return err
	}
	if err := t.write(ctx, *state); err != nil {
		t.mu.Lock()
		t.dirty = true
		t.mu.Unlock()
		return err
	}
	return nil
}

func (t *term) write(ctx context.Context, state feed.State) error {
	for _, q := range t.l.o.keptQueues() {
		if err := q.Flush(ctx); err != nil {
			return err
		}
	}
	b, err := state.Encode()
	if err != nil {
		return err
	}
	return t.l.feed.SaveState(ctx, feed.Key, t.item.Token, b)
}

// state is what there is to save; nil for nothing.
func (t *term) state(all []*registration) (*feed.State, error) {
	fed := t.fed(all)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.dirty {
		return nil, nil
	}
	t.dirty = false
	of := map[string][]reached{} // by place
	for _, r := range all {
		for n := range r.informer.scopes {
			name := place(r, n)
			of[name] = append(of[name], t.at[source{r, n}])
		}
	}
	state := &feed.State{Generation: t.left.Generation, Swept: t.left.Swept, At: map[string]feed.Place{}, Fed: fed}
	for name, handlers := range of {
		first, ok := firstOf(handlers)
		if !ok {
			continue
		}
		text, err := first.position.MarshalText()
		if err != nil {
			return nil, err
		}
		state.At[name] = feed.Place{Position: string(text), Epoch: first.upper.Epoch, RV: first.upper.RV}
	}
	return state, nil
}

// firstOf is how far the last of some handlers has come. There is none while one of them is within
// a state, or they are in different epochs.
func firstOf(handlers []reached) (first reached, ok bool) {
	for _, at := range handlers {
		if at.position == (client.Position{}) || ok && at.position.Epoch != first.position.Epoch {
			return reached{}, false
		}
		if !ok || at.position.Sequence < first.position.Sequence {
			first, ok = at, true
		}
	}
	return first, ok
}
