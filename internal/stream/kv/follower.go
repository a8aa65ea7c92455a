package kv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/stream/link"
)

const (
	// lookEvery is how often a bucket is looked at: nobody announces a deletion.
	lookEvery = 5 * time.Second
	// openWithin is how long opening a bucket may take, with what is put back into it.
	openWithin = 10 * time.Second
	// deafWithin is how long after a bucket was made again a write that is not answered raises the
	// doubt whether it stores anything.
	deafWithin = time.Minute
)

// errBucketLost ends the watch of a bucket that is gone.
var errBucketLost = errors.New("stream: bucket is gone")

// ErrOutcomeUnknown says that a value may have been written, though no answer to the write came.
var ErrOutcomeUnknown = errors.New("stream: whether it was written is not known")

// FollowConfig is what a [Follower] asks of its user, who knows what the bucket holds.
type FollowConfig struct {
	// Name of the bucket.
	Name string
	// Take receives every entry, in order and by one goroutine; an empty one ends those that were
	// there when a watch began, and is sent only for a bucket that is not lost, as far as is known: a
	// caller may find out at that moment, and then Current says so to the holder of the lock that
	// Forget takes. An error ends the watch, and another one begins.
	Take func(b *Bucket, e Entry) error
	// Known is the revision of what is known of a key; 0 when nothing is.
	Known func(key string) uint64
	// Forget makes all revisions 0, as those of the next bucket begin again. It must not call the
	// Follower, but for Current.
	Forget func()
	// Held is what is known, by key, to be put into a bucket made again.
	Held func() map[string][]byte
	// Log is told of what is wrong; default discards.
	Log *slog.Logger
}

// Follower follows and writes a bucket, and outlives it: one that somebody else deletes, or that a
// server lost, is made again with what this process knows, before anybody uses it. Of several
// processes the first one's word counts for a key. It is safe for concurrent use.
type Follower struct {
	cfg     FollowConfig
	open    func(ctx context.Context, name string, ttl time.Duration) (*Bucket, error)
	look    chan struct{} // cap 1; the bucket may be gone
	opening chan struct{} // cap 1; full while somebody opens the bucket

	bucket atomic.Pointer[Bucket] // written with mu held
	mu     sync.Mutex
	lost   bool      // the bucket is gone, and what it held was not put back yet; guarded by mu
	remade time.Time // when the bucket was last made again; guarded by mu
}

// NewFollower returns a Follower that opens its bucket with open, as [Open] does.
func NewFollower(open func(ctx context.Context, name string, ttl time.Duration) (*Bucket, error), cfg FollowConfig) *Follower {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Follower{cfg: cfg, open: open, look: make(chan struct{}, 1), opening: make(chan struct{}, 1)}
}

// Run follows the bucket until ctx ends. While it cannot be read, what is known goes on being
// believed.
func (f *Follower) Run(ctx context.Context) {
	wait, failing := attempt.Wait{First: 100 * time.Millisecond, Most: 5 * time.Second}, false
	for ctx.Err() == nil {
		b, err := f.Open(ctx)
		if err == nil {
			err = f.watch(ctx, b, func() { wait.Reset(); failing = false })
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errBucketLost):
			f.cfg.Log.Warn("a bucket is gone, and is made again with what is known", slog.String("bucket", f.cfg.Name))
			continue
		}
		if !failing {
			failing = true
			f.cfg.Log.Warn("a bucket cannot be read", slog.String("bucket", f.cfg.Name), slog.String("error", err.Error()))
		}
		wait.Sleep(ctx, 0)
	}
}

// watch follows b until ctx ends, it is lost, or Take fails. Well is called when all that was there
// has been read.
func (f *Follower) watch(ctx context.Context, b *Bucket, well func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	looks := make(chan struct{})
	go func() {
		defer close(looks)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			reconnected := b.c.Events.Wait()
			select {
			case <-tick.C:
			case <-f.look:
			case <-reconnected: // perhaps to another server
			case <-ctx.Done():
				return
			}
			if lost, err := f.Lost(ctx, b); err == nil && lost {
				cancel(errBucketLost)
				return
			}
		}
	}()
	err := b.Watch(ctx, func(e Entry) error {
		if e.Key == "" { // of a bucket made again, all that is known would be missing
			switch lost, err := f.Lost(ctx, b); {
			case err != nil:
				return err
			case lost:
				return errBucketLost
			}
			well()
		}
		return f.cfg.Take(b, e)
	})
	lost := errors.Is(context.Cause(ctx), errBucketLost)
	cancel(nil)
	<-looks
	if lost {
		return errBucketLost
	}
	return err
}

// Current reports whether b is the bucket that is followed, as far as is known.
func (f *Follower) Current(b *Bucket) bool { return f.bucket.Load() == b }

// Lost reports whether b is gone; no answer is an error. If it is, it is forgotten, and
// [Follower.Open] makes it again.
func (f *Follower) Lost(ctx context.Context, b *Bucket) (bool, error) {
	if !f.Current(b) { // another caller has found out
		return true, nil
	}
	if gone, err := b.Lost(ctx); err != nil || !gone {
		return false, err
	}
	f.mu.Lock()
	if f.Current(b) {
		f.bucket.Store(nil)
		f.lost = true
		f.cfg.Forget()
	}
	f.mu.Unlock()
	f.Suspect() // for the watch, when a call has found out
	return true, nil
}

// Suspect has the bucket looked at.
func (f *Follower) Suspect() {
	select {
	case f.look <- struct{}{}:
	default:
	}
}

// Open returns the bucket; one that was lost is made again and filled first.
func (f *Follower) Open(ctx context.Context) (*Bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	select {
	case f.opening <- struct{}{}:
		defer func() { <-f.opening }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	f.mu.Lock()
	b, lost := f.bucket.Load(), f.lost
	f.mu.Unlock()
	if b != nil {
		return b, nil
	}
	open := f.open
	if lost {
		open = f.remake
	}
	b, err := open(ctx, f.cfg.Name, 0)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bucket.Store(b)
	if f.lost {
		f.remade = time.Now()
	}
	f.lost = false
	return b, nil
}

// remake makes a bucket that was lost again, and puts what is known into it. A server may still be
// busy deleting the last one: then it takes no other yet, or makes one whose files it deletes with
// those of the last.
func (f *Follower) remake(ctx context.Context, name string, ttl time.Duration) (*Bucket, error) {
	for {
		b, err := f.open(ctx, name, ttl)
		for try := 0; errors.Is(err, link.ErrUnavailable) && try < 5; try++ {
			attempt.Sleep(ctx, 100*time.Millisecond)
			b, err = f.open(ctx, name, ttl)
		}
		if err != nil {
			return nil, err
		}
		gone, err := f.removeDeaf(ctx, b)
		if err != nil {
			return nil, err
		}
		if gone {
			attempt.Sleep(ctx, 100*time.Millisecond)
			continue
		}
		for key, value := range f.cfg.Held() { // what is there already is newer
			if _, err := b.Update(ctx, key, value, 0); err != nil && !errors.Is(err, ErrConflict) {
				return nil, err
			}
		}
		return b, nil
	}
}

// removeDeaf removes a bucket made a moment ago that is there and stores nothing, and reports
// whether it is gone. All that could be in it is known here and is put into the next one.
func (f *Follower) removeDeaf(ctx context.Context, b *Bucket) (gone bool, err error) {
	failed := b.probe(ctx)
	if !errors.Is(failed, link.ErrUnavailable) || ctx.Err() != nil {
		return false, failed
	}
	if gone, err := b.Lost(ctx); err != nil || gone {
		return gone, err
	}
	f.cfg.Log.Warn("a bucket was made while its server deleted the last one, and stores nothing; it is made again", slog.String("bucket", f.cfg.Name))
	return true, b.remove(ctx)
}

// doubt looks whether a bucket made a moment ago stores what is written, after a write that was not
// answered.
func (f *Follower) doubt(ctx context.Context, b *Bucket) {
	f.mu.Lock()
	young := time.Since(f.remade) < deafWithin
	f.mu.Unlock()
	if !young || !f.Current(b) {
		return
	}
	if gone, err := f.removeDeaf(ctx, b); err == nil && gone {
		_, _ = f.Lost(ctx, b) // the next call asks again
	}
}

// Get returns a key's entry, empty when there is none, and the bucket that holds it. When the
// bucket does not answer as it should, it is looked at, and made again when it is gone. That nobody
// can tell is an error.
func (f *Follower) Get(ctx context.Context, key string) (*Bucket, Entry, error) {
	for {
		b, err := f.Open(ctx)
		if err != nil {
			return nil, Entry{}, err
		}
		e, err := b.Get(ctx, key)
		if errors.Is(err, ErrNoKey) {
			err = nil
		}
		known := f.cfg.Known(key)
		if !f.Current(b) { // known is of no bucket, so e cannot be judged by it
			continue
		}
		if err != nil || e.Revision < known {
			lost, unknown := f.Lost(ctx, b)
			if lost && ctx.Err() == nil {
				continue
			}
			err = cmp.Or(err, unknown) // what is older than what is known must not be taken for all there is
		}
		if err != nil {
			return nil, Entry{}, err
		}
		return b, e, nil
	}
}

// maxChanges is how often [Follower.Change] tries while others change the same key.
const maxChanges = 20

// Change replaces the value of a key with the one that fn returns for it; fn returns false to
// leave it, and runs again whenever another writer was faster. Noted receives the entry, written
// or left, and reports whether b is still the bucket; if not, the change begins again in the next
// one. A write whose answer was lost, or that went to a bucket just recreated, is recognised by
// its value: fn never meets its own change. Errors are those of fn, [ErrConflict] when others keep
// changing the key, [ErrOutcomeUnknown] when the value may have been written, and otherwise those
// of reading, with nothing written.
func (f *Follower) Change(ctx context.Context, key string, fn func(value []byte) ([]byte, bool, error), noted func(b *Bucket, e Entry) bool) error {
	var written []byte
	var failed error
	for range maxChanges {
		b, e, err := f.Get(ctx, key)
		if err != nil {
			return outcome(failed, err)
		}
		if written == nil || !bytes.Equal(e.Value, written) {
			value, changed, err := fn(e.Value)
			if err != nil {
				return err
			}
			if changed {
				written = value
				e.Value = value
				e.Revision, err = b.Update(ctx, key, value, e.Revision)
			}
			switch {
			case errors.Is(err, ErrConflict):
				continue
			case err != nil && failed != nil:
				return outcome(failed, err)
			case err != nil:
				failed = err
				if errors.Is(err, link.ErrUnavailable) {
					f.doubt(ctx, b)
				}
				continue
			}
		}
		if noted(b, e) {
			return nil
		}
	}
	return outcome(failed, fmt.Errorf("change %q in bucket %s: %w", key, f.cfg.Name, ErrConflict))
}

// outcome is err, or says that an earlier write that failed may have been carried out.
func outcome(failed, err error) error {
	if failed == nil {
		return err
	}
	return fmt.Errorf("%w: %w, then: %w", ErrOutcomeUnknown, failed, err)
}
