package read

import (
	"context"

	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/filter"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// answerFields are the field numbers of a page of objects in its message.
// Objects are 1, the next token 2 and the revision 3 in all of them.
type answerFields struct{ remaining, quarantined, revisions, named, leftOut, upper int }

// List answers with a page of the objects that a request chooses.
func (s *Reader) List(ctx context.Context, req *indexv1.ListRequest) (*message.Writer, error) {
	t, err := s.targets(req.GetCollection(), req.GetClusters())
	if err == nil {
		err = t.skipping(req.GetSkipUnsynced())
	}
	if err != nil {
		return nil, err
	}
	ch := filter.Choice{Strict: req.GetStrict()}
	if err := ch.Scope(req.GetNamespace(), req.GetNamespaces()); err != nil {
		return nil, err
	}
	if err := ch.Selectors(req.GetLabelSelector(), req.GetFieldSelector()); err != nil {
		return nil, err
	}
	proj, err := message.Project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	filters, err := t.filters(ch)
	if err != nil {
		return nil, err
	}
	g, err := s.permit(ctx, &t, grant.Reach{Namespaces: ch.Namespaces, LabelSelector: req.GetLabelSelector(), FieldSelector: req.GetFieldSelector(), Content: proj.Content()}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, req, &t, defaultPage, &g)
	if err != nil {
		return nil, err
	}
	return p.answer(ctx, &t, filters, &proj, &g, answerFields{remaining: 4, quarantined: 5, revisions: 6, named: 7, leftOut: 8, upper: 9})
}

// ByIndex answers with a page of the objects under values of an index.
func (s *Reader) ByIndex(ctx context.Context, req *indexv1.ByIndexRequest) (*message.Writer, error) {
	t, err := s.targets(req.GetCollection(), req.GetClusters())
	if err == nil {
		err = t.skipping(req.GetSkipUnsynced())
	}
	if err != nil {
		return nil, err
	}
	ch := filter.Choice{Strict: req.GetStrict()}
	if err := ch.Under(req.GetIndex(), "values", req.GetValues()); err != nil {
		return nil, err
	}
	if err := ch.Scope("", req.GetNamespaces()); err != nil {
		return nil, err
	}
	if err := ch.Selectors(req.GetLabelSelector(), req.GetFieldSelector()); err != nil {
		return nil, err
	}
	proj, err := message.Project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	filters, err := t.filters(ch)
	if err != nil {
		return nil, err
	}
	g, err := s.permit(ctx, &t, grant.Reach{
		Namespaces: ch.Namespaces, LabelSelector: req.GetLabelSelector(), FieldSelector: req.GetFieldSelector(), Index: ch.Index, Values: ch.Values,
		Content: proj.Content(),
	}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	p, err := s.page(ctx, req, &t, maxPage, &g)
	if err != nil {
		return nil, err
	}
	return p.answer(ctx, &t, filters, &proj, &g, answerFields{quarantined: 4, revisions: 5, named: 6, leftOut: 7, upper: 8})
}

// filters are a choice made ready for each collection of a target.
type filters struct {
	one  filter.Filter
	many map[*follow.Collection]*filter.Filter
}

func (t *target) filters(ch filter.Choice) (filters, error) {
	var fs filters
	if t.one != nil {
		var err error
		fs.one, err = filter.New(t.one, ch)
		return fs, err
	}
	fs.many = make(map[*follow.Collection]*filter.Filter, len(t.many))
	for _, c := range t.many {
		f, err := filter.New(c, ch)
		if err != nil {
			return fs, err
		}
		fs.many[c] = &f
	}
	return fs, nil
}

// see leaves of each filter what a caller may see.
func (fs *filters) see(t *target, g *grant.Grant) {
	if !g.Limited() {
		return
	}
	if t.one != nil {
		fs.one.See(g.Scope(t.one.ID))
	}
	for c, f := range fs.many {
		f.See(g.Scope(c.ID))
	}
}

func (fs *filters) of(c *follow.Collection) *filter.Filter {
	if f, ok := fs.many[c]; ok {
		return f
	}
	return &fs.one
}

// answer writes a page.
func (p *page) answer(ctx context.Context, t *target, fs filters, proj *message.Projection, g *grant.Grant, fields answerFields) (*message.Writer, error) {
	fs.see(t, g)
	w := pageWriter{p: p, o: message.New(), proj: proj, lastAt: p.at}
	more, total := false, uint64(0)
	for at, part := range p.parts {
		if at < p.at && fields.remaining == 0 {
			continue
		}
		f := fs.of(part.c)
		src, err := f.Source(part.snap)
		if err != nil {
			return nil, part.c.Indexes.IndexError(g.Failed(ctx, part.c.Name, err))
		}
		if fields.remaining != 0 {
			total += uint64(src.Bound())
		}
		if w.at = at; at < p.at || more {
			continue
		}
		whole := false
		if proj.View == indexv1.View_VIEW_KEYS && src.Exact && !src.Whole && !p.many && part.snap.Faults() == 0 {
			whole = w.keys(src.Hits)
		} else if whole, err = w.objects(ctx, &src, f); err != nil {
			return nil, err
		}
		if more = !whole; more && fields.remaining == 0 {
			break
		}
	}
	o := w.o
	left := uint64(0)
	if more && fields.remaining != 0 {
		left = p.remaining(fs, total, &w)
	}
	if more {
		o.Text(2, p.next(ctx, w.lastAt, w.written(), w.n))
	}
	if !p.many {
		o.Bounds(3, fields.upper, p.parts[0].snap)
	}
	if left > 0 {
		o.Uint(fields.remaining, left)
	}
	for _, f := range w.faulty {
		o.Element(fields.quarantined, f.key)
	}
	if p.many {
		for _, f := range w.faulty {
			o.Located(fields.named, p.parts[f.part].c.Name, f.key)
		}
		for _, part := range p.parts {
			o.CollectionRevision(fields.revisions, part.c.Name, part.snap)
		}
		for _, name := range t.without(p.parts) {
			o.Element(fields.leftOut, name)
		}
	}
	for _, part := range p.parts {
		o.Unindexed(g.Unindexed(ctx, fs.of(part.c).Unindexed(part.c, part.snap)))
	}
	return o, nil
}

// remaining is how many objects follow the page: exact when only namespaces
// choose, else at most that many.
func (p *page) remaining(fs filters, total uint64, w *pageWriter) uint64 {
	if p.known {
		return total - min(total, p.passed+uint64(w.n))
	}
	// Not all pages before this one came from these snapshots: count, this once.
	n := uint64(0)
	for at := w.lastAt; at < len(p.parts); at++ {
		src, err := fs.of(p.parts[at].c).Source(p.parts[at].snap)
		if err != nil {
			return n
		}
		after := ""
		if at == w.lastAt {
			after = w.written()
		}
		for range src.After(after) {
			n++
		}
	}
	p.passed = total - min(total, n+uint64(w.n))
	return n
}

func revisionOf(p part) *deltav1.CollectionRevision {
	return &deltav1.CollectionRevision{Collection: p.c.Name, Revision: Revision(p.snap), Upper: Upper(p.snap)}
}
