package define

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
)

// definitionsBucket keeps declared indexes beside the log: one key per resource
// ("pods.v1"), whose value is the definition.Set of all its clusters. One key
// makes a name that two callers declare at once a conflict, also when one of
// them means every cluster.
const definitionsBucket = "deltaplane-indexes"

// Buckets are those of NATS that an indexer writes.
var Buckets = []string{definitionsBucket}

// maxSetBytes bounds the value of a key; NATS takes up to 1 MiB.
const maxSetBytes = 512 << 10

// declaration is a definition ready to be used, or why it cannot be.
type declaration struct {
	definition.Declared
	program *definition.Program // nil when err is not
	err     error
}

// buckets opens buckets of the log.
type buckets interface {
	Bucket(ctx context.Context, name string, ttl time.Duration) (*stream.Bucket, error)
}

// Declarations are the indexes that callers have declared, as last known. They
// go on being known while the log is away, and a bucket that is lost is made
// again with them: only RemoveIndexers removes.
type Declarations struct {
	slog    *slog.Logger
	changed func(resource string) // called after each change, without mu
	known   chan struct{}         // closed once all that was there has been read
	bucket  *stream.Follower

	noting  sync.Mutex // held until what is noted holds; taken before mu
	mu      sync.Mutex
	entries map[string]*declaredEntry // by resource; guarded by mu
}

type declaredEntry struct {
	revision uint64 // 0: of a bucket that is gone
	value    []byte // as it is in the bucket
	list     []declaration
	err      error // of a value that is no set
}

// NewDeclarations returns those of a log, of which none are known before Run. changed
// is called for a resource after each change; it may ask what is declared, and must not change it.
func NewDeclarations(log buckets, slog *slog.Logger, changed func(string)) *Declarations {
	d := &Declarations{slog: slog, changed: changed, known: make(chan struct{}), entries: map[string]*declaredEntry{}}
	d.bucket = stream.NewFollower(log.Bucket, stream.FollowConfig{
		Name: definitionsBucket, Take: d.Take, Known: d.revision, Forget: d.forget, Held: d.values, Log: slog,
	})
	return d
}

// Run follows the bucket until ctx ends.
func (d *Declarations) Run(ctx context.Context) { d.bucket.Run(ctx) }

// Known is closed once all that was there has been read.
func (d *Declarations) Known() <-chan struct{} { return d.known }

// complete reports whether all that was declared before this replica began is
// known.
func (d *Declarations) complete() bool {
	select {
	case <-d.known:
		return true
	default:
		return false
	}
}

// of returns what is declared for a collection.
func (d *Declarations) of(id delta.Collection) []declaration {
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
// that is in use. What is in the value holds when note returns, be it that the
// watch of the bucket was first to receive it.
func (d *Declarations) note(b *stream.Bucket, resource string, revision uint64, value []byte, set definition.Set, err error) bool {
	d.noting.Lock()
	defer d.noting.Unlock()
	d.mu.Lock()
	old := d.entries[resource]
	if old == nil {
		old = &declaredEntry{}
	}
	current := d.bucket.Current(b)
	if !current || revision <= old.revision {
		d.mu.Unlock()
		return current
	}
	e := &declaredEntry{revision: revision, value: bytes.Clone(value), err: err, list: old.list}
	same := bytes.Equal(value, old.value) // put back into a bucket recreated
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

// Edit changes what is declared for a resource: change gets the set as it is
// and returns it as it is to be, or nil to leave it; several callers at once
// are put one after another. The change holds on this replica when edit
// returns. Errors are those of change, or errDefinitionsAway.
func (d *Declarations) Edit(ctx context.Context, resource string, change func(definition.Set) (definition.Set, error)) error {
	var set definition.Set // as it is once noted
	var refused error
	err := d.bucket.Change(ctx, resource, func(value []byte) ([]byte, bool, error) {
		set, refused = definition.DecodeSet(value)
		if refused != nil {
			refused = fault.New(fault.ErrDefinitionsAway, refused.Error(), "resource", resource)
			return nil, false, refused
		}
		var next definition.Set
		if next, refused = change(set); refused != nil || next == nil {
			return nil, false, refused
		}
		set = next
		if value, refused = next.Encode(); refused == nil && len(value) > maxSetBytes {
			refused = fault.New(fault.ErrTooManyIndexes, fmt.Sprintf("definitions for %s would take %d bytes, at most %d", resource, len(value), maxSetBytes), "resource", resource)
		}
		return value, true, refused
	}, func(b *stream.Bucket, e stream.Entry) bool { // also when nothing changes: what is known here may be older
		return d.note(b, resource, e.Revision, e.Value, set, nil)
	})
	if err != nil && refused == nil {
		return away(err)
	}
	return err
}

// revision is that of what is known of a resource; 0 when nothing is.
func (d *Declarations) revision(resource string) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.entries[resource]; e != nil {
		return e.revision
	}
	return 0
}

// forget makes revisions those of no bucket.
func (d *Declarations) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, e := range d.entries {
		e.revision = 0
	}
}

// values are what is known, as it is in the bucket.
func (d *Declarations) values() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	values := map[string][]byte{}
	for resource, e := range d.entries {
		values[resource] = e.value
	}
	return values
}

// Take is the handler of the bucket's entries; an empty one ends the first.
func (d *Declarations) Take(b *stream.Bucket, e stream.Entry) error {
	if e.Key == "" {
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
	d.note(b, e.Key, e.Revision, e.Value, set, err)
	return nil
}

func away(err error) error { return fault.New(fault.ErrDefinitionsAway, err.Error()) }
