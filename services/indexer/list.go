package indexer

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

const (
	defaultPage = 500
	maxPage     = 5000
	maxValues   = 100
)

// page is a place in a paged answer: from which snapshot and after what.
type page struct {
	snap   *store.Snapshot
	query  uint64
	after  string
	passed uint64
	size   int
	known  bool // passed is known: the pages so far came from one snapshot
}

// page finds the snapshot for a request: that of its token, or a new one.
func (s *Service) page(ctx context.Context, c *collection, text string, size int32, zero int, want *indexv1.Consistency, query ...string) (page, error) {
	p := page{query: fingerprint(append(query, c.name)...), size: zero, known: true}
	switch {
	case size < 0:
		return p, rpc.InvalidArgument("page_size", fmt.Sprintf("%d is negative", size))
	case size > 0:
		p.size = min(int(size), maxPage)
	}
	if text == "" {
		var err error
		p.snap, err = s.read(ctx, c, want)
		return p, err
	}
	t, err := parseToken(text, p.query)
	if err != nil {
		return p, err
	}
	p.after, p.passed = t.after, t.passed
	if t.snapshot == 0 { // continues from a snapshot that is gone
		p.known = false
		p.snap, err = s.read(ctx, c, nil)
		return p, err
	}
	if t.replica == s.pins.replica {
		p.snap = s.pins.get(t.snapshot, time.Now())
	}
	if p.snap == nil {
		s.metrics.pages.WithLabelValues("gone").Inc()
		return p, newFault(errSnapshotGone, "another replica made it, or it is too old; go on from a new snapshot with the token in the details",
			"page_token", token{query: t.query, after: t.after}.String(), "collection", c.name)
	}
	s.metrics.pages.WithLabelValues("served").Inc()
	// A collection that has to be synced again answers nothing, old snapshots included.
	return p, c.synced(c.store.Snapshot())
}

// next makes the token of the page after this one.
func (s *Service) next(p *page, after string, passed uint64) string {
	return token{
		replica: s.pins.replica, snapshot: s.pins.hold(p.snap, time.Now()), query: p.query, passed: passed, after: after,
	}.String()
}

// fill writes matching objects until the page is full. It returns the last key
// written and whether another match follows.
func (s *Service) fill(o *out, p *page, proj *projection, candidates iter.Seq[*store.Object], match func(*store.Object) bool) (last string, n int, more bool) {
	for obj := range candidates {
		if match != nil && !match(obj) {
			continue
		}
		if n > 0 && (n >= p.size || o.len() >= s.cfg.MaxPageBytes) {
			return last, n, true
		}
		it := proj.item(obj)
		if n > 0 && o.len()+it.len() > s.cfg.MaxPageBytes {
			return last, n, true
		}
		o.item(1, &it)
		last = obj.Key
		n++
	}
	return last, n, false
}

// fillKeys is fill for a view of keys alone.
func (s *Service) fillKeys(o *out, p *page, keys iter.Seq[string]) (last string, more bool) {
	n := 0
	for key := range keys {
		if n > 0 && (n >= p.size || o.len()+len(key) > s.cfg.MaxPageBytes) {
			return last, true
		}
		o.item(1, &item{key: key})
		last = key
		n++
	}
	return last, false
}

func (s *server) list(ctx context.Context, req *indexv1.ListRequest) (*frame, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	f, err := c.newFilter(req.GetNamespace(), req.GetLabelSelector(), req.GetFieldSelector())
	if err != nil {
		return nil, err
	}
	proj, err := project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, c, req.GetPageToken(), req.GetPageSize(), defaultPage, req.GetConsistency(),
		"list", req.GetNamespace(), req.GetLabelSelector(), req.GetFieldSelector(), proj.String(req.GetFieldMask()))
	if err != nil {
		return nil, err
	}
	match := func(obj *store.Object) bool { return f.match(p.snap, obj) }
	if f.all() {
		match = nil
	}
	o := newOut()
	last, n, more := s.fill(o, &p, &proj, f.candidates(p.snap, p.after), match)
	p.passed += uint64(n)
	if more {
		o.string(2, s.next(&p, last, p.passed))
	}
	o.snapshot(3, p.snap)
	if more {
		o.uint(4, remaining(&p, &f, last))
	}
	return o.frame(), nil
}

// remaining is how many objects of the namespace follow a key: exact without
// selectors, else at most that many.
func remaining(p *page, f *filter, last string) uint64 {
	if f.all() && p.known && f.namespace == "" {
		return uint64(p.snap.Len()) - p.passed
	}
	if f.all() && p.known {
		if hits, err := p.snap.ByIndex(namespaceIndex, f.namespace); err == nil {
			return uint64(hits.Len()) - p.passed
		}
	}
	n := uint64(0)
	for range f.candidates(p.snap, last) {
		n++
	}
	return n
}

func (s *server) byIndex(ctx context.Context, req *indexv1.ByIndexRequest) (*frame, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	values := req.GetValues()
	if n := len(values); n == 0 || n > maxValues {
		return nil, rpc.InvalidArgument("values", fmt.Sprintf("has %d entries, want 1 to %d", n, maxValues))
	}
	proj, err := project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, c, req.GetPageToken(), req.GetPageSize(), maxPage, req.GetConsistency(),
		append([]string{"by_index", proj.String(req.GetFieldMask()), req.GetIndex()}, values...)...)
	if err != nil {
		return nil, err
	}
	hits, err := p.snap.ByIndex(req.GetIndex(), values...)
	if err != nil {
		return nil, indexError(c.name, err)
	}
	o := newOut()
	var last string
	var more bool
	if proj.view == indexv1.View_VIEW_KEYS {
		last, more = s.fillKeys(o, &p, hits.KeysAfter(p.after))
	} else {
		last, _, more = s.fill(o, &p, &proj, hits.After(p.after), nil)
	}
	if more {
		o.string(2, s.next(&p, last, 0))
	}
	o.snapshot(3, p.snap)
	return o.frame(), nil
}

// String is the part of a request's fingerprint that says what is returned.
func (p *projection) String(mask *fieldmaskpb.FieldMask) string {
	if mask == nil {
		return p.view.String()
	}
	return strings.Join(mask.GetPaths(), ",")
}

// IndexKeys returns the keys under one value, sorted.
func (s *server) IndexKeys(ctx context.Context, req *indexv1.IndexKeysRequest) (*indexv1.IndexKeysResponse, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	snap, err := s.read(ctx, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	hits, err := snap.ByIndex(req.GetIndex(), req.GetValue())
	if err != nil {
		return nil, indexError(c.name, err)
	}
	size := 0
	resp := &indexv1.IndexKeysResponse{Keys: hits.Keys(), Revision: revision(snap)}
	for _, key := range resp.Keys {
		size += len(key) + 3
	}
	if size > s.cfg.MaxResponseBytes {
		return nil, s.tooLarge("use ByIndex, which has pages")
	}
	return resp, nil
}

// ListIndexFuncValues returns a page of the values of an index.
func (s *server) ListIndexFuncValues(ctx context.Context, req *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	c, err := s.find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, c, req.GetPageToken(), req.GetPageSize(), maxPage, req.GetConsistency(), "values", req.GetIndex(), req.GetPrefix())
	if err != nil {
		return nil, err
	}
	values, err := p.snap.IndexValues(req.GetIndex(), req.GetPrefix(), p.after)
	if err != nil {
		return nil, indexError(c.name, err)
	}
	resp := &indexv1.ListIndexFuncValuesResponse{Revision: revision(p.snap)}
	size := 0
	for value, keys := range values {
		if n := len(resp.Values); n >= p.size || n > 0 && size+len(value) > s.cfg.MaxPageBytes {
			resp.NextPageToken = s.next(&p, resp.Values[n-1].GetValue(), 0)
			break
		}
		size += len(value) + 8
		resp.Values = append(resp.Values, &indexv1.IndexValue{Value: value, Keys: int64(keys)})
	}
	return resp, nil
}
