package reflector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/stream"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// reflectionsBucket keeps beside the log what callers asked all reflectors to do:
//
//	added/CLUSTER      the additions. One key for a cluster makes a resource that two callers add at once a conflict, also when they write
//	                   it differently
//	found/CLUSTER      the collections that "*" found
//	relist/COLLECTION  a list is asked for; empty once the leader has begun it
const reflectionsBucket = "deltaplane-reflections"

// Kinds of keys.
const (
	keyAdded  = "added"
	keyFound  = "found"
	keyRelist = "relist"
)

// registry follows the bucket and changes it. What it tells its handler is the only truth about the bucket in this process; it goes on being
// believed while the log is away. It is safe for concurrent use.
type registry struct {
	log  *stream.Conn
	slog *slog.Logger
	// take is told every entry, in order and by one goroutine. No value: it is gone.
	take func(kind, name string, value []byte, revision uint64)

	mu      sync.Mutex // guards the rest
	bucket  *stream.Bucket
	applied uint64            // highest revision that take was told
	moved   chan struct{}     // closed when applied grows
	told    map[string]bool   // keys told since the last end of initial entries
	held    map[string][]byte // values of the keys that have one
	lost    bool              // the bucket is gone, and what it held was not put back yet
	look    chan struct{}     // cap 1; a call found the bucket wanting
}

func newRegistry(log *stream.Conn, slog *slog.Logger, take func(kind, name string, value []byte, revision uint64)) *registry {
	return &registry{log: log, slog: slog, take: take, moved: make(chan struct{}), held: map[string][]byte{}, told: map[string]bool{}, look: make(chan struct{}, 1)}
}

// lookEvery is how often the bucket is looked at: whoever deletes it tells nobody.
const lookEvery = 5 * time.Second

// storePatience is how long a call waits for the bucket: callers, who wait for longer, are told what is away.
const storePatience = 5 * time.Second

// errBucketLost ends the watch of a bucket that is gone.
var errBucketLost = errors.New("reflector: the bucket of what was added is gone")

// run follows the bucket until ctx ends. One that somebody else deleted, or that a server lost, is made anew with the additions that this
// process knows: only RemoveReflection removes them. Of several processes the first one's word counts.
func (g *registry) run(ctx context.Context) {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause, failing := least, false
	for ctx.Err() == nil {
		b, err := g.open(ctx)
		if err == nil {
			err = g.putBack(ctx, b)
		}
		if err == nil {
			failing, pause = false, least
			err = g.watch(ctx, b)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errBucketLost):
			g.slog.LogAttrs(ctx, slog.LevelWarn, "the bucket of what was added is gone, and is made anew", slog.Int(telemetry.KeyCount, g.lose()))
			continue
		}
		if !failing {
			failing = true
			g.slog.LogAttrs(ctx, slog.LevelWarn, "cannot read what was added to the reflections", telemetry.Err(err))
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, most)
	}
}

// watch follows b until ctx ends or it is lost.
func (g *registry) watch(ctx context.Context, b *stream.Bucket) error {
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
			case <-g.look:
			case <-g.log.Reconnected():
			case <-ctx.Done():
				return
			}
			if gone, err := b.Lost(ctx); err == nil && gone {
				cancel(errBucketLost)
			}
		}
	}()
	err := b.Watch(ctx, func(e stream.Entry) error {
		if e.Key == "" && g.lacks() { // of a bucket made anew, all that was held would be missing
			if gone, err := b.Lost(ctx); gone || err != nil {
				return cmp.Or(err, errBucketLost)
			}
		}
		return g.handle(e)
	})
	lost := errors.Is(context.Cause(ctx), errBucketLost)
	cancel(nil)
	<-looks
	if lost {
		return errBucketLost
	}
	return err
}

// lose forgets the bucket; it returns how many keys are to be put back.
func (g *registry) lose() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bucket, g.lost, g.applied = nil, true, 0
	clear(g.told)
	return len(g.held)
}

// putBack writes into a bucket made anew what the lost one held. What is there already is newer.
func (g *registry) putBack(ctx context.Context, b *stream.Bucket) error {
	g.mu.Lock()
	lost, held := g.lost, maps.Clone(g.held)
	g.mu.Unlock()
	if !lost {
		return nil
	}
	for key, value := range held {
		if _, err := b.Update(ctx, key, value, 0); err != nil && !errors.Is(err, stream.ErrConflict) {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = false
	return nil
}

func (g *registry) open(ctx context.Context) (*stream.Bucket, error) {
	g.mu.Lock()
	b := g.bucket
	g.mu.Unlock()
	if b != nil {
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b, err := g.log.Bucket(ctx, reflectionsBucket, 0)
	if err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bucket = b
	return b, nil
}

// handle is the bucket's handler. An empty entry ends the initial ones: what was held and has not come again is gone.
func (g *registry) handle(e stream.Entry) error {
	if e.Key == "" {
		for _, key := range g.missing() {
			kind, name, _ := strings.Cut(key, "/")
			g.take(kind, name, nil, 0)
		}
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
	if g.told[e.Key] = true; len(e.Value) > 0 {
		g.held[e.Key] = slices.Clone(e.Value)
	} else {
		delete(g.held, e.Key)
	}
	g.applied = e.Revision
	close(g.moved)
	g.moved = make(chan struct{})
	return nil
}

// lacks reports whether something that was held has not come again.
func (g *registry) lacks() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for key := range g.held {
		if !g.told[key] {
			return true
		}
	}
	return false
}

func (g *registry) missing() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
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

// follow returns once take was told what was written at revision, or when ctx ends: the change is made either way.
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

// edit changes what was added to a cluster: change gets a copy of it to change, and reports whether it did. Errors are those of change, or
// errStoreAway.
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

// change writes a key anew as fn says, which gets what it holds and reports whether that changes. Errors are those of fn, or errStoreAway.
func (g *registry) change(ctx context.Context, key string, fn func([]byte) ([]byte, bool, error)) error {
	ctx, cancel := patiently(ctx)
	defer cancel()
	b, err := g.open(ctx)
	if err != nil {
		return notDone(err)
	}
	for range 20 {
		e, err := b.Get(ctx, key)
		if err != nil && !errors.Is(err, stream.ErrNoKey) {
			select {
			case g.look <- struct{}{}:
			default:
			}
			return notDone(err)
		}
		value, changed, err := fn(e.Value)
		if err != nil || !changed {
			return err
		}
		revision, err := b.Update(ctx, key, value, e.Revision)
		switch {
		case err == nil:
			g.follow(ctx, revision)
			return nil
		case !errors.Is(err, stream.ErrConflict):
			return perhapsDone(err)
		}
	}
	return notDone(errors.New("others keep changing it"))
}

// additions are those of a cluster as they are now.
func (g *registry) additions(ctx context.Context, cluster string) (additions, error) {
	b, err := g.open(ctx)
	if err != nil {
		return additions{}, storeAway(err)
	}
	e, err := b.Get(ctx, keyAdded+"/"+cluster)
	if err != nil && !errors.Is(err, stream.ErrNoKey) {
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
	ctx, cancel := patiently(ctx)
	defer cancel()
	b, err := g.open(ctx)
	if err != nil {
		return notDone(err)
	}
	revision, err := b.Put(ctx, key, value)
	if err != nil {
		return perhapsDone(err)
	}
	g.follow(ctx, revision)
	return nil
}

// answered empties a key that is still at revision; a newer request stays.
func (g *registry) answered(ctx context.Context, key string, revision uint64) error {
	b, err := g.open(ctx)
	if err != nil {
		return err
	}
	if _, err = b.Update(ctx, key, nil, revision); errors.Is(err, stream.ErrConflict) {
		return nil
	}
	return err
}

// patiently bounds how long a call waits for the bucket, so that its caller is told what is away before its own time is over. Callers ask again by
// themselves when they are told that something is away: each time gets its part of what is left.
func patiently(ctx context.Context) (context.Context, context.CancelFunc) {
	patience := storePatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2)
	}
	return context.WithTimeout(ctx, patience)
}

// notDone is an error before anything was written; perhapsDone one of the write itself.
func notDone(err error) error { return storeAway(fmt.Errorf("nothing was changed: %w", err)) }

func perhapsDone(err error) error {
	return storeAway(fmt.Errorf("whether it was changed is not known, and asking again does no harm: %w", err))
}

func storeAway(err error) error { return fmt.Errorf("%w: %w", errStoreAway, err) }
