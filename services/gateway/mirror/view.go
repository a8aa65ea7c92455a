package mirror

import (
	"context"
	"time"

	"github.com/deltaplane/deltaplane/core/store"
)

// View is the exact state at every version from Upper to Revision. It never changes.
type View struct {
	*store.Snapshot
	// Revision: every event at or below it is in the view. Upper: none above it is.
	Revision, Upper uint64

	history *History
	next    uint64 // number of the first event behind it
	later   chan struct{}
}

// History is what follows the view.
func (v *View) History() *History { return v.history }

// Later is closed when there is a later view.
func (v *View) Later() <-chan struct{} { return v.later }

// View is the latest one; nil before the first.
func (m *Mirror) View() *View { return m.view.Load() }

// At is the view of a version that a list was begun at; nil when it is not kept any more.
func (m *Mirror) At(version uint64) *View {
	if v := m.view.Load(); v != nil && v.Upper <= version && version <= v.Revision {
		return v
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if k, ok := m.kept[version]; ok {
		k.until = time.Now().Add(keptFor)
		m.kept[version] = k
		return k.view
	}
	return nil
}

const (
	// keptFor is how long a list may rest between two of its pages, as long as etcd keeps versions.
	keptFor = 5 * time.Minute
	maxKept = 32
)

type kept struct {
	view  *View
	until time.Time
}

// Keep keeps a view for further pages of a list at a version.
func (m *Mirror) Keep(v *View, version uint64) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if v.history.epoch != m.epoch.Load() {
		return // its versions mean nothing any more
	}
	m.kept[version] = kept{v, now.Add(keptFor)}
	var oldest uint64
	for at, k := range m.kept {
		if now.After(k.until) {
			delete(m.kept, at)
		} else if oldest == 0 || k.until.Before(m.kept[oldest].until) {
			oldest = at
		}
	}
	if len(m.kept) > maxKept {
		delete(m.kept, oldest)
	}
}

// Reach waits for a view at a revision or later that lacks nothing that was written through the
// gateway, until ctx ends: then it is nil.
func (m *Mirror) Reach(ctx context.Context, revision uint64) *View {
	for {
		v := m.view.Load()
		if v == nil {
			select {
			case <-m.filled:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if v.Revision >= revision && m.floor.met(v) {
			return v
		}
		select {
		case <-v.later:
		case <-ctx.Done():
			return nil
		}
	}
}

// Behind is [History.Behind] of the latest view. A version that the view has not reached is waited
// for until ctx ends.
func (m *Mirror) Behind(ctx context.Context, version uint64, namespace string) (*Reader, bool) {
	if m.view.Load().Revision < version {
		m.ReachAhead(ctx, version)
	}
	return m.view.Load().history.Behind(version, namespace)
}
