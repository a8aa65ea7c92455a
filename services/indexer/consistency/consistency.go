package consistency

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/core/store"
	"github.com/deltaplane/deltaplane/internal/rpc"
	deltav1 "github.com/deltaplane/deltaplane/proto/deltaplane/delta/v1"
	indexv1 "github.com/deltaplane/deltaplane/proto/deltaplane/index/v1"
	"github.com/deltaplane/deltaplane/services/indexer/fault"
	"github.com/deltaplane/deltaplane/services/indexer/follow"
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
	Pause() error
	Resume()
}

// Waits bound how long requests wait for the snapshots that answer them.
type Waits struct {
	DefaultWait, MaxWait time.Duration
	Stopping             <-chan struct{} // closed when calls that last are to end
}

// Demand is what a request asks of a snapshot, and how long it waits for one.
type Demand struct {
	Least delta.Revision
	exact bool
	Wait  time.Duration
}

func (d *Demand) met(snap *store.Snapshot) bool {
	st := snap.State()
	return reached(snap, d.Least) && (!d.exact || st.Exact())
}

// Demand reads a consistency.
func (s *Waits) Demand(want *indexv1.Consistency) (d Demand, err error) {
	if want.GetAtLeast() == nil && !want.GetExact() {
		return d, nil
	}
	d.exact = want.GetExact()
	if d.Least, err = ParseRevision("consistency.at_least", want.GetAtLeast()); err != nil {
		return d, err
	}
	d.Wait, err = s.Timeout("consistency.timeout", want.GetTimeout())
	return d, err
}

// Read returns the snapshot that answers a request: the latest one, or the
// first that is as the consistency asks.
func (s *Waits) Read(ctx context.Context, c *follow.Collection, want *indexv1.Consistency) (*store.Snapshot, error) {
	d, err := s.Demand(want)
	if err != nil {
		return nil, err
	}
	return s.Meet(ctx, c, &d)
}

// Meet returns the latest snapshot, or the first that meets a demand.
func (s *Waits) Meet(ctx context.Context, c *follow.Collection, d *Demand) (*store.Snapshot, error) {
	snap := c.Snapshot()
	if err := c.Synced(snap); err != nil || d.Wait == 0 || d.met(snap) {
		return snap, err
	}
	if w, ok := ctx.(waiter); ok {
		if err := w.Pause(); err != nil {
			return nil, err
		}
		defer w.Resume()
	}
	ctx, cancel := context.WithDeadline(ctx, Deadline(ctx, d.Wait))
	defer cancel()
	for {
		select {
		case <-snap.Superseded():
		case <-s.Stopping:
			return nil, fault.New(fault.ErrStopping, "")
		case <-ctx.Done():
			return nil, late(c, snap, d)
		}
		snap = c.Snapshot()
		if err := c.Synced(snap); err != nil || d.met(snap) {
			return snap, err
		}
	}
}

func late(c *follow.Collection, snap *store.Snapshot, d *Demand) error {
	st := snap.State()
	if reached(snap, d.Least) {
		return fault.New(fault.ErrNotExact, fmt.Sprintf("%s is at %v and has events up to %v", c.Name, st.Revision, st.Upper), "collection", c.Name).Reached(snap)
	}
	return fault.New(fault.ErrRevisionNotReached, c.Because(fmt.Sprintf("%s is at %v, not at %v", c.Name, st.Revision, d.Least)), "collection", c.Name).Reached(snap)
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

// ParseRevision reads the revision in a field of a request.
func ParseRevision(field string, r *deltav1.Revision) (delta.Revision, error) {
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

// Timeout bounds how long a request may wait.
func (s *Waits) Timeout(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return s.DefaultWait, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, rpc.InvalidField(field, err)
	}
	switch wait := d.AsDuration(); {
	case wait < 0:
		return 0, rpc.InvalidArgument(field, fmt.Sprintf("%v is negative", wait))
	case wait == 0:
		return s.DefaultWait, nil
	default:
		return min(wait, s.MaxWait), nil
	}
}

// Deadline is when waiting ends: after wait, or just before the caller's own.
func Deadline(ctx context.Context, wait time.Duration) time.Time {
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

// Await waits until a collection is synced and at a revision.
func (s *Waits) Await(ctx context.Context, c *follow.Collection, least delta.Revision) (*store.Snapshot, error) {
	for {
		snap := c.Snapshot()
		err := c.Synced(snap)
		if err == nil && reached(snap, least) {
			return snap, nil
		}
		select {
		case <-snap.Superseded():
			continue
		case <-s.Stopping:
			return nil, fault.New(fault.ErrStopping, "")
		case <-ctx.Done():
		}
		if err != nil {
			return nil, err
		}
		return nil, late(c, snap, &Demand{Least: least})
	}
}
