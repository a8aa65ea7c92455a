package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream"
)

// reflectionsBucket keeps beside the log what callers asked all reflectors to do:
//
//	added/CLUSTER      the additions. One key for a cluster makes a resource that two callers add at once a conflict, also when they write
//	                   it differently
//	found/CLUSTER      the collections that "*" found
//	relist/COLLECTION  a list is asked for; empty once the leader has begun it
const reflectionsBucket = "deltaplane-reflections"

// Buckets are those of NATS that a reflector writes.
var Buckets = []string{reflectionsBucket}

// Kinds of keys.
const (
	keyAdded  = "added"
	keyFound  = "found"
	keyRelist = "relist"
)

// registry follows the bucket and changes it. What it tells its handler is the only truth about the
// bucket in this process; it goes on being believed while the log is away. One that somebody else
// deleted is recreated with what this process knows: only RemoveReflection removes additions. It is
// safe for concurrent use.
type registry struct {
	bucket *stream.Follower
	// take is told every entry, in order and by one goroutine. No value: it is gone.
	take func(kind, name string, value []byte, revision uint64)

	mu      sync.Mutex              // guards the rest
	applied uint64                  // highest revision that take was told
	moved   chan struct{}           // closed when applied grows
	whole   bool                    // the initial entries have ended once
	told    map[string]bool         // keys told since the last end of initial entries
	held    map[string]stream.Entry // the keys that have a value
}

func newRegistry(log *stream.Conn, slog *slog.Logger, take func(kind, name string, value []byte, revision uint64)) *registry {
	g := &registry{take: take, moved: make(chan struct{}), held: map[string]stream.Entry{}, told: map[string]bool{}}
	g.bucket = stream.NewFollower(log.Bucket, stream.FollowConfig{
		Name: reflectionsBucket, Take: g.handle, Known: g.known, Forget: g.forget, Held: g.values, Log: slog,
	})
	return g
}

// storeTimeout is how long a call waits for the bucket: callers, who wait for longer, are told what
// is away.
const storeTimeout = 5 * time.Second

// forget is for a bucket that is gone.
func (g *registry) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key, e := range g.held {
		e.Revision = 0
		g.held[key] = e
	}
	g.applied = 0
	clear(g.told)
}

func (g *registry) known(key string) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[key].Revision
}

func (g *registry) values() map[string][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	values := map[string][]byte{}
	for key, e := range g.held {
		values[key] = e.Value
	}
	return values
}

// complete reports whether all that was in the bucket when this process began is known.
func (g *registry) complete() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.whole
}

// value is that of a key; nil when there is none.
func (g *registry) value(key string) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.held[key].Value
}

// handle is the bucket's handler. An empty entry ends the initial ones: what was held and has not
// come again is gone.
func (g *registry) handle(b *stream.Bucket, e stream.Entry) error {
	if e.Key == "" {
		for _, key := range g.missing(b) {
			kind, name, _ := strings.Cut(key, "/")
			g.take(kind, name, nil, 0)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.whole = true
		return nil
	}
	kind, name, ok := strings.Cut(e.Key, "/")
	if !ok {
		return nil // a later version's
	}
	if e.Deleted {
		e.Value = nil
	}
	g.take(kind, name, e.Value, e.Revision)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.bucket.Current(b) {
		return nil // told again by the next one
	}
	if g.told[e.Key] = true; len(e.Value) > 0 {
		e.Value = slices.Clone(e.Value)
		g.held[e.Key] = e
	} else {
		delete(g.held, e.Key)
	}
	g.applied = e.Revision
	close(g.moved)
	g.moved = make(chan struct{})
	return nil
}

// missing takes out what was held and has not come again. Of a bucket that was lost meanwhile
// nothing is said.
func (g *registry) missing(b *stream.Bucket) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.bucket.Current(b) {
		return nil
	}
	var out []string
	for key := range g.held {
		if !g.told[key] {
			out = append(out, key)
			delete(g.held, key)
		}
	}
	clear(g.told)
	return out
}

// follow returns once take was told what was written at revision, or when ctx ends: the change is
// made either way.
func (g *registry) follow(ctx context.Context, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for {
		g.mu.Lock()
		there, moved := g.applied >= revision, g.moved
		g.mu.Unlock()
		if there {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return
		}
	}
}

// edit changes what was added to a cluster: change gets a copy of it to change, and reports whether
// it did. Errors are those of change, or errStoreAway.
func (g *registry) edit(ctx context.Context, cluster string, change func(*additions) (bool, error)) error {
	return g.change(ctx, keyAdded+"/"+cluster, func(value []byte) ([]byte, bool, error) {
		set, err := decodeAdditions(value)
		if err != nil {
			return nil, false, storeAway(err)
		}
		if changed, err := change(&set); err != nil || !changed {
			return nil, false, err
		}
		value, err = set.encode()
		return value, true, err
	})
}

// change writes a key again as fn says, which gets what it holds and reports whether that changes.
// Errors are those of fn, or errStoreAway.
func (g *registry) change(ctx context.Context, key string, fn func([]byte) ([]byte, bool, error)) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	var refused error
	var revision uint64
	err := g.bucket.Change(ctx, key, func(value []byte) (next []byte, changed bool, err error) {
		next, changed, refused = fn(value)
		return next, changed, refused
	}, func(b *stream.Bucket, e stream.Entry) bool {
		revision = e.Revision
		return g.bucket.Current(b)
	})
	switch {
	case err == nil:
		g.follow(ctx, revision)
		return nil
	case refused != nil:
		return refused
	case errors.Is(err, stream.ErrOutcomeUnknown):
		return perhapsDone(err)
	}
	return notDone(err)
}

// additions are those of a cluster as they are now.
func (g *registry) additions(ctx context.Context, cluster string) (additions, error) {
	_, e, err := g.bucket.Get(ctx, keyAdded+"/"+cluster)
	if err != nil {
		return additions{}, storeAway(err)
	}
	set, err := decodeAdditions(e.Value)
	if err != nil {
		return additions{}, storeAway(err)
	}
	return set, nil
}

// request puts a key, whatever it holds.
func (g *registry) request(ctx context.Context, key string, value []byte) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	b, err := g.bucket.Open(ctx)
	if err != nil {
		return notDone(err)
	}
	revision, err := b.Put(ctx, key, value)
	if err != nil {
		g.bucket.Suspect()
		return perhapsDone(err)
	}
	g.follow(ctx, revision)
	return nil
}

// answered empties a key that is still at revision; a newer request stays.
func (g *registry) answered(ctx context.Context, key string, revision uint64) error {
	b, err := g.bucket.Open(ctx)
	if err != nil {
		return err
	}
	if _, err = b.Update(ctx, key, nil, revision); errors.Is(err, stream.ErrConflict) {
		return nil
	}
	return err
}

// storeContext bounds how long a call waits for the bucket, so that its caller is told what is away
// before its own time is over. Callers ask again by themselves when they are notified that
// something is away: each time gets its part of what is left.
func storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	timeout := storeTimeout
	if end, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, timeout)
}

// notDone is an error before anything was written; perhapsDone one of the write itself.
func notDone(err error) error { return storeAway(fmt.Errorf("nothing was changed: %w", err)) }

func perhapsDone(err error) error {
	return storeAway(fmt.Errorf("whether it was changed is not known, and asking again does no harm: %w", err))
}

func storeAway(err error) error { return fmt.Errorf("%w: %w", errStoreAway, err) }
