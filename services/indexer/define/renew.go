package define

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

const (
	// renewSize is how many objects get their fields in one step, fewer when the
	// fields take more than renewBytes.
	renewSize  = 256
	renewBytes = 1 << 20
	// buildMargin is about what a step of building an index takes.
	buildMargin = 1 << 20
)

// renew gives the objects the plan's fields, and takes away those that it has
// not. Their bytes are read outside the store's lock; an object that changes
// meanwhile was ingested by the plan, or is met again. When another plan has
// taken its place nothing more is done.
func (c *Indexes) renew(ctx context.Context, plan *extract.Plan) error {
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
func (c *Indexes) applyBy(plan *extract.Plan, ops []store.Op) bool {
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
	c       *Indexes
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
			fields = r.plan.Failed(fmt.Errorf("%w: %w", ErrNotRead, err))
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
	err := r.c.room.Spare(ctx, r.size)
	if !errors.Is(err, fault.ErrMemoryBudget) {
		return err
	}
	e := &noRoomError{err: err}
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
