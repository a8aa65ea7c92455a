package indexer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

const (
	// renewSize is how many objects get their fields in one step, fewer when the
	// fields take more than renewBytes.
	renewSize  = 256
	renewBytes = 1 << 20
	// buildMargin is about what a step of building an index takes.
	buildMargin = 1 << 20
	// buildShare is the share of the memory budget that indexes may fill when they
	// are built: the rest is for what is written next.
	buildShare = 0.9
	// shedShare is the share of a collection's memory from which a declared index
	// is given up before the collection is.
	shedShare = 0.25
)

// unfitError says that indexes are not built: the one of a name, or those of a
// field.
type unfitError struct {
	index, field string
	err          error
}

func (e *unfitError) Error() string { return e.err.Error() }

func unfit(err error, index string) error {
	if errors.Is(err, errMemoryBudget) {
		return &unfitError{index: index, err: err}
	}
	return err
}

// spare waits until an index that is built may take size more bytes. The error
// tells that it will not, or that ctx has ended.
func (s *Service) spare(ctx context.Context, c *collection, size int) error {
	budget := s.cfg.MemoryBudget
	if budget == 0 || s.memory()+size <= int(buildShare*float64(budget)) {
		return nil
	}
	if s.cfg.Tier == TierAuto {
		for _, c := range s.names.Load().all {
			c.keeper.Compact(true)
		}
	}
	return s.fit(ctx, c, size+budget-int(buildShare*float64(budget)))
}

// withoutRoom gives up building what does not fit; any other error it returns.
func (c *collection) withoutRoom(err error) error {
	e, ok := errors.AsType[*unfitError](err)
	if !ok {
		return err
	}
	given := false
	c.declaring.Lock()
	for _, x := range *c.declared.Load() {
		if x.program != nil && (x.Name == e.index || e.field != "" && x.program.Field() == e.field) {
			given = true
			c.unfit[x.Name] = e.err
			c.slog.Warn("an index is not built", slog.String(telemetry.KeyCollection, c.name), slog.String("index", x.Name), telemetry.Err(e.err))
		}
	}
	c.declaring.Unlock()
	if !given { // whoever removed it has woken build
		return nil
	}
	c.declare()                           // wakes build: what the index had is taken away
	c.store.Apply(store.Batch{}, c.now()) // wakes who waits for the index
	return nil
}

// shed gives up the declared index that takes most, if that is much of what the
// collection takes; it reports whether it did. A collection without one of its
// indexes is worth more than none.
func (c *collection) shed(ctx context.Context, why error) bool {
	name, most := "", int(shedShare*float64(c.memory()))
	for index, n := range c.weights() {
		if n > most || n == most && index > name {
			name, most = index, n
		}
	}
	if name == "" {
		return false
	}
	if err := c.withoutRoom(&unfitError{index: name, err: why}); err != nil {
		return false
	}
	return c.renew(ctx, c.plan.Load()) == nil
}

// weights are about what the declared indexes take, with their fields.
func (c *collection) weights() map[string]int {
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
func (c *collection) leaveOut(list []declaration) {
	for _, x := range *c.declared.Load() {
		if now := find(list, x.Name); now == nil || now.Source() != x.Source() {
			clear(c.unfit)
		}
	}
	for i, x := range list {
		if why, ok := c.unfit[x.Name]; ok && x.program != nil {
			list[i].program, list[i].err = nil, why
		}
	}
}

// renew gives the objects the plan's fields, and takes away those that it has
// not. Their bytes are read outside the store's lock; an object that changes
// meanwhile was ingested by the plan, or is met again. When another plan has
// taken its place nothing more is done.
func (c *collection) renew(ctx context.Context, plan *extract.Plan) error {
	r := renewal{c: c, plan: plan, extract: extract.New(plan), heavy: map[string]int{}}
	for again := true; again; {
		again = false
		for after := ""; ; {
			ops, last, more := r.chunk(ctx, after)
			if err := ctx.Err(); err != nil {
				return err
			}
			if len(ops) > 0 {
				again = true
				if err := r.room(ctx); err != nil {
					return err
				}
				if !c.applyBy(plan, ops) {
					return nil
				}
			}
			if after = last; !more {
				break
			}
		}
	}
	return nil
}

// applyBy applies operations that were made by a plan, unless another one has
// taken its place.
func (c *collection) applyBy(plan *extract.Plan, ops []store.Op) bool {
	c.ingest.Lock()
	defer c.ingest.Unlock()
	if c.plan.Load() != plan {
		return false
	}
	c.store.Apply(store.Batch{Ops: ops}, c.now())
	return true
}

// renewal is one renewing of a collection's objects by a plan.
type renewal struct {
	c       *collection
	plan    *extract.Plan
	extract *extract.Extractor
	heavy   map[string]int // about what was added by field
	size    int            // of it, by the last chunk
}

func (r *renewal) chunk(ctx context.Context, after string) (ops []store.Op, last string, more bool) {
	seen := 0
	r.size = 0
	for o := range r.c.store.Snapshot().All(after) {
		if seen++; seen > 16*renewSize || len(ops) == renewSize || r.size >= renewBytes {
			return ops, last, true
		}
		last = o.Key()
		if o.Faulty() || !r.plan.Differs(o) {
			continue
		}
		payload, err := o.Payload()
		var fields *store.Fields
		if err == nil {
			fields, err = r.extract.Fields(ctx, payload)
		}
		if err != nil {
			fields = r.plan.Failed(fmt.Errorf("%w: %w", errNotRead, err))
		}
		if len(fields.Readings()) == len(o.Fields().Readings()) && !r.plan.Lacks(o) {
			continue // what it has is what it gets
		}
		r.weigh(o, fields)
		ops = append(ops, store.Op{Swap: &store.Swap{Old: o, New: o.WithFields(fields)}})
	}
	return ops, last, false
}

// weigh counts the fields that an object did not have.
func (r *renewal) weigh(o *store.Object, fields *store.Fields) {
	for _, x := range fields.Readings() {
		f := x.Field()
		if _, had := o.Field(f.Name); had {
			continue
		}
		n := weight(f)
		r.heavy[f.Name] += n
		r.size += n
	}
}

// room waits until there is room for the last chunk. The error names the field
// that has taken most.
func (r *renewal) room(ctx context.Context) error {
	if r.size == 0 {
		return nil
	}
	err := r.c.room(ctx, r.size)
	if !errors.Is(err, errMemoryBudget) {
		return err
	}
	e := &unfitError{err: err}
	for field, n := range r.heavy {
		if most := r.heavy[e.field]; r.declared(field) && (n > most || n == most && strings.Compare(field, e.field) > 0) {
			e.field = field
		}
	}
	if e.field == "" { // fields that are read whatever is declared
		return nil
	}
	return e
}

// declared reports whether a field is that of a declared index.
func (r *renewal) declared(field string) bool {
	for _, x := range *r.c.declared.Load() {
		if x.program != nil && x.program.Field() == field {
			return true
		}
	}
	return false
}
