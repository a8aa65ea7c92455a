package watch

import (
	"fmt"
	"slices"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/services/indexer/define"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
)

// selector is a filter with what a watch goes by.
type selector struct {
	filter.Filter
	needs     []need // see bind
	selection uint64 // see place

	chosen filter.Filter // by the request, whatever is visible
	scope  access.Scope  // what is visible to the caller
}

// see is the selector of what is visible.
func (f *selector) see(scope access.Scope) selector {
	out := *f
	out.Filter, out.scope = f.chosen, scope
	out.See(scope)
	return out
}

// need is a declared index that a watch goes by, itself or by its field, as it
// was when the watch began. Every object of a snapshot that has it was read with
// its field.
type need struct {
	index string
	added uint64 // see store.Snapshot.Added
}

// bind notes which declared indexes a filter goes by in a snapshot. The error
// tells that one is not there, or not yet.
func bind(c *follow.Collection, f *selector, snap *store.Snapshot) error {
	if f.Index != "" {
		_, err := snap.ByIndex(f.Index, f.Values...)
		if err := filter.Tolerate(err, false); err != nil {
			return c.Indexes.IndexError(err)
		}
		if err := f.Vouch(snap); err != nil {
			return c.Indexes.IndexError(err)
		}
	}
	f.needs, f.selection = nil, 0
	for i, index := range append(slices.Clip(f.ByField), f.Index) {
		if _, ok := define.BuiltInOf(c.ID, index); ok || index == "" {
			continue
		}
		added, ok := snap.Added(index)
		if !ok { // the collection has it by now, and will answer by a snapshot that does
			return fault.New(fault.ErrIndexBuilding, fmt.Sprintf("%q in %s", index, c.Name), "index", index, "collection", c.Name)
		}
		f.needs = append(f.needs, need{index, added})
		if i < len(f.ByField) {
			continue
		}
		if selection, since, ok := c.Indexes.Selection(index); ok && since == added {
			f.selection = selection
		} else if ok {
			return declaredAgain(c, index)
		}
	}
	return nil
}

func declaredAgain(c *follow.Collection, index string) error {
	return fault.New(fault.ErrIndexBuilding, fmt.Sprintf("%q in %s was declared again: resume the watch", index, c.Name), "index", index, "collection", c.Name)
}

// missing says why a watch whose need is not met has to end: what it goes by is
// gone, or is another.
func missing(c *follow.Collection, f *selector, n need) error {
	for i, index := range f.ByField {
		if index != n.index {
			continue
		}
		field := f.Fields[i].Field
		switch _, err := c.Indexes.Field(field); {
		case err == nil:
			return declaredAgain(c, index)
		case !c.Indexes.Plan().Reads(field):
			return fault.New(fault.ErrIndexNotFound, fmt.Sprintf("field %.100q of %s is not indexed any more", field, c.Name), "index", index, "collection", c.Name)
		default:
			return err
		}
	}
	if !c.Indexes.Declares(n.index) {
		return c.Indexes.UnknownIndex(n.index)
	}
	return declaredAgain(c, n.index)
}
