package indexer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
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

	mu      sync.Mutex // guards the rest
	bucket  *stream.Bucket
	entries map[string]*declaredEntry // by resource
}

type declaredEntry struct {
	revision uint64
	list     []declaration
	err      error // of a value that is no set
}

func newDeclarations(log deltaLog, slog *slog.Logger, changed func(string)) *declarations {
	return &declarations{log: log, slog: slog, changed: changed, known: make(chan struct{}), entries: map[string]*declaredEntry{}}
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

// run follows the bucket until ctx ends.
func (d *declarations) run(ctx context.Context) error {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause, failing := least, false
	for ctx.Err() == nil {
		b, err := d.open(ctx)
		if err == nil {
			failing, pause = false, least
			err = b.Watch(ctx, d.take)
		}
		if ctx.Err() != nil {
			return nil
		}
		if !failing {
			failing = true
			d.slog.Warn("cannot read declared indexes", telemetry.Err(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, most)
	}
	return nil
}

func (d *declarations) open(ctx context.Context) (*stream.Bucket, error) {
	d.mu.Lock()
	b := d.bucket
	d.mu.Unlock()
	if b != nil {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := d.log.Bucket(ctx, definitionsBucket, 0)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bucket = b
	return b, nil
}

// take is the handler of the bucket's entries; an empty one ends the first.
func (d *declarations) take(e stream.Entry) error {
	if e.Key == "" {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.complete() {
			close(d.known)
		}
		return nil
	}
	if e.Deleted {
		e.Value = nil
	}
	set, err := definition.DecodeSet(e.Value)
	if err != nil {
		d.slog.Error("declared indexes cannot be used", slog.String("resource", e.Key), telemetry.Err(err))
	}
	d.note(e.Key, e.Revision, set, err)
	return nil
}

// note takes in a set that is newer than what is known. One that cannot be read
// changes nothing that is in use.
func (d *declarations) note(resource string, revision uint64, set definition.Set, err error) {
	d.mu.Lock()
	old := d.entries[resource]
	if old == nil {
		old = &declaredEntry{}
	}
	if revision <= old.revision {
		d.mu.Unlock()
		return
	}
	e := &declaredEntry{revision: revision, err: err, list: old.list}
	if err == nil {
		e.list = compileAll(set, old.list)
	}
	d.entries[resource] = e
	d.mu.Unlock()
	d.changed(resource)
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
	b, err := d.open(ctx)
	if err != nil {
		return away(err)
	}
	for range 20 {
		e, err := b.Get(ctx, resource)
		if err != nil && !errors.Is(err, stream.ErrNoKey) {
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
			d.note(resource, e.Revision, set, nil)
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
		case err == nil:
			d.note(resource, revision, next, nil)
			return nil
		case !errors.Is(err, stream.ErrConflict):
			return away(err)
		}
	}
	return newFault(errDefinitionsAway, "others keep changing them", "resource", resource)
}

func away(err error) error { return newFault(errDefinitionsAway, err.Error()) }
