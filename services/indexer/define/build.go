package define

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// Why objects cannot be filed.
var (
	ErrNotRead = errors.New("the object could not be read")
	errBuiltIn = errors.New("the name is that of a built-in index")
)

// indexFunc is the index of a program. It reads facts only: fields were read
// from the payload at ingest.
func indexFunc(p *definition.Program) store.IndexFunc {
	d := p.Definition()
	switch {
	case d.Label != "":
		return func(o *store.Object) ([]string, error) { return byLabel(o.Labels(), d.Label), nil }
	case d.Owner != nil:
		return func(o *store.Object) ([]string, error) { return byOwners(o.Owners(), *d.Owner), nil }
	}
	field := p.Field()
	return func(o *store.Object) ([]string, error) {
		values, ok := o.Field(field)
		if !ok {
			return nil, ErrNotRead
		}
		return values, o.FieldErr(field)
	}
}

// byLabel gives one value, or several for a faulty object whose record names
// those it has had.
func byLabel(l *store.Labels, name string) []string {
	var values []string
	for _, p := range l.Pairs() {
		if p.Name == name {
			values = append(values, p.Value)
		}
	}
	return values
}

func byOwners(o *store.Owners, which definition.Owner) []string {
	if !which.Controller && which.Kind == "" {
		return o.UIDs()
	}
	var values []string
	for _, w := range o.List() {
		if w.UID != "" && (w.Controller || !which.Controller) && (w.Kind == which.Kind || which.Kind == "") {
			values = append(values, w.UID)
		}
	}
	return values
}

// Declare brings what the collection has in line with what is declared for it,
// as far as that takes no time: the plan of what is read at ingest, and indexes
// that are declared no more. The rest is for build, which is woken.
func (c *Indexes) Declare() {
	c.declaring.Lock()
	defer c.declaring.Unlock()
	list := c.Declarations.of(c.id)
	for i := range list {
		if _, ok := BuiltInOf(c.id, list[i].Name); ok { // written by a version that did not have it
			list[i].program, list[i].err = nil, errBuiltIn
		}
	}
	c.refuseTooCostly(list)
	slices.SortFunc(list, func(a, b declaration) int { return strings.Compare(a.Name, b.Name) })
	c.leaveOut(list)
	c.declared.Store(&list)
	c.version.Add(1)
	var programs []*definition.Program
	for _, x := range list {
		if x.program != nil {
			programs = append(programs, x.program)
		}
	}
	plan := extract.NewPlan(c.paths, programs)
	c.drop(list, plan)
	c.ingest.Lock()
	c.plan.Store(plan)
	c.ingest.Unlock()
	if c.store.Snapshot().Len() == 0 { // nothing has to be read again
		c.addMissing()
		c.read.Store(plan)
	}
	c.Wake()
}

// drop removes the indexes that are not declared any more. Watches go by those of
// a snapshot, so they are gone before objects are read without their fields.
func (c *Indexes) drop(list []declaration, plan *extract.Plan) {
	for name, source := range c.built {
		if x := find(list, name); x == nil || x.program == nil || x.Source() != source {
			delete(c.built, name)
			if err := c.store.RemoveIndexers(name); err != nil {
				c.slog.Error("cannot remove index", slog.String(telemetry.KeyCollection, c.name), telemetry.Err(err))
			}
		}
	}
	c.describe()
	// Objects of the next batch lack the fields that are gone, also when these come back.
	paths := slices.DeleteFunc(slices.Clone(c.read.Load().Paths()), func(p definition.Path) bool { return !plan.Reads(p.String()) })
	c.read.Store(extract.NewPlan(paths, nil))
}

// origin says which definition an index of the store has.
type origin struct {
	added     uint64 // see store.Snapshot.Added
	selection uint64
}

// describe tells watches which definition each declared index has.
func (c *Indexes) describe() {
	snap, origins := c.store.Snapshot(), map[string]origin{}
	for name, source := range c.built {
		if added, ok := snap.Added(name); ok {
			origins[name] = origin{added, selectionOf(source)}
		}
	}
	c.origins.Store(&origins)
}

// Wake makes build look whether there is something to do.
func (c *Indexes) Wake() {
	select {
	case c.rebuild <- struct{}{}:
	default:
	}
}

// Build adds the indexes that are declared and not there, each time it is
// woken, until ctx ends or the collection is given up. Objects that were
// ingested before get their fields first, so that an index begins with all it
// needs.
func (c *Indexes) Build(ctx context.Context) {
	for {
		if err := c.BuildOnce(ctx); err != nil {
			return
		}
		if !c.awaitBuild(ctx) {
			return
		}
	}
}

// awaitBuild waits until build is woken; false when it is to end.
func (c *Indexes) awaitBuild(ctx context.Context) bool {
	look := time.NewTimer(c.lookEvery)
	defer look.Stop()
	for {
		var again <-chan time.Time
		if c.omitting() {
			look.Reset(c.lookEvery)
			again = look.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.evicted:
			return false
		case <-c.rebuild:
			return true
		case <-again:
			c.retry()
		}
	}
}

// BuildOnce builds the indexes that are declared and not there.
func (c *Indexes) BuildOnce(ctx context.Context) error {
	plan := c.plan.Load()
	if err := c.renew(ctx, plan); err != nil {
		return c.withoutRoom(err)
	}
	c.declaring.Lock()
	if plan == c.plan.Load() { // otherwise build has been woken again
		c.addMissing()
		c.read.Store(plan)
	}
	c.declaring.Unlock()
	return c.withoutRoom(c.store.BuildWithin(ctx, func(index string) error {
		if err := c.room.Spare(ctx, buildMargin); err != nil {
			return noRoom(err, index)
		}
		return nil
	}))
}

// addMissing adds the indexes that are declared; every object has their fields.
func (c *Indexes) addMissing() {
	fns := map[string]store.IndexFunc{}
	for _, x := range *c.declared.Load() {
		if _, ok := c.built[x.Name]; !ok && x.program != nil {
			fns[x.Name] = indexFunc(x.program)
		}
	}
	if len(fns) == 0 {
		return
	}
	if err := c.store.AddIndexers(fns); err != nil { // a built-in index of a newer version may have the name
		c.slog.Error("cannot add indexes", slog.String(telemetry.KeyCollection, c.name), telemetry.Err(err))
		return
	}
	for name := range maps.Keys(fns) {
		c.built[name] = find(*c.declared.Load(), name).Source()
	}
	c.describe()
}

// find returns the declaration of a name; nil when there is none.
func find(list []declaration, name string) *declaration {
	for i := range list {
		if list[i].Name == name {
			return &list[i]
		}
	}
	return nil
}

// selectionOf names a definition: all replicas name it alike, and no two have
// the same name.
func selectionOf(source string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(source))
	return max(h.Sum64(), 1)
}
