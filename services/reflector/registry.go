package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
//	relist/COLLECTION  a list is asked for; empty once the leader has begun it
const reflectionsBucket = "deltaplane-reflections"

// Kinds of keys.
const (
	keyAdded  = "added"
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
	applied uint64          // highest revision that take was told
	moved   chan struct{}   // closed when applied grows
	told    map[string]bool // keys told since the last end of initial entries
	held    map[string]bool // keys that have a value
}

func newRegistry(log *stream.Conn, slog *slog.Logger, take func(kind, name string, value []byte, revision uint64)) *registry {
	return &registry{log: log, slog: slog, take: take, moved: make(chan struct{}), held: map[string]bool{}, told: map[string]bool{}}
}

// run follows the bucket until ctx ends.
func (g *registry) run(ctx context.Context) {
	const least, most = 100 * time.Millisecond, 5 * time.Second
	pause, failing := least, false
	for ctx.Err() == nil {
		b, err := g.open(ctx)
		if err == nil {
			failing, pause = false, least
			err = b.Watch(ctx, g.handle)
		}
		if ctx.Err() != nil {
			return
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
		g.held[e.Key] = true
	} else {
		delete(g.held, e.Key)
	}
	g.applied = e.Revision
	close(g.moved)
	g.moved = make(chan struct{})
	return nil
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
	b, err := g.open(ctx)
	if err != nil {
		return storeAway(err)
	}
	key := keyAdded + "/" + cluster
	for range 20 {
		set, at, err := g.read(ctx, b, key)
		if err != nil {
			return err
		}
		if changed, err := change(&set); err != nil || !changed {
			return err
		}
		value, err := set.encode()
		if err != nil {
			return err
		}
		revision, err := b.Update(ctx, key, value, at)
		switch {
		case err == nil:
			g.follow(ctx, revision)
			return nil
		case !errors.Is(err, stream.ErrConflict):
			return storeAway(err)
		}
	}
	return storeAway(errors.New("others keep changing them"))
}

// additions are those of a cluster as they are now.
func (g *registry) additions(ctx context.Context, cluster string) (additions, error) {
	b, err := g.open(ctx)
	if err != nil {
		return additions{}, storeAway(err)
	}
	set, _, err := g.read(ctx, b, keyAdded+"/"+cluster)
	return set, err
}

func (g *registry) read(ctx context.Context, b *stream.Bucket, key string) (additions, uint64, error) {
	e, err := b.Get(ctx, key)
	if err != nil && !errors.Is(err, stream.ErrNoKey) {
		return additions{}, 0, storeAway(err)
	}
	set, err := decodeAdditions(e.Value)
	if err != nil {
		return additions{}, 0, storeAway(err)
	}
	return set, e.Revision, nil
}

// request puts a key, whatever it holds.
func (g *registry) request(ctx context.Context, key string, value []byte) error {
	b, err := g.open(ctx)
	if err != nil {
		return storeAway(err)
	}
	revision, err := b.Put(ctx, key, value)
	if err != nil {
		return storeAway(err)
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

func storeAway(err error) error { return fmt.Errorf("%w: %w", errStoreAway, err) }
