package indexer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

// definitionsBucket keeps declared indexes beside the log: one key per resource
// ("pods.v1"), whose value is the definition.Set of all its clusters. One key
// makes a name that two callers declare at once a conflict, also when one of
// them means every cluster.
const definitionsBucket = "deltaplane-indexes"

// maxSetBytes bounds the value of a key; NATS takes up to 1 MiB.
const maxSetBytes = 512 << 10

// declaration is a definition ready to be used, or why it cannot be.
type declaration struct {
	definition.Declared
	program *definition.Program // nil when err is not
	err     error
}

// declarations are the indexes that callers have declared, as last known. They
// go on being known while the log is away.
type declarations struct {
	log     deltaLog
	slog    *slog.Logger
	changed func(resource string) // called without the lock after each change
	known   chan struct{}         // closed once all that was there has been read
	look    chan struct{}         // cap 1; the bucket may be gone
	opening chan struct{}         // cap 1; full while somebody opens the bucket

	mu      sync.Mutex // guards the rest
	bucket  *stream.Bucket
	lost    bool                      // the bucket is gone, and what it held was not put back yet
	entries map[string]*declaredEntry // by resource
}

type declaredEntry struct {
	revision uint64 // 0: of a bucket that is gone
	value    []byte // as it is in the bucket
	list     []declaration
	err      error // of a value that is no set
}

func newDeclarations(log deltaLog, slog *slog.Logger, changed func(string)) *declarations {
	return &declarations{
		log: log, slog: slog, changed: changed, known: make(chan struct{}), look: make(chan struct{}, 1), opening: make(chan struct{}, 1),
		entries: map[string]*declaredEntry{},
	}
}

// complete reports whether all that was declared before this replica began is
// known.
func (d *declarations) complete() bool {
	select {
	case <-d.known:
		return true
	default:
		return false
	}
}

// of returns what is declared for a collection.
func (d *declarations) of(id delta.Collection) []declaration {
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []declaration
	if e := d.entries[id.ResourceName()]; e != nil {
		for _, x := range e.list {
			if x.In(id.Cluster) {
				list = append(list, x)
			}
		}
	}
	return list
}

// note takes in a value of b that is newer than what is known; it reports
// whether b is still the bucket. A value that cannot be read changes nothing
// that is in use.
func (d *declarations) note(b *stream.Bucket, resource string, revision uint64, value []byte, set definition.Set, err error) bool {
	d.mu.Lock()
	old := d.entries[resource]
	if old == nil {
		old = &declaredEntry{}
	}
	if d.bucket != b || revision <= old.revision {
		defer d.mu.Unlock()
		return d.bucket == b
	}
	e := &declaredEntry{revision: revision, value: bytes.Clone(value), err: err, list: old.list}
	same := bytes.Equal(value, old.value) // put back into a bucket made anew
	if err == nil && !same {
		e.list = compileAll(set, old.list)
	}
	d.entries[resource] = e
	d.mu.Unlock()
	if !same {
		d.changed(resource)
	}
	return true
}

// compileAll compiles a set, but for what has been.
func compileAll(set definition.Set, old []declaration) []declaration {
	list := make([]declaration, 0, len(set))
	for _, x := range set {
		c := declaration{Declared: x, err: x.Err}
		for i := range old {
			if c.err == nil && old[i].program != nil && old[i].Source() == x.Source() && old[i].Name == x.Name {
				c.program = old[i].program
			}
		}
		if c.err == nil && c.program == nil {
			c.program, c.err = definition.Compile(x.Definition)
		}
		list = append(list, c)
	}
	return list
}

// edit changes what is declared for a resource: change gets the set as it is
// and returns it as it is to be, or nil to leave it; several callers at once
// are put one after another. The change holds on this replica when edit
// returns. Errors are those of change, or errDefinitionsAway.
func (d *declarations) edit(ctx context.Context, resource string, change func(definition.Set) (definition.Set, error)) error {
	for range 20 {
		b, err := d.open(ctx)
		if err != nil {
			return away(err)
		}
		e, err := b.Get(ctx, resource)
		absent := errors.Is(err, stream.ErrNoKey)
		if (err != nil && !absent || e.Revision < d.revision(resource)) && d.lose(ctx, b) {
			continue
		}
		if err != nil && !absent {
			return away(err)
		}
		set, err := definition.DecodeSet(e.Value)
		if err != nil {
			return newFault(errDefinitionsAway, err.Error(), "resource", resource)
		}
		next, err := change(set)
		if err != nil {
			return err
		}
		if next == nil { // what is known here may be older than what was read
			d.note(b, resource, e.Revision, e.Value, set, nil)
			return nil
		}
		value, err := next.Encode()
		if err != nil {
			return err
		}
		if len(value) > maxSetBytes {
			return newFault(errTooManyIndexes, fmt.Sprintf("definitions for %s would take %d bytes, at most %d", resource, len(value), maxSetBytes), "resource", resource)
		}
		revision, err := b.Update(ctx, resource, value, e.Revision)
		switch {
		case err == nil && !d.note(b, resource, revision, value, next, nil):
			return newFault(errDefinitionsAway, "the bucket was lost meanwhile", "resource", resource)
		case err == nil:
			return nil
		case !errors.Is(err, stream.ErrConflict):
			return away(err)
		}
	}
	return newFault(errDefinitionsAway, "others keep changing them", "resource", resource)
}

// revision is that of what is known of a resource; 0 when nothing is.
func (d *declarations) revision(resource string) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[resource]; e != nil {
		return e.revision
	}
	return 0
}

func away(err error) error { return newFault(errDefinitionsAway, err.Error()) }
