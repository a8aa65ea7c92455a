package store

import (
	"context"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// buildChunk objects take a few milliseconds to file; objects with many values
// are fewer in a chunk.
const buildChunk, buildEntries = 512, 1 << 14

// AddIndexers declares indexes, building: changes from now on are filed, reads
// give a *BuildingError until Build has filed what was there. In a store that
// never was synced they become ready when it is. If one of the names exists
// already nothing is added and the error is a *ConflictError.
func (s *Store) AddIndexers(fns map[string]IndexFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var taken []string
	for _, name := range sortedNames(fns) {
		if _, err := s.snap.Load().index(name); err == nil {
			taken = append(taken, name)
		}
	}
	if taken != nil {
		return &ConflictError{Indexes: taken}
	}
	s.adds++
	w := s.begin()
	for _, name := range sortedNames(fns) {
		i, _ := slices.BinarySearchFunc(w.snap.indexes, name, func(x *index, n string) int {
			return strings.Compare(x.name, n)
		})
		x := &index{name: name, added: s.adds, fn: fns[name]}
		if s.watched && w.snap.keys.n == 0 {
			w.ready(x)
		}
		w.snap.indexes = slices.Insert(w.snap.indexes, i, x)
	}
	w.publish()
	return nil
}

// RemoveIndexers takes indexes out; older snapshots keep them. If one of the
// names does not exist nothing is removed and the error is an
// *UnknownIndexError.
func (s *Store) RemoveIndexers(names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		if _, err := s.snap.Load().index(name); err != nil {
			return err
		}
	}
	w := s.begin()
	w.snap.indexes = slices.DeleteFunc(w.snap.indexes, func(x *index) bool { return slices.Contains(names, x.name) })
	w.publish()
	return nil
}

// Build makes the indexes ready that are being built. It holds writers up for
// no more than a chunk of objects at a time, and may be called again after ctx
// ended it. It does nothing while the store has never been synced: then they
// become ready with the first sync.
func (s *Store) Build(ctx context.Context) error {
	return s.BuildWithin(ctx, func(string) error { return nil })
}

// BuildWithin is Build, which ends with the error of room, called with the name
// of the index before each chunk. What the first sync makes ready is not asked
// about.
func (s *Store) BuildWithin(ctx context.Context, room func(index string) error) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if name, ok := s.building(); ok {
			if err := room(name); err != nil {
				return err
			}
		}
		if !s.step() {
			return nil
		}
	}
}

// building is the index that the next step files into.
func (s *Store) building() (name string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.unready()
	if i < 0 {
		return "", false
	}
	return s.snap.Load().indexes[i].name, true
}

// unready is the number of the index that is built next; -1 when there is
// nothing to build. s.mu is held.
func (s *Store) unready() int {
	if !s.watched { // the first sync makes them ready
		return -1
	}
	return slices.IndexFunc(s.snap.Load().indexes, func(x *index) bool { return x.state == Building })
}

// step files one chunk into one index. It reports false when there is nothing
// to build.
func (s *Store) step() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.unready()
	if i < 0 {
		return false
	}
	w := s.begin()
	x := w.snap.indexes[i]
	left, entries := s.chunk, x.entries+buildEntries
	file := func(id uint32) bool {
		k := w.keys.get(id)
		if x.cursor == nil || k != x.cursor && k.compare(x.cursor.place()) > 0 {
			if left--; left < 0 || x.entries >= entries {
				return false
			}
			x.refile(w.e, w.keys.vector, id, k, nil, w.objects.get(id))
			x.filed++
			x.cursor = k
		}
		return true
	}
	if x.cursor == nil && w.snap.keys.each(file) ||
		x.cursor != nil && w.snap.keys.from(w.keys.vector, x.cursor.place(), file) {
		w.ready(x)
	}
	w.publish()
	return true
}

// ready ends the building of an index.
func (w *write) ready(x *index) {
	x.state, x.cursor, x.filed, x.since = Ready, nil, w.snap.keys.len(), w.snap.state.Revision
}

// complete builds all indexes that are not ready at once. Taking the objects
// in key order it needs no comparisons of keys. Each core takes a part of them.
func (w *write) complete() {
	var building []*index
	for _, x := range w.snap.indexes {
		if x.state == Building {
			*x = index{name: x.name, added: x.added, fn: x.fn}
			building = append(building, x)
		}
	}
	if len(building) == 0 {
		return
	}
	ids := w.snap.keys.list()
	cores := min(mostParts, runtime.GOMAXPROCS(0))
	parts := make([][]*builder, 0, cores)
	var work sync.WaitGroup
	for part := range evenly(ids, max(leastPart, (len(ids)+cores-1)/cores)) {
		builders := make([]*builder, len(building))
		for i, x := range building {
			builders[i] = &builder{x: x, lists: map[string]*list{}, memo: map[several][]*list{}, last: &list{}}
		}
		parts = append(parts, builders)
		work.Go(func() { w.gather(part, builders) })
	}
	work.Wait()
	for i, x := range building {
		work.Go(func() {
			whole := make([]*builder, len(parts))
			for j, part := range parts {
				whole[j] = part[i]
			}
			w.finish(x, whole)
		})
	}
	work.Wait()
	for _, x := range building {
		w.ready(x)
	}
}

const (
	// mostParts is how many goroutines build indexes, and leastPart how many
	// objects are worth one.
	mostParts = 4
	leastPart = 4096
)

// gather files objects with builders. A few objects at a time: their loads
// overlap, and no index finds them cold.
func (w *write) gather(ids []uint32, builders []*builder) {
	var objects [16]*Object
	for few := range slices.Chunk(ids, len(objects)) {
		for i, id := range few {
			objects[i] = w.objects.get(id)
		}
		for _, b := range builders {
			for i, id := range few {
				b.file(id, objects[i])
			}
		}
	}
}

// builder gathers the slots of each value of an index in a part of the objects,
// in key order.
type builder struct {
	x      *index
	lists  map[string]*list
	last   *list               // that was used for a value alone
	memo   map[several][]*list // the lists of values that several objects share
	at     several
	shared []*list // those of at
	failed []*failure
}

// several values as they were returned: others lie elsewhere.
type several struct {
	first *string
	n     int
}

type list struct {
	value string
	ids   []uint32
}

// memoMax bounds the value lists that a builder remembers: functions that
// make them again each time gain nothing from it.
const memoMax = 1 << 14

func (b *builder) file(id uint32, o *Object) {
	values, err := b.x.ask(o)
	if err != nil {
		b.failed = append(b.failed, &failure{key: o.key, err: err})
	}
	switch len(values) {
	case 0:
		return
	case 1:
		if v := values[0]; v != b.last.value || len(b.last.ids) == 0 {
			b.last = b.list(v)
		}
		b.last.ids = append(b.last.ids, id)
		return
	}
	// Objects that stand side by side are often made from one template.
	if at := (several{unsafe.SliceData(values), len(values)}); at != b.at {
		lists, ok := b.memo[at]
		if !ok {
			for _, v := range inOrder(values) {
				lists = append(lists, b.list(v))
			}
			if len(b.memo) < memoMax {
				b.memo[at] = lists
			}
		}
		b.at, b.shared = at, lists
	}
	for _, l := range b.shared {
		l.ids = append(l.ids, id)
	}
}

// list is that of a value.
func (b *builder) list(v string) *list {
	l := b.lists[v]
	if l == nil {
		l = &list{value: v}
		b.lists[v] = l
	}
	return l
}

// finish makes an index of what was gathered of its parts, which are in key
// order.
func (w *write) finish(x *index, parts []*builder) {
	ks := w.keys.vector
	whole := map[string]*list{}
	for i, b := range parts {
		for _, f := range b.failed {
			x.failed = x.failed.put(w.e, f)
		}
		if i == 0 {
			whole = b.lists
			continue
		}
		for v, l := range b.lists {
			if first := whole[v]; first != nil {
				first.ids = append(first.ids, l.ids...)
			} else {
				whole[v] = l
			}
		}
		b.lists, b.memo = nil, nil
	}
	lists := slices.SortedFunc(maps.Values(whole), func(a, c *list) int { return strings.Compare(a.value, c.value) })
	postings := make([]*posting, len(lists))
	for i, l := range lists {
		p := &posting{value: l.value, slots: setOf(ks, l.ids)}
		x.entries += p.slots.len()
		x.bytes += p.slots.bytes()
		postings[i], l.ids = p, nil
	}
	x.values = treeOf(postings)
}
