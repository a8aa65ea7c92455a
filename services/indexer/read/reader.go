package read

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/consistency"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
	"github.com/deltaplane/deltaplane/services/indexer/grant"
)

// Config bounds answers and the snapshots kept for pages; see indexer.Config.
type Config struct {
	MaxPageBytes, MaxResponseBytes int
	SnapshotTTL, SnapshotMaxAge    time.Duration
	MaxSnapshots, SnapshotBytes    int
	ExpireEvery                    time.Duration // how often snapshots are let go of
}

// Reader answers reads from snapshots.
type Reader struct {
	*consistency.Waits
	cfg         Config
	collections *follow.Collections
	gate        grant.Gate
	pins        *pins
	tokens      *signer
	pages       *prometheus.CounterVec
}

// New returns a reader of collections for those whom the gate permits.
func New(cfg Config, all *follow.Collections, waits *consistency.Waits, gate grant.Gate, reg prometheus.Registerer) (*Reader, error) {
	s := &Reader{
		Waits: waits, cfg: cfg, collections: all, gate: gate, tokens: newSigner(), pins: newPins(cfg.MaxSnapshots, cfg.SnapshotTTL, cfg.SnapshotMaxAge, cfg.SnapshotBytes),
		pages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltaplane_indexer_page_tokens_total", Help: "Page tokens used, by result: served, elsewhere (another replica made it), expired.",
		}, []string{"result"}),
	}
	pinned := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "deltaplane_indexer_pinned_snapshots", Help: "Snapshots kept for page tokens.",
	}, func() float64 { return float64(s.pins.len()) })
	return s, errors.Join(reg.Register(s.pages), reg.Register(pinned))
}

// Expire lets go of the snapshots of pages that nobody asks for, until ctx ends.
func (s *Reader) Expire(ctx context.Context) {
	tick := time.NewTicker(s.cfg.ExpireEvery)
	defer tick.Stop()
	for {
		s.pins.expire(time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// permit lets the caller list what a request reaches of its target, or what is visible of that.
func (s *Reader) permit(ctx context.Context, t *target, r grant.Reach, visibleOnly bool) (grant.Grant, error) {
	if s.gate.Authority == nil {
		return grant.Grant{}, nil
	}
	ids := make([]delta.Collection, 0, 1+len(t.many))
	if t.one != nil {
		ids = append(ids, t.one.ID)
	}
	for _, c := range t.many {
		ids = append(ids, c.ID)
	}
	if visibleOnly {
		return s.gate.Visible(ctx, r, ids...)
	}
	return s.gate.List(ctx, r, ids...)
}

// readAs is Read for a caller who may still have what was permitted when the wait is over.
func (s *Reader) readAs(ctx context.Context, g *grant.Grant, c *follow.Collection, want *indexv1.Consistency) (*store.Snapshot, error) {
	snap, err := s.Read(ctx, c, want)
	if err == nil {
		err = g.Still(ctx)
	}
	return snap, err
}

// readAll returns a snapshot of each of several collections. A revision belongs
// to one of them, so at_least is refused unless there is only one; the tokens of
// pages, which go on from least, have one for each. Skipping, it leaves out those
// that cannot be read, as long as one can.
func (s *Reader) readAll(ctx context.Context, list []*follow.Collection, want *indexv1.Consistency, least uppers, skip bool) ([]part, error) {
	if want.GetAtLeast() != nil && len(list) > 1 && least == nil {
		return nil, rpc.InvalidArgument("consistency.at_least",
			fmt.Sprintf("is a revision of one collection, and this is a read of %d; name each in WaitForRevision first", len(list)))
	}
	all, err := s.Demand(want)
	if err != nil {
		return nil, err
	}
	parts := make([]part, 0, len(list))
	var unread error
	for _, c := range list {
		d := all
		if least != nil {
			d.Least, d.Wait = least.of(c), all.Wait
		}
		snap, err := s.Meet(ctx, c, &d)
		switch {
		case err == nil:
			parts = append(parts, part{c, snap})
		case !skip || !errors.Is(err, fault.ErrNotSynced) && !errors.Is(err, fault.ErrMemoryBudget):
			return nil, err
		case unread == nil:
			unread = err
		}
	}
	if len(parts) == 0 {
		return nil, unread
	}
	return parts, nil
}

// WaitForRevision answers when every revision asked for has been reached. It
// also waits for a collection to be synced.
func (s *Reader) WaitForRevision(ctx context.Context, req *indexv1.WaitForRevisionRequest) (*indexv1.WaitForRevisionResponse, error) {
	wait, err := s.Timeout("timeout", req.GetTimeout())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetRevisions()); n == 0 || n > maxBatch {
		return nil, rpc.InvalidArgument("revisions", fmt.Sprintf("has %d entries, want 1 to %d", n, maxBatch))
	}
	ctx, cancel := context.WithDeadline(ctx, consistency.Deadline(ctx, wait))
	defer cancel()
	resp := &indexv1.WaitForRevisionResponse{}
	for i, r := range req.GetRevisions() {
		c, err := s.collections.Find(fmt.Sprintf("revisions[%d].collection", i), r.GetCollection())
		if err != nil {
			return nil, err
		}
		least, err := consistency.ParseRevision(fmt.Sprintf("revisions[%d].revision", i), r.GetRevision())
		if err != nil {
			return nil, err
		}
		snap, err := s.Await(ctx, c, least)
		if err != nil {
			return nil, err
		}
		resp.Revisions = append(resp.Revisions, revisionOf(part{c, snap}))
	}
	return resp, nil
}

// Revision is that of a snapshot.
func Revision(snap *store.Snapshot) *deltav1.Revision {
	return protoRevision(snap.State().Revision)
}

// Upper bounds what a snapshot holds.
func Upper(snap *store.Snapshot) *deltav1.Revision { return protoRevision(snap.State().Upper) }

func protoRevision(r delta.Revision) *deltav1.Revision {
	return &deltav1.Revision{Epoch: r.Epoch, ResourceVersion: r.RV}
}
