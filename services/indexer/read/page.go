package read

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
)

const (
	defaultPage = 500
	maxPage     = 5000
)

// Where the snapshot of a page token is that is not here, as errors and metrics
// name it: with another replica, which may have it, or nowhere.
const (
	snapshotElsewhere = "elsewhere"
	snapshotExpired   = "expired"
	// The caller may see other objects now than when the pages began.
	snapshotScope = "scope"
)

// paged is a request that is answered in pages.
type paged interface {
	proto.Message
	GetPageSize() int32
	GetPageToken() string
	GetConsistency() *indexv1.Consistency
}

// page is a place in a paged answer: from which snapshots and after what.
type page struct {
	s      *Reader
	req    paged
	parts  []part // in the order of the answer
	at     int    // the part that the page begins in
	after  string
	passed uint64
	least  uppers // of the pages before
	known  bool   // passed is known: the pages so far came from these snapshots
	many   bool   // the answer covers several clusters
	size   int
	scope  uint64 // a print of what is visible to the caller
	one    [1]part
}

// page finds the snapshots for a request, of a caller who may still read them then: those of its
// token, or new ones.
func (s *Reader) page(ctx context.Context, req paged, t *target, zero int, g *grant.Grant) (*page, error) {
	p, err := s.find(ctx, req, t, zero)
	if err == nil {
		err = g.Still(ctx)
	}
	if err != nil {
		return p, err
	}
	began := p.scope
	if p.scope = g.Print(); req.GetPageToken() != "" && p.scope != began {
		return p, fault.New(fault.ErrSnapshotGone, "what the caller may see has changed since the pages began: begin again", "snapshot", snapshotScope, "collection", t.resource)
	}
	return p, nil
}

func (s *Reader) find(ctx context.Context, req paged, t *target, zero int) (*page, error) {
	p := &page{s: s, req: req, size: zero, known: true, many: t.one == nil}
	switch size := req.GetPageSize(); {
	case size < 0:
		return p, rpc.InvalidArgument("page_size", fmt.Sprintf("%d is negative", size))
	case size > 0:
		p.size = min(int(size), maxPage)
	}
	text := req.GetPageToken()
	if text == "" {
		return p, p.read(ctx, t, req.GetConsistency())
	}
	tok, err := s.tokens.read(text, requestPrint(req))
	if err != nil {
		return p, err
	}
	p.after, p.passed, p.scope = tok.after, tok.passed, tok.scope
	if tok.pin == 0 { // continues from snapshots that are gone
		p.known, p.least = false, tok.uppers
		if p.least == nil {
			p.least = uppers{}
		}
		if err := p.read(ctx, t, req.GetConsistency()); err != nil {
			return p, err
		}
		p.seek(tok.cluster)
		return p, nil
	}
	own := tok.maker == s.tokens.maker
	if own {
		p.parts = s.pins.get(tok.pin, time.Now())
	}
	if p.parts == nil || !t.is(p.parts) {
		tok.pin, tok.passed = 0, 0
		where, text := snapshotElsewhere, "another replica made it: ask that one, or go on from a new snapshot with the token in the details"
		if own {
			where, text = snapshotExpired, "it is not kept any more; go on from a new snapshot with the token in the details"
		}
		s.pages.WithLabelValues(where).Inc()
		return p, fault.New(fault.ErrSnapshotGone, text, "page_token", s.tokens.write(tok), "snapshot", where, "collection", t.resource)
	}
	s.pages.WithLabelValues("served").Inc()
	if err := p.keepSynced(t, tok.cluster); err != nil {
		return p, err
	}
	p.seek(tok.cluster)
	return p, nil
}

// keepSynced keeps what may be answered of the snapshots of a page that begins in
// a cluster: a collection that has to be synced again answers nothing, old
// snapshots included. It is left out where that was asked for, but not when the
// pages before have all of it.
func (p *page) keepSynced(t *target, cluster string) (unread error) {
	kept := make([]part, 0, len(p.parts))
	for _, part := range p.parts {
		err := part.c.Synced(part.c.Snapshot())
		if err != nil && !t.partial {
			return err
		}
		if err == nil || part.c.ID.Cluster < cluster {
			kept = append(kept, part)
		} else if unread == nil {
			unread = err
		}
	}
	if unread == nil {
		return nil
	}
	if len(kept) == 0 {
		return unread
	}
	p.parts, p.known = kept, false
	return nil
}

// read takes new snapshots. Those of a page that goes on must not be older than what
// the pages before it held: then want counts for its timeout alone.
func (p *page) read(ctx context.Context, t *target, want *indexv1.Consistency) error {
	if p.least != nil {
		want = &indexv1.Consistency{AtLeast: &deltav1.Revision{}, Timeout: want.GetTimeout()}
	}
	if t.one == nil || p.least != nil {
		list := t.many
		if t.one != nil {
			list = []*follow.Collection{t.one}
		}
		var err error
		p.parts, err = p.s.readAll(ctx, list, want, p.least, t.partial)
		return err
	}
	snap, err := p.s.Read(ctx, t.one, want)
	p.one[0] = part{t.one, snap}
	p.parts = p.one[:]
	return err
}

// uppers are the upper bounds of what pages held, by cluster; "" where there is but
// one collection.
func (p *page) uppers() uppers {
	u := maps.Clone(p.least)
	if u == nil {
		u = make(uppers, len(p.parts))
	}
	for _, part := range p.parts {
		cluster := ""
		if p.many {
			cluster = part.c.ID.Cluster
		}
		u[cluster] = part.snap.State().Upper
	}
	return u
}

// seek finds the part that a page goes on in, by its cluster. One that is no
// longer there is passed.
func (p *page) seek(cluster string) {
	if !p.many {
		return
	}
	at := slices.IndexFunc(p.parts, func(part part) bool { return part.c.ID.Cluster >= cluster })
	switch {
	case at < 0:
		p.at = len(p.parts)
	case p.parts[at].c.ID.Cluster != cluster:
		p.at, p.after = at, ""
	default:
		p.at = at
	}
}

// next makes the token of the page after this one, which ends in a part with a
// key or a value.
func (p *page) next(ctx context.Context, at int, after string, given int) string {
	t := token{
		uppers: p.uppers(),
		query:  requestPrint(p.req), pin: p.s.pins.hold(rpc.Client(ctx), p.parts, time.Now()), passed: p.passed + uint64(given), after: after, scope: p.scope,
	}
	if p.many {
		t.cluster = p.parts[at].c.ID.Cluster
	}
	return p.s.tokens.write(t)
}

// requestPrint tells requests apart: a page token belongs to the one that it was
// made for. The size of the pages may change between them.
func requestPrint(req paged) uint64 {
	m := proto.Clone(req).ProtoReflect()
	fields := m.Descriptor().Fields()
	for _, name := range []protoreflect.Name{"page_token", "page_size", "consistency"} {
		m.Clear(fields.ByName(name))
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(m.Descriptor().FullName()))
	body, err := proto.MarshalOptions{Deterministic: true}.Marshal(m.Interface())
	if err != nil {
		return 0 // what was decoded can be encoded
	}
	_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(body))))
	_, _ = h.Write(body)
	return h.Sum64()
}
