package follow

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
)

// discovered is what the source's discovery, and the reflector's spec, say of a collection's
// resource, as the log has it in one epoch: a definition that is made again with another
// scope begins a new one. Checkpoints hold none of it, the reflector says it
// again with every sign of life.
type discovered struct {
	epoch uint64 // the reader's
	scope atomic.Pointer[delta.Scope]
	names atomic.Pointer[[]string]
	// dropped is what the reflector's spec leaves out of objects.
	dropped atomic.Pointer[[]string]
	all     atomic.Bool // the spec takes every object
}

// note takes what a record says. It does not keep the record for it, nor the
// message that the record's texts are parts of.
func (d *discovered) note(r *delta.Record) {
	if r.Epoch > d.epoch {
		d.epoch = r.Epoch
		d.scope.Store(nil)
		d.names.Store(nil)
		d.dropped.Store(nil)
		d.all.Store(false)
	}
	if r.Epoch != d.epoch {
		return
	}
	if known := d.scope.Load(); r.Scope != "" && (known == nil || *known != r.Scope) {
		scope := r.Scope
		d.scope.Store(&scope)
	}
	if len(r.Names) > 0 {
		replace(&d.names, r.Names)
	}
	if r.Dropped != nil {
		replace(&d.dropped, r.Dropped)
		d.all.Store(r.All)
	}
}

// replace stores a copy of texts that are parts of a message, unless they are known.
func replace(known *atomic.Pointer[[]string], texts []string) {
	if have := known.Load(); have != nil && slices.Equal(*have, texts) {
		return
	}
	copied := make([]string, len(texts))
	for i, text := range texts {
		copied[i] = strings.Clone(text)
	}
	known.Store(&copied)
}

// Dropped are the paths of the fields that objects lack, as [delta.Record] has them; nil while
// nobody has said.
func (c *Collection) Dropped() []string {
	if paths := c.known.dropped.Load(); paths != nil {
		return *paths
	}
	return nil
}

// All reports whether the reflector's spec takes every object of the resource; false while nobody
// has said.
func (c *Collection) All() bool { return c.known.all.Load() }

// otherNames are what the resource is called beside its plural, if anybody has
// said.
func (d *discovered) otherNames() []string {
	if names := d.names.Load(); names != nil {
		return *names
	}
	return nil
}

// Scope is where keys live: as the log says or, where it is of an older
// version, as the objects show. It is empty for an empty collection of which
// nobody has said.
func (c *Collection) Scope(snap *store.Snapshot) delta.Scope {
	if known := c.known.scope.Load(); known != nil {
		return *known
	}
	for o := range snap.All("") {
		if o.Namespace() != "" {
			return delta.Namespaced
		}
		return delta.ClusterScoped
	}
	return ""
}
