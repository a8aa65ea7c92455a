package define

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

const (
	// evictShare is the share of a collection's memory from which a declared index
	// is given up before the collection is.
	evictShare = 0.25
	// An index that was given up is built again where there is room for a quarter more than it had,
	// less where there are fewer objects, retryLooks looks later at the soonest, and twice as many
	// each time that it is given up once more, up to retryDoublings times: to read the fields of all
	// objects costs about what a replay does.
	retryLooks, retryDoublings = 8, 6
)

// omission is a declared index that was given up for lack of room.
type omission struct {
	why    error
	need   int       // what it had then, and a step more
	of     int       // objects of the collection then
	times  int       // how often it was given up
	at     time.Time // when it was last given up, or begun again
	trying bool      // it has been begun again
}

// room is how much must be free before the index of so many objects is built
// again.
func (o *omission) room(objects int) int {
	room := o.need + o.need/4
	if objects < o.of {
		room = int(float64(room) * float64(objects) / float64(o.of))
	}
	return max(room, buildMargin)
}

// noRoomError says that indexes are not built: the one of a name, or those of a
// field.
type noRoomError struct {
	index, field string
	err          error
}

func (e *noRoomError) Error() string { return e.err.Error() }

func noRoom(err error, index string) error {
	if errors.Is(err, fault.ErrMemoryBudget) {
		return &noRoomError{index: index, err: err}
	}
	return err
}

// withoutRoom gives up building what does not fit; any other error it returns.
func (c *Indexes) withoutRoom(err error) error {
	e, ok := errors.AsType[*noRoomError](err)
	if !ok {
		return err
	}
	weights := c.weights()
	given := false
	c.declaring.Lock()
	for _, x := range *c.declared.Load() {
		if x.program != nil && (x.Name == e.index || e.field != "" && x.program.Field() == e.field) {
			given = true
			o := c.omit(x.Name, weights[x.Name]+buildMargin, e.err)
			c.slog.Warn("an index is not built", slog.String(telemetry.KeyCollection, c.name), slog.String("index", x.Name), telemetry.Err(o.why))
		}
	}
	c.declaring.Unlock()
	if !given { // the remover has woken build
		return nil
	}
	c.Declare()                           // wakes build: what the index had is taken away
	c.store.Apply(store.Batch{}, c.now()) // wakes who waits for the index
	return nil
}

// omit notes that there is no room for an index. c.declaring is held.
func (c *Indexes) omit(name string, need int, why error) *omission {
	o := c.omitted[name]
	if o == nil {
		o = &omission{}
		c.omitted[name] = o
	}
	if o.trying && c.now().Sub(o.at) > c.retryAfter(retryDoublings) { // it was there for long
		o.times = 0
	}
	o.times, o.at, o.trying = o.times+1, c.now(), false
	o.need, o.of = need, c.store.Snapshot().Len()
	o.why = fmt.Errorf("%w; it is built again once about %d bytes are free", why, o.room(o.of))
	return o
}

// retryAfter is how long an index is left out that has been given up so often.
func (c *Indexes) retryAfter(times int) time.Duration {
	return c.lookEvery * retryLooks << min(times-1, retryDoublings)
}

// omitting reports whether an index is left out for lack of room.
func (c *Indexes) omitting() bool {
	c.declaring.Lock()
	defer c.declaring.Unlock()
	for _, o := range c.omitted {
		if !o.trying {
			return true
		}
	}
	return false
}

// retry begins to build again one of the indexes that were given up, if it may
// fit now: that which needs least. build is woken for it.
func (c *Indexes) retry() {
	name, least := c.cheapest()
	if name == "" || !c.room.Fits(least) { // which may take a while
		return
	}
	c.declaring.Lock()
	o := c.omitted[name]
	if !c.ripe(o) {
		c.declaring.Unlock()
		return
	}
	o.trying, o.at = true, c.now()
	c.declaring.Unlock()
	c.slog.Info("an index is built again, there may be room for it", slog.String(telemetry.KeyCollection, c.name), slog.String("index", name))
	c.Declare()
}

// cheapest is the index that needs least of those that may be tried again, and
// how much; empty when there is none.
func (c *Indexes) cheapest() (name string, least int) {
	c.declaring.Lock()
	defer c.declaring.Unlock()
	objects := c.store.Snapshot().Len()
	for index, o := range c.omitted {
		if !c.ripe(o) {
			continue
		}
		if room := o.room(objects); name == "" || room < least || room == least && index < name {
			name, least = index, room
		}
	}
	return name, least
}

// ripe reports whether an index was left out for long enough; nil is none.
// c.declaring is held.
func (c *Indexes) ripe(o *omission) bool {
	return o != nil && !o.trying && c.now().Sub(o.at) >= c.retryAfter(o.times)
}

// Evict gives up the declared index that takes most, if that is much of what the
// collection takes; it reports whether it did. A collection without one of its
// indexes is worth more than none.
func (c *Indexes) Evict(ctx context.Context, memory int, why error) bool {
	name, most := "", int(evictShare*float64(memory))
	for index, n := range c.weights() {
		if n > most || n == most && index > name {
			name, most = index, n
		}
	}
	if name == "" {
		return false
	}
	if err := c.withoutRoom(&noRoomError{index: name, err: why}); err != nil {
		return false
	}
	return c.renew(ctx, c.plan.Load()) == nil
}

// weights are about what the declared indexes take, with their fields.
func (c *Indexes) weights() map[string]int {
	snap, fields, seen := c.store.Snapshot(), map[string]int{}, map[*store.Reading]bool{}
	for o := range snap.All("") {
		for _, r := range o.Fields().Readings() {
			if !seen[r] {
				seen[r] = true
				fields[r.Field().Name] += weight(r.Field())
			}
		}
	}
	weights := map[string]int{}
	for _, x := range *c.declared.Load() {
		if x.program != nil {
			weights[x.Name] = fields[x.program.Field()]
		}
	}
	for _, info := range snap.Indexers() {
		if _, ok := weights[info.Name]; ok {
			weights[info.Name] += info.Bytes
		}
	}
	return weights
}

// weight is about what a field takes.
func weight(f store.Field) int {
	n := 80
	for _, v := range f.Values {
		n += 24 + len(v)
	}
	return n
}

// leaveOut marks the indexes for which there was no room. Once something is
// declared no more they are tried again.
func (c *Indexes) leaveOut(list []declaration) {
	for _, x := range *c.declared.Load() {
		if now := find(list, x.Name); now == nil || now.Source() != x.Source() {
			clear(c.omitted)
		}
	}
	for i, x := range list {
		if o, ok := c.omitted[x.Name]; ok && !o.trying && x.program != nil {
			list[i].program, list[i].err = nil, o.why
		}
	}
}
