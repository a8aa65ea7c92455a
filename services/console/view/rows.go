package view

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	consolev1 "github.com/deltaplane/deltaplane/proto/deltaplane/console/v1"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	// rowsApart is the least time between two looks of a reader.
	rowsApart = 100 * time.Millisecond
	// aheadWithin is how long the index may take to have what the watch has shown.
	aheadWithin = 250 * time.Millisecond
	// agedAfter is how long cells that tell a time from now are shown.
	agedAfter = 10 * time.Second
)

// rows shows a range of a feed to one subscription.
type rows struct {
	h       *Hub
	f       *feed
	changed func()
	release func()
	wake    chan struct{}
	ranged  chan struct{} // has something when another range was asked for
	stop    context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	v       *consolev1.CollectionView // guarded by mu, never changed
	pending *consolev1.OpenResponse   // guarded by mu: what was not taken yet
	// What follows is for the goroutine of run alone.
	name     string // the collection's whole name, once it is known
	table    *columns
	wide     bool
	have     map[string]uint64 // change of the rows that were shown
	order    []string          // keys that were shown
	last     *consolev1.Rows   // without keys and rows
	matching []string
	matched  struct {
		text string
		set  uint64
	}
	aged time.Time
}

func (h *Hub) newRows(f *feed, v *consolev1.CollectionView, changed, release func()) (Reader, error) {
	r := &rows{h: h, f: f, v: v, changed: changed, release: release, done: make(chan struct{}), ranged: make(chan struct{}, 1), have: map[string]uint64{}, aged: time.Now()}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(h.life)
	var unwatch func()
	r.wake, unwatch = f.watched()
	if !h.begin(func() {
		defer close(r.done)
		defer unwatch()
		r.run(ctx)
	}) {
		r.stop()
		unwatch()
		release()
		return nil, ErrClosed
	}
	return r, nil
}

// Close implements [Reader].
func (r *rows) Close() {
	r.stop()
	<-r.done
	r.release()
}

// Next implements [Reader].
func (r *rows) Next() *consolev1.OpenResponse {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.pending
	r.pending = nil
	return m
}

// Range gives a reader of the same question another range. It reports whether it is one.
func Range(reader Reader, v *consolev1.CollectionView) (bool, error) {
	r, ok := reader.(*rows)
	if !ok {
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	as := proto.CloneOf(v)
	as.Offset, as.Limit, as.Text, as.Wide = r.v.GetOffset(), r.v.GetLimit(), r.v.GetText(), r.v.GetWide()
	if !proto.Equal(as, r.v) {
		return false, nil
	}
	if err := checkRange(v.GetLimit()); err != nil {
		return false, err
	}
	r.v = v
	select {
	case r.ranged <- struct{}{}:
	default:
	}
	return true, nil
}

func checkRange(limit uint32) error {
	if limit > MaxRows {
		return rpc.InvalidArgument("limit", fmt.Sprintf("is %d, want at most %d", limit, MaxRows))
	}
	return nil
}

func (r *rows) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		case <-r.ranged:
		}
		wait := r.look(ctx)
		timer.Reset(rowsApart)
		select { // somebody who scrolls waits for nothing
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.ranged:
			wait = 0
		}
		timer.Reset(wait)
	}
}

// look finds out what changed in the range, and has it sent. It returns when to look again where
// nothing changes.
func (r *rows) look(ctx context.Context) (wait time.Duration) {
	r.mu.Lock()
	v := r.v
	r.mu.Unlock()
	all := r.chosen(v.GetText())
	from := min(int(v.GetOffset()), len(all))
	keys := all[from:min(from+int(v.GetLimit()), len(all))]
	s := r.f.look(keys)
	if s.err != nil {
		r.last = nil // the rows that come again say that the failure is over
		r.send(failed(s.err))
		return agedAfter
	}
	if _, err := delta.ParseCollection(r.name); err != nil { // it may have been found by now
		r.name = r.h.resolve(ctx, r.f.q.collection)
	}
	if v.GetWide() != r.wide {
		r.wide, r.table, r.have = v.GetWide(), nil, map[string]uint64{}
	}
	if r.table != nil && r.table.ages && time.Since(r.aged) >= agedAfter {
		r.aged, r.have = time.Now(), map[string]uint64{}
	}
	out := &consolev1.Rows{
		Collection: r.name, Total: uint32(len(all)), Offset: uint32(from), //nolint:gosec // keys fit into memory
		Revision: s.revision.RV, State: s.state, Failed: uint32(s.failed), //nolint:gosec // as above
	}
	wait = r.fill(ctx, out, keys, &s)
	if ctx.Err() != nil {
		return agedAfter
	}
	if !slices.Equal(keys, r.order) || r.last == nil {
		out.KeysChanged, out.Keys, r.order = true, keys, keys
		maps.DeleteFunc(r.have, func(key string, _ uint64) bool { _, in := slices.BinarySearch(keys, key); return !in })
	}
	plain := proto.CloneOf(out)
	plain.KeysChanged, plain.Keys, plain.Rows, plain.Columns = false, nil, nil, nil
	if out.GetKeysChanged() || len(out.GetRows()) > 0 || len(out.GetColumns()) > 0 || !proto.Equal(plain, r.last) {
		if r.last == nil {
			out.Indexes = r.h.indexesOf(ctx, r.name)
		}
		r.last = plain
		r.send(&consolev1.OpenResponse{Content: &consolev1.OpenResponse_Rows{Rows: out}})
	}
	return wait
}

// chosen are the keys of the feed that contain a text.
func (r *rows) chosen(text string) []string {
	all, set := r.f.all()
	if text == "" {
		return all
	}
	if r.matched.text != text || r.matched.set != set {
		r.matched.text, r.matched.set = text, set
		r.matching = r.matching[:0:0]
		for _, key := range all {
			if strings.Contains(key, text) {
				r.matching = append(r.matching, key)
			}
		}
	}
	return r.matching
}

// fill fetches the rows that changed. It returns when to look again: soon where not all of them are
// as the feed has them.
func (r *rows) fill(ctx context.Context, out *consolev1.Rows, keys []string, s *shown) (wait time.Duration) {
	var ask []string
	changes := map[string]uint64{}
	for i, key := range keys {
		if r.have[key] != s.changes[i] {
			ask = append(ask, key)
			changes[key] = s.changes[i]
		}
	}
	if len(ask) == 0 && r.table != nil {
		return agedAfter
	}
	if r.table == nil && s.state == "loading" && len(ask) == 0 {
		return agedAfter
	}
	if r.table == nil {
		r.table = r.h.columnsOf(ctx, r.name, r.wide)
		out.Columns = r.table.shown
		if len(ask) == 0 {
			return agedAfter
		}
	}
	got, whole, err := r.fetch(ctx, ask, s)
	if err != nil {
		st := Status(err)
		for _, key := range ask {
			out.Rows = append(out.Rows, &consolev1.Row{Key: key, Fault: st.Message()})
		}
		if rpc.Code(err) != codes.PermissionDenied {
			return againAfter
		}
		maps.Copy(r.have, changes)
		return agedAfter
	}
	for _, key := range got.GetQuarantinedKeys() {
		out.Rows = append(out.Rows, &consolev1.Row{Key: key, Fault: "its newest version could not be read"})
	}
	for _, o := range got.GetObjects() {
		out.Rows = append(out.Rows, r.table.row(o.GetKey(), o.GetPayload()))
	}
	if !whole {
		return 0
	}
	maps.Copy(r.have, changes)
	return agedAfter
}

// fetch asks for objects as new as the feed is. Where the index does not have that in time, what it
// has is not the whole answer.
func (r *rows) fetch(ctx context.Context, keys []string, s *shown) (got *indexv1.BatchGetResponse, whole bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	ask := &indexv1.BatchGetRequest{Collection: r.name, Keys: keys}
	if !s.upper.IsZero() {
		ask.Consistency = &indexv1.Consistency{
			AtLeast: &deltav1.Revision{Epoch: s.upper.Epoch, ResourceVersion: s.upper.RV}, Timeout: durationpb.New(aheadWithin),
		}
	}
	got, err = r.h.indexes.BatchGet(ctx, ask)
	if rpc.Reason(err) == "REVISION_NOT_REACHED" {
		ask.Consistency = nil
		got, err = r.h.indexes.BatchGet(ctx, ask)
		return got, false, err
	}
	return got, true, err
}

// send has a message sent, together with the one that waits.
func (r *rows) send(m *consolev1.OpenResponse) {
	r.mu.Lock()
	if was := r.pending.GetRows(); was != nil && m.GetRows() != nil {
		m = &consolev1.OpenResponse{Content: &consolev1.OpenResponse_Rows{Rows: joined(was, m.GetRows())}}
	} else if was != nil && m.GetFailure() != nil {
		r.order, r.table, r.have = nil, nil, map[string]uint64{} // what is dropped here must come again
	}
	same := proto.Equal(m, r.pending)
	r.pending = m
	r.mu.Unlock()
	if !same {
		r.changed()
	}
}

// joined is one message in place of two.
func joined(was, is *consolev1.Rows) *consolev1.Rows {
	if len(is.GetColumns()) == 0 {
		is.Columns = was.GetColumns()
	}
	if len(is.GetIndexes()) == 0 {
		is.Indexes = was.GetIndexes()
	}
	if !is.GetKeysChanged() && was.GetKeysChanged() {
		is.KeysChanged, is.Keys = true, was.GetKeys()
	}
	newer := map[string]bool{}
	for _, row := range is.GetRows() {
		newer[row.GetKey()] = true
	}
	for _, row := range was.GetRows() {
		_, in := slices.BinarySearch(is.GetKeys(), row.GetKey())
		if !newer[row.GetKey()] && (in || !is.GetKeysChanged()) {
			is.Rows = append(is.Rows, row)
		}
	}
	return is
}

// indexesOf are the names of a collection's indexes; none where the index does not say.
func (h *Hub) indexesOf(ctx context.Context, collection string) (names []string) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := h.indexes.ListIndexers(ctx, &indexv1.ListIndexersRequest{Collection: collection})
	if err != nil {
		return nil
	}
	for _, i := range answer.GetIndexers() {
		names = append(names, i.GetName())
	}
	return names
}

// resolve is the whole name of a collection that is called by any of its names; the name itself
// where it is not one collection's.
func (h *Hub) resolve(ctx context.Context, name string) string {
	if _, err := delta.ParseCollection(name); err == nil {
		return name
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	answer, err := h.listCollections(ctx)
	if err != nil {
		return name
	}
	var found []string
	for _, c := range answer.GetCollections() {
		full := c.GetCollection()
		_, resource, _ := strings.Cut(full, "/")
		if full == name || resource == name || c.GetResource() == name || slices.Contains(c.GetNames(), strings.ToLower(name)) {
			found = append(found, full)
		}
	}
	if len(found) == 1 {
		return found[0]
	}
	return name
}
