package read

import (
	"context"
	"fmt"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/rpc"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
	"github.com/deltaplane/deltaplane/services/indexer/message"
)

// maxBatch is how many keys or revisions one call may name.
const maxBatch = 1000

func checkKey(field, key string) error {
	if _, err := delta.ParseKey(key); err != nil {
		return rpc.InvalidField(field, err)
	}
	return nil
}

// Get answers with one object.
func (s *Reader) Get(ctx context.Context, req *indexv1.GetRequest) (*message.Writer, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	if err := checkKey("key", req.GetKey()); err != nil {
		return nil, err
	}
	p, err := message.Project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	g, err := s.gate.Objects(ctx, c.ID, req.GetKey())
	if err != nil {
		return nil, err
	}
	snap, err := s.readAs(ctx, &g, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	obj := snap.Get(req.GetKey())
	if obj == nil {
		if err := keyFits(c, snap, "key", req.GetKey()); err != nil {
			return nil, err
		}
		return nil, fault.New(fault.ErrKeyNotFound, fmt.Sprintf("%q in %s", req.GetKey(), c.Name), "collection", c.Name, "key", req.GetKey()).Reached(snap)
	}
	if obj.Faulty() {
		return nil, fault.New(fault.ErrKeyQuarantined, fmt.Sprintf("%q in %s: %s", obj.Key(), c.Name, obj.Fault()), "collection", c.Name, "key", obj.Key()).Reached(snap)
	}
	o := message.New()
	if !o.Object(obj, &p, "") {
		return nil, fault.New(fault.ErrKeyQuarantined, fmt.Sprintf("%q in %s: its stored form is damaged", obj.Key(), c.Name), "collection", c.Name, "key", obj.Key()).Reached(snap)
	}
	o.Bounds(2, 3, snap)
	return o, nil
}

// BatchGet answers with the objects of several keys.
func (s *Reader) BatchGet(ctx context.Context, req *indexv1.BatchGetRequest) (*message.Writer, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetKeys()); n == 0 || n > maxBatch {
		return nil, rpc.InvalidArgument("keys", fmt.Sprintf("has %d entries, want 1 to %d", n, maxBatch))
	}
	for i, key := range req.GetKeys() {
		if _, err := delta.ParseKey(key); err != nil {
			return nil, rpc.InvalidField(fmt.Sprintf("keys[%d]", i), err)
		}
	}
	p, err := message.Project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	g, err := s.gate.Objects(ctx, c.ID, req.GetKeys()...)
	if err != nil {
		return nil, err
	}
	snap, err := s.readAs(ctx, &g, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	o := message.New()
	for i, key := range req.GetKeys() {
		obj := snap.Get(key)
		switch {
		case obj == nil:
			if err := keyFits(c, snap, fmt.Sprintf("keys[%d]", i), key); err != nil {
				o.Free()
				return nil, err
			}
			o.Element(2, key)
		case obj.Faulty():
			o.Element(3, key)
		default:
			if mark := o.Mark(); !o.Object(obj, &p, "") {
				o.Rewind(mark)
				o.Element(3, key)
			}
		}
		if o.Len() > s.cfg.MaxResponseBytes {
			return nil, s.tooLarge("ask for fewer keys, or for less of each object")
		}
	}
	o.Bounds(4, 5, snap)
	return o, nil
}

func (s *Reader) tooLarge(advice string) error {
	return fault.New(fault.ErrTooLarge, fmt.Sprintf("more than %d bytes: %s", s.cfg.MaxResponseBytes, advice))
}

// ByExample is the method Index.
func (s *Reader) ByExample(ctx context.Context, req *indexv1.IndexRequest) (*message.Writer, error) {
	c, err := s.collections.Find("collection", req.GetCollection())
	if err != nil {
		return nil, err
	}
	p, err := message.Project(req.GetView(), req.GetFieldMask())
	if err != nil {
		return nil, err
	}
	example, err := extract.New(c.Indexes.PlanOf(req.GetIndex())).Example(ctx, req.GetObject())
	if err != nil {
		return nil, rpc.InvalidField("object", err)
	}
	g, err := s.permit(ctx, &target{one: c}, grant.Reach{Index: req.GetIndex(), Content: p.Content()}, req.GetVisibleOnly())
	if err != nil {
		return nil, err
	}
	snap, err := s.readAs(ctx, &g, c, req.GetConsistency())
	if err != nil {
		return nil, err
	}
	values, err := snap.Values(req.GetIndex(), example)
	if err != nil {
		return nil, c.Indexes.IndexError(err)
	}
	f := under(c, &g, req.GetIndex(), req.GetStrict(), values...)
	src, err := f.Source(snap)
	if err != nil {
		return nil, c.Indexes.IndexError(g.Failed(ctx, c.Name, err))
	}
	o := message.New()
	var faulty []string
	beside := 0 // about what it takes to name them
	for obj := range src.After("") {
		if !src.Exact && !f.Match(snap, obj) {
			continue
		}
		if !o.Object(obj, &p, "") {
			faulty = append(faulty, obj.Key())
			beside += naming(obj.Key(), "")
		}
		if o.Len()+beside > s.cfg.MaxResponseBytes {
			return nil, s.tooLarge("use ByIndex, which has pages")
		}
	}
	for _, v := range values {
		o.Element(2, Readable(v))
	}
	o.Bounds(3, 5, snap)
	for _, key := range faulty {
		o.Element(4, key)
	}
	o.Unindexed(g.Unindexed(ctx, f.Unindexed(c, snap)))
	return o, nil
}
