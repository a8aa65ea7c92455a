package indexer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
	"github.com/deltaplane/deltaplane/services/indexer/definition"
)

const (
	// lookEvery is how often the bucket is looked at: whoever deletes it tells
	// nobody.
	lookEvery = 5 * time.Second
	// openWithin is how long a call waits for the bucket.
	openWithin = 5 * time.Second
)

// errBucketLost ends the watch of a bucket that is gone.
var errBucketLost = errors.New("the bucket of declared indexes is gone")

// run follows the bucket until ctx ends. One that somebody else deleted, or that
// a server lost, is made anew with what this replica knows: only RemoveIndexers
// removes. Of several replicas the first one's word counts for a resource.
func (d *declarations) run(ctx context.Context) error {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause, failing := least, false
	for ctx.Err() == nil {
		b, err := d.open(ctx)
		if err == nil {
			failing, pause = false, least
			err = d.watch(ctx, b)
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, errBucketLost) {
			d.slog.Warn("the bucket of declared indexes is gone, and is made anew with what is known")
			continue
		}
		if !failing {
			failing = true
			d.slog.Warn("cannot read declared indexes", telemetry.Err(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, most)
	}
	return nil
}

// watch follows b until ctx ends or it is lost.
func (d *declarations) watch(ctx context.Context, b *stream.Bucket) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	looks := make(chan struct{})
	go func() {
		defer close(looks)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-d.look:
			case <-ctx.Done():
				return
			}
			if d.lose(ctx, b) {
				cancel(errBucketLost)
				return
			}
		}
	}()
	err := b.Watch(ctx, func(e stream.Entry) error { return d.take(b, e) })
	lost := errors.Is(context.Cause(ctx), errBucketLost)
	cancel(nil)
	<-looks
	if lost {
		return errBucketLost
	}
	return err
}

// lose reports whether b is gone. If so it is forgotten, with its revisions:
// those of the next one begin anew.
func (d *declarations) lose(ctx context.Context, b *stream.Bucket) bool {
	d.mu.Lock()
	known := d.bucket == b
	d.mu.Unlock()
	if !known { // another caller has found out
		return true
	}
	if gone, err := b.Lost(ctx); err != nil || !gone {
		return false
	}
	d.mu.Lock()
	if d.bucket == b {
		d.bucket, d.lost = nil, true
		for _, e := range d.entries {
			e.revision = 0
		}
	}
	d.mu.Unlock()
	d.suspect() // also when a call has found out
	return true
}

// suspect has the bucket looked at.
func (d *declarations) suspect() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}

// open returns the bucket; one that was lost is made anew and filled first.
func (d *declarations) open(ctx context.Context) (*stream.Bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	select {
	case d.opening <- struct{}{}:
		defer func() { <-d.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	d.mu.Lock()
	b, held := d.bucket, map[string][]byte{}
	if d.lost {
		for resource, e := range d.entries {
			held[resource] = e.value
		}
	}
	d.mu.Unlock()
	if b != nil {
		return b, nil
	}
	b, err := d.log.Bucket(ctx, definitionsBucket, 0)
	if err != nil {
		return nil, err
	}
	for resource, value := range held { // what is there already is newer
		if _, err := b.Update(ctx, resource, value, 0); err != nil && !errors.Is(err, stream.ErrConflict) {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.bucket, d.lost = b, false
	return b, nil
}

// take is the handler of the entries of b; an empty one ends the first.
func (d *declarations) take(b *stream.Bucket, e stream.Entry) error {
	if e.Key == "" {
		d.suspect() // the watch has begun anew, perhaps on another server
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.complete() {
			close(d.known)
		}
		return nil
	}
	if e.Deleted {
		e.Value = nil
	}
	set, err := definition.DecodeSet(e.Value)
	if err != nil {
		d.slog.Error("declared indexes cannot be used", slog.String("resource", e.Key), telemetry.Err(err))
	}
	d.note(b, e.Key, e.Revision, e.Value, set, err)
	return nil
}
