package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/kube"
)

// prober asks the API server how far it is. Who asks shares an answer only where the question began
// after it asked.
type prober struct {
	ask  func(context.Context) (uint64, error)
	life context.Context //nolint:containedctx // of questions that outlive who asked them

	mu   sync.Mutex
	next *probe // not begun yet; guarded by mu
	busy bool   // one is under way; guarded by mu
}

type probe struct {
	done    chan struct{}
	version uint64
	err     error
}

const probeTimeout = 5 * time.Second

// Recent is a version at which, or after which, everything is that the API server had acknowledged
// when it was called.
func (m *Mirror) Recent(ctx context.Context) (uint64, error) { return m.probes.share(ctx) }

func (p *prober) share(ctx context.Context) (uint64, error) {
	p.mu.Lock()
	if p.next == nil {
		p.next = &probe{done: make(chan struct{})}
	}
	one := p.next
	if !p.busy {
		p.busy = true
		go p.run()
	}
	p.mu.Unlock()
	select {
	case <-one.done:
		return one.version, one.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (p *prober) run() {
	for {
		p.mu.Lock()
		one := p.next
		p.next, p.busy = nil, one != nil
		p.mu.Unlock()
		if one == nil {
			return
		}
		within, cancel := context.WithTimeout(p.life, probeTimeout)
		one.version, one.err = p.ask(within)
		cancel()
		close(one.done)
	}
}

// small is how many objects a collection may have to be listed as a whole by a probe.
const small = 100

// ask reads the version of the most recent list of the same resource: others may be in an etcd of
// their own. That of a small collection is read to its end: a view that is the same is known to be
// the state at that version, although no event has said so.
func (m *Mirror) ask(ctx context.Context) (uint64, error) {
	limit, known := 1, uint64(0)
	if v := m.view.Load(); v != nil {
		if v.history.epoch == m.epoch.Load() { // versions of another one mean nothing
			known = v.Upper
		}
		if v.Len() <= small {
			limit = small + 1
		}
	}
	page, err := m.source.List(ctx, m.Resource.MetadataOnly(), kube.ListOptions{Limit: limit})
	if err != nil {
		return 0, fmt.Errorf("gateway: the most recent version of %s: %w", m.collection, err)
	}
	version, ok := number(page.RV)
	if !ok {
		return 0, fmt.Errorf("%w: resource version %q", kube.ErrBadAnswer, page.RV)
	}
	if version < known { // what was seen has never been
		m.restored.Store(true)
		return 0, fmt.Errorf("%w: %s is at %d, and %d was seen before", errRestored, m.collection, version, known)
	}
	if limit > 1 && page.Continue == "" {
		m.prove(version, page.Items)
	}
	return version, nil
}

// errRestored says that the API server is behind what it has shown.
var errRestored = errors.New("gateway: the API server was restored")

// Restored reports whether the API server is behind what it has shown, as after its etcd was
// restored. Until the index begins a new epoch with it, nothing that is known here is true.
func (m *Mirror) Restored() bool { return m.restored.Load() }

// proof is all that the API server had at a version.
type proof struct {
	version uint64
	objects []proven
}

type proven struct{ key, uid, version string }

// prove takes a whole list as proof of what the state at its version is: of the latest view, or of
// the one that comes.
func (m *Mirror) prove(version uint64, items [][]byte) {
	p := &proof{version: version, objects: make([]proven, len(items))}
	for i, item := range items {
		metadata := Member(item, "metadata")
		p.objects[i] = proven{string(kube.Key(item)), Text(metadata, "uid"), Text(metadata, "resourceVersion")}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proof == nil || m.proof.version < version {
		m.proof = p
	}
	if was := m.view.Load(); was != nil {
		if v := *was; p.raises(&v) {
			m.set(&v, nil)
		}
	}
}

// raises makes a view one of the proof's version where it is the same state, and reports whether it
// did.
func (p *proof) raises(v *View) bool {
	if p == nil || v.Revision >= p.version || v.Len() != len(p.objects) {
		return false
	}
	for _, one := range p.objects {
		if o := v.Get(one.key); o == nil || o.RV() != one.version || o.UID() != one.uid {
			return false
		}
	}
	v.Revision = p.version
	return true
}

const (
	// enough misses in a row have lists forwarded without a question, missingFor long.
	enough     = 3
	missingFor = time.Second
)

// Missed notes whether a list that had to be recent could not be answered.
func (m *Mirror) Missed(missed bool) {
	if !missed {
		m.misses.Store(0)
		return
	}
	if m.misses.Add(1) >= enough {
		m.missing.Store(time.Now().Add(missingFor).UnixNano())
	}
}

// Missing reports whether the collection keeps missing the versions that lists need, as a quiet one
// does.
func (m *Mirror) Missing() bool { return time.Now().UnixNano() < m.missing.Load() }
