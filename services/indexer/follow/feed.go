package follow

import (
	"context"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/services/indexer/extract"
)

// intake is a batch whose payloads were checked and copied.
type intake struct {
	delta.Batch
	faults []error // what is wrong with each record's payload
}

// take checks the payloads of a batch and copies them out of the log's messages.
// It is for any goroutine.
func (c *Collection) take(b delta.Batch) intake {
	in := intake{b, make([]error, len(b.Records))}
	for i := range b.Records {
		r := &b.Records[i]
		switch {
		case r.Kind == delta.KindDelta && r.Type != delta.Bookmark && r.Type != delta.Deleted:
			in.faults[i] = extract.Check(r)
			r.Payload = c.keeper.Put(r.Payload)
		// What is lent is not kept; only readers of changes want deleted objects.
		case r.Type == delta.Deleted && r.DeleteReason == delta.Observed && len(r.Payload) > 0 && c.replayed.Load():
			in.faults[i] = extract.Check(r)
			r.Payload = c.keeper.PutGone(r.Payload)
		default:
			r.Payload = nil
		}
	}
	return in
}

// feed is one reading of a log into a collection. It belongs to the goroutine
// that reads. In a replay a batch is decoded, checked and copied while the one
// before it is applied, by another goroutine: the two are about half of the work
// each, and no more than two batches are in memory. Otherwise a batch is applied
// before the handler returns.
type feed struct {
	s      *Collections
	c      *Collection
	replay bool
	size   int           // of the batch before
	busy   chan struct{} // closed when that has been applied; nil without one
}

// batch is the handler of the log reader.
func (in *feed) batch(ctx context.Context, b delta.Batch) error {
	in.replay = in.replay || b.Reset
	if err := in.s.admit(ctx, in, &b); err != nil {
		return err
	}
	taken := in.c.take(b)
	in.wait()
	if in.replay = in.replay && !b.Replayed; !in.replay {
		in.c.apply(ctx, taken)
		if in.c.refuted {
			return errRefuted
		}
		return nil
	}
	busy := make(chan struct{})
	in.busy = busy
	go func() {
		defer close(busy)
		in.c.apply(ctx, taken)
	}()
	return nil
}

// wait returns when everything has been applied that was handed over.
func (in *feed) wait() {
	if in.busy != nil {
		<-in.busy
		in.busy = nil
	}
}
