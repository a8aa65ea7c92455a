package indexer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
)

// A tenth of what a caller's deadline leaves is kept back from it, within these
// bounds, so that it learns how far the index was instead of nothing.
const (
	leastReplyTime = 25 * time.Millisecond
	mostReplyTime  = time.Second
)

// waiter is a context that is told when its call waits for a revision. It may
// refuse to wait.
type waiter interface {
	pause() error
	resume()
}

// demand is what a request asks of a snapshot, and how long it waits for one.
type demand struct {
	least delta.Revision
	exact bool
	wait  time.Duration
}

func (d *demand) met(snap *store.Snapshot) bool {
	st := snap.State()
	return reached(snap, d.least) && (!d.exact || st.Exact())
}

// demand reads a consistency.
func (s *Service) demand(want *indexv1.Consistency) (d demand, err error) {
	if want.GetAtLeast() == nil && !want.GetExact() {
		return d, nil
	}
	d.exact = want.GetExact()
	if d.least, err = parseRevision("consistency.at_least", want.GetAtLeast()); err != nil {
		return d, err
	}
	d.wait, err = s.timeout("consistency.timeout", want.GetTimeout())
	return d, err
}

// read returns the snapshot that answers a request: the latest one, or the
// first that is as the consistency asks.
func (s *Service) read(ctx context.Context, c *collection, want *indexv1.Consistency) (*store.Snapshot, error) {
	d, err := s.demand(want)
	if err != nil {
		return nil, err
	}
	return s.meet(ctx, c, &d)
}

// meet returns the latest snapshot, or the first that meets a demand.
func (s *Service) meet(ctx context.Context, c *collection, d *demand) (*store.Snapshot, error) {
	snap := c.store.Snapshot()
	if err := c.synced(snap); err != nil || d.wait == 0 || d.met(snap) {
		return snap, err
	}
	if w, ok := ctx.(waiter); ok {
		if err := w.pause(); err != nil {
			return nil, err
		}
		defer w.resume()
	}
	ctx, cancel := context.WithDeadline(ctx, deadline(ctx, d.wait))
	defer cancel()
	for {
		select {
		case <-snap.Superseded():
		case <-s.stopping:
			return nil, newFault(errStopping, "")
		case <-ctx.Done():
			return nil, c.late(snap, d)
		}
		snap = c.store.Snapshot()
		if err := c.synced(snap); err != nil || d.met(snap) {
			return snap, err
		}
	}
}

// readAll returns a snapshot of each of several collections. A revision belongs
// to one of them, so at_least is refused unless there is only one; the tokens of
// pages, which go on from least, have one for each. Skipping, it leaves out those
// that cannot be read, as long as one can.
func (s *Service) readAll(ctx context.Context, list []*collection, want *indexv1.Consistency, least uppers, skip bool) ([]part, error) {
	if want.GetAtLeast() != nil && len(list) > 1 && least == nil {
		return nil, rpc.InvalidArgument("consistency.at_least",
			fmt.Sprintf("is a revision of one collection, and this is a read of %d; name each in WaitForRevision first", len(list)))
	}
	all, err := s.demand(want)
	if err != nil {
		return nil, err
	}
	parts := make([]part, 0, len(list))
	var unread error
	for _, c := range list {
		d := all
		if least != nil {
			d.least, d.wait = least.of(c), all.wait
		}
		snap, err := s.meet(ctx, c, &d)
		switch {
		case err == nil:
			parts = append(parts, part{c, snap})
		case !skip || !errors.Is(err, errNotSynced) && !errors.Is(err, errMemoryBudget):
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

// synced says whether reads of the collection may be answered.
func (c *collection) synced(snap *store.Snapshot) error {
	if snap.State().Synced {
		return nil
	}
	if r := c.refused.Load(); r != nil {
		return r.fault
	}
	return newFault(errNotSynced, c.name, "collection", c.name)
}

func (c *collection) late(snap *store.Snapshot, d *demand) error {
	st := snap.State()
	if reached(snap, d.least) {
		return newFault(errNotExact, fmt.Sprintf("%s is at %v and has events up to %v", c.name, st.Revision, st.Upper), "collection", c.name).reached(snap)
	}
	return newFault(errRevisionNotReached, fmt.Sprintf("%s is at %v, not at %v", c.name, st.Revision, d.least), "collection", c.name).reached(snap)
}

// reached reports whether a snapshot is at a revision. Epoch zero is the
// snapshot's own.
func reached(snap *store.Snapshot, least delta.Revision) bool {
	at := snap.State().Revision
	if least.Epoch == 0 {
		least.Epoch = at.Epoch
	}
	return at.Compare(least) >= 0
}

func parseRevision(field string, r *deltav1.Revision) (delta.Revision, error) {
	rev := delta.Revision{Epoch: r.GetEpoch()}
	if r.GetResourceVersion() == "" {
		return rev, nil
	}
	var err error
	if rev.RV, err = delta.ParseRV(r.GetResourceVersion()); err != nil {
		return rev, rpc.InvalidField(field+".resource_version", err)
	}
	return rev, nil
}

// timeout bounds how long a request may wait.
func (s *Service) timeout(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return s.cfg.DefaultWait, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, rpc.InvalidField(field, err)
	}
	switch wait := d.AsDuration(); {
	case wait < 0:
		return 0, rpc.InvalidArgument(field, fmt.Sprintf("%v is negative", wait))
	case wait == 0:
		return s.cfg.DefaultWait, nil
	default:
		return min(wait, s.cfg.MaxWait), nil
	}
}

// deadline is when waiting ends: after wait, or just before the caller's own.
func deadline(ctx context.Context, wait time.Duration) time.Time {
	now := time.Now()
	at := now.Add(wait)
	own, ok := ctx.Deadline()
	if !ok {
		return at
	}
	kept := min(max(own.Sub(now)/10, leastReplyTime), mostReplyTime)
	if own = own.Add(-kept); own.Before(at) {
		return own
	}
	return at
}

// WaitForRevision answers when every revision asked for has been reached. It
// also waits for a collection to be synced.
func (s *server) WaitForRevision(ctx context.Context, req *indexv1.WaitForRevisionRequest) (*indexv1.WaitForRevisionResponse, error) {
	wait, err := s.timeout("timeout", req.GetTimeout())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetRevisions()); n == 0 || n > maxBatch {
		return nil, rpc.InvalidArgument("revisions", fmt.Sprintf("has %d entries, want 1 to %d", n, maxBatch))
	}
	ctx, cancel := context.WithDeadline(ctx, deadline(ctx, wait))
	defer cancel()
	resp := &indexv1.WaitForRevisionResponse{}
	for i, r := range req.GetRevisions() {
		c, err := s.find(fmt.Sprintf("revisions[%d].collection", i), r.GetCollection())
		if err != nil {
			return nil, err
		}
		least, err := parseRevision(fmt.Sprintf("revisions[%d].revision", i), r.GetRevision())
		if err != nil {
			return nil, err
		}
		snap, err := s.await(ctx, c, least)
		if err != nil {
			return nil, err
		}
		resp.Revisions = append(resp.Revisions, revisionOf(part{c, snap}))
	}
	return resp, nil
}

// await waits until a collection is synced and at a revision.
func (s *Service) await(ctx context.Context, c *collection, least delta.Revision) (*store.Snapshot, error) {
	for {
		snap := c.store.Snapshot()
		err := c.synced(snap)
		if err == nil && reached(snap, least) {
			return snap, nil
		}
		select {
		case <-snap.Superseded():
			continue
		case <-s.stopping:
			return nil, newFault(errStopping, "")
		case <-ctx.Done():
		}
		if err != nil {
			return nil, err
		}
		return nil, c.late(snap, &demand{least: least})
	}
}

func revision(snap *store.Snapshot) *deltav1.Revision {
	return protoRevision(snap.State().Revision)
}

// upper bounds what a snapshot holds.
func upper(snap *store.Snapshot) *deltav1.Revision { return protoRevision(snap.State().Upper) }

func protoRevision(r delta.Revision) *deltav1.Revision {
	return &deltav1.Revision{Epoch: r.Epoch, ResourceVersion: r.RV}
}
