package mirror

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// ahead finds out that nothing has happened. A quiet collection hears of versions that others have
// caused once a minute; while somebody waits for one, a short watch of the API server asks for it.
type ahead struct {
	mu      sync.Mutex
	waiting int  // guarded by mu
	running bool // guarded by mu
}

const (
	// aheadWatch is how long one short watch lasts. An API server sends a bookmark before its end.
	aheadWatch = 3 * time.Second
	aheadRetry = time.Second
	// aheadPause is between two lists of a small collection.
	aheadPause = 100 * time.Millisecond
	// aheadAfter is how long events are waited for: mostly they come.
	aheadAfter = 20 * time.Millisecond
)

// ReachAhead is [Mirror.Reach] for somebody who waits for long, also where the collection is quiet.
func (m *Mirror) ReachAhead(ctx context.Context, revision uint64) *View {
	soon, cancel := context.WithTimeout(ctx, aheadAfter)
	v := m.Reach(soon, revision)
	cancel()
	if v != nil || ctx.Err() != nil {
		return v
	}
	a := &m.ahead
	a.mu.Lock()
	a.waiting++
	if !a.running {
		a.running = true
		go m.lookAhead(m.life)
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.waiting--
		a.mu.Unlock()
	}()
	return m.Reach(ctx, revision)
}

// wanted reports whether anybody waits still; the goroutine that asks ends when nobody does.
func (a *ahead) wanted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running = a.waiting > 0
	return a.running
}

func (m *Mirror) lookAhead(ctx context.Context) {
	for m.ahead.wanted() && ctx.Err() == nil {
		if err := m.short(ctx); err != nil {
			m.log.Debug("nobody says whether a quiet collection has changed", telemetry.Err(err), slog.Duration("retry", aheadRetry))
			attempt.Sleep(ctx, aheadRetry)
		}
	}
}

// short watches behind the latest view for a bookmark, and claims it. A small collection is listed
// instead.
func (m *Mirror) short(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*aheadWatch)
	defer cancel()
	v := m.view.Load()
	if v.Len() <= small {
		attempt.Sleep(ctx, aheadPause)
		_, err := m.Recent(ctx)
		return err
	}
	w, err := m.source.Watch(ctx, m.Resource.MetadataOnly(), kube.WatchOptions{RV: formatted(v.Revision), Timeout: aheadWatch})
	if err != nil {
		return err
	}
	defer w.Close()
	shown := v.Revision
	for {
		e, err := w.Next()
		if err != nil {
			return err
		}
		rv, err := kube.EventRV(e.Object)
		if err != nil {
			return err
		}
		version, ok := number(rv)
		if !ok {
			return kube.ErrBadAnswer
		}
		if e.Type == kube.EventBookmark {
			m.claim(ctx, shown, version)
			return nil
		}
		shown = version
	}
}

// claim makes the latest view one of a later version: the API server has shown that nothing
// happened behind shown up to there. What it has shown must be in the view.
func (m *Mirror) claim(ctx context.Context, shown, version uint64) {
	if m.Reach(ctx, shown) == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.view.Load()
	if was.Revision < shown || was.Upper > version || was.Revision >= version {
		return
	}
	v := *was
	v.Revision = version
	m.set(&v, nil)
}
