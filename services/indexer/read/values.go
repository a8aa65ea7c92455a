package read

import (
	"context"
	"strings"

	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
)

// IndexKeys returns the keys under one value, sorted.
func (s *Reader) IndexKeys(ctx context.Context, req *indexv1.IndexKeysRequest) (*indexv1.IndexKeysResponse, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	g, err := s.permit(ctx, &target{one: c}, grant.Reach{Index: req.GetIndex(), Values: []string{req.GetValue()}}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	snap, err := s.readAs(ctx, &g, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	f := under(c, &g, req.GetIndex(), req.GetStrict(), req.GetValue())
	src, err := f.Source(snap)
	if err != nil {
		return nil, c.Indexes.IndexError(g.Failed(ctx, c.Name, err))
	}
	size := 0
	resp := &indexv1.IndexKeysResponse{Revision: Revision(snap), Upper: Upper(snap), Unindexed: g.Unindexed(ctx, f.Unindexed(c, snap))}
	for o := range src.After("") {
		if !src.Exact && !f.Match(snap, o) {
			continue
		}
		key := o.Key()
		n := len(key) + 3
		if o.Faulty() { // which is named twice
			n *= 2
		}
		if size += n; size > s.cfg.MaxResponseBytes {
			return nil, s.tooLarge("use ByIndex, which has pages")
		}
		resp.Keys = append(resp.Keys, key)
		if o.Faulty() {
			resp.QuarantinedKeys = append(resp.QuarantinedKeys, key)
		}
	}
	return resp, nil
}

// under takes what is visible under values of an index.
func under(c *follow.Collection, g *grant.Grant, index string, strict bool, values ...string) *filter.Filter {
	f := &filter.Filter{Choice: filter.Choice{Index: index, Values: filter.Unique(values), Strict: strict}}
	f.See(g.Scope(c.ID))
	return f
}

// ListIndexFuncValues returns a page of the values of an index.
func (s *Reader) ListIndexFuncValues(ctx context.Context, req *indexv1.ListIndexFuncValuesRequest) (*indexv1.ListIndexFuncValuesResponse, error) {
	t, err := s.targets(req.GetCollection(), nil)
	if err != nil {
		return nil, err
	}
	g, err := s.permit(ctx, &t, grant.Reach{Index: req.GetIndex()}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, req, &t, maxPage, &g)
	if err != nil {
		return nil, err
	}
	snap := p.parts[0].snap
	values, err := snap.IndexValues(req.GetIndex(), req.GetPrefix(), p.after)
	f := under(t.one, &g, req.GetIndex(), req.GetStrict())
	if err == nil || filter.Tolerate(err, false) == nil {
		err = f.Vouch(snap)
	}
	if err != nil {
		return nil, t.one.Indexes.IndexError(g.Failed(ctx, t.one.Name, err))
	}
	resp := &indexv1.ListIndexFuncValuesResponse{Revision: Revision(snap), Upper: Upper(snap), Unindexed: g.Unindexed(ctx, f.Unindexed(t.one, snap))}
	size, last := 0, ""
	for value, keys := range values {
		if g.Limited() {
			f.Values = []string{value}
			if keys, err = f.Count(ctx, snap); err != nil {
				return nil, err
			}
			if keys == 0 {
				continue
			}
		}
		if n := len(resp.Values); n > 0 && (n >= p.size || size+tokenShare*len(value) > s.cfg.MaxPageBytes) {
			resp.NextPageToken = p.next(ctx, 0, last, n)
			break
		}
		size += len(value) + 8
		last = value
		resp.Values = append(resp.Values, &indexv1.IndexValue{Value: Readable(value), Keys: int64(keys)})
	}
	return resp, nil
}

// tokenShare is what a value takes that ends a page: the token holds it too.
const tokenShare = 3

// Readable is the text in a form that every protobuf library takes: what came
// from a payload need not be UTF-8.
func Readable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Count returns how many objects match.
func (s *Reader) Count(ctx context.Context, req *indexv1.CountRequest) (*indexv1.CountResponse, error) {
	t, err := s.targets(req.GetCollection(), req.GetClusters())
	if err != nil {
		return nil, err
	}
	ch, err := countChoice(req)
	if err != nil {
		return nil, err
	}
	filters, err := t.filters(ch)
	if err != nil {
		return nil, err
	}
	g, err := s.permit(ctx, &t, grant.Reach{
		Namespaces: ch.Namespaces, LabelSelector: req.GetLabelSelector(), FieldSelector: req.GetFieldSelector(), Index: ch.Index, Values: ch.Values,
	}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	p := &page{s: s, many: t.one == nil}
	if err := p.read(ctx, &t, req.GetConsistency()); err != nil {
		return nil, err
	}
	if err := g.Still(ctx); err != nil {
		return nil, err
	}
	filters.see(&t, &g)
	resp := &indexv1.CountResponse{}
	for _, part := range p.parts {
		n, err := filters.of(part.c).Count(ctx, part.snap)
		if err != nil {
			return nil, part.c.Indexes.IndexError(g.Failed(ctx, part.c.Name, err))
		}
		resp.Count += int64(n)
		resp.Quarantined += int64(filters.of(part.c).Faulty(part.snap))
		resp.Unindexed = append(resp.Unindexed, g.Unindexed(ctx, filters.of(part.c).Unindexed(part.c, part.snap))...)
		if p.many {
			resp.Revisions = append(resp.Revisions, revisionOf(part))
		} else {
			resp.Revision, resp.Upper = Revision(part.snap), Upper(part.snap)
		}
	}
	return resp, nil
}

func countChoice(req *indexv1.CountRequest) (filter.Choice, error) {
	ch := filter.Choice{Strict: req.GetStrict()}
	if err := ch.Scope(req.GetNamespace(), req.GetNamespaces()); err != nil {
		return ch, err
	}
	if err := ch.Selectors(req.GetLabelSelector(), req.GetFieldSelector()); err != nil {
		return ch, err
	}
	switch {
	case req.GetValue() != "" && len(req.GetValues()) > 0:
		return ch, rpc.InvalidArgument("values", "excludes value")
	case req.GetIndex() == "" && (req.GetValue() != "" || len(req.GetValues()) > 0):
		return ch, rpc.InvalidArgument("index", "is required with values")
	case req.GetIndex() == "":
		return ch, nil
	case len(req.GetValues()) > 0:
		return ch, ch.Under(req.GetIndex(), "values", req.GetValues())
	case req.GetValue() == "":
		return ch, rpc.InvalidArgument("value", "is required with index, or values are")
	}
	return ch, ch.Under(req.GetIndex(), "value", []string{req.GetValue()})
}
