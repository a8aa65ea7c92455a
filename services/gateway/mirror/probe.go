package mirror

import (
	"context"
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

// ask reads the version of the most recent list of the same resource: others may be in an etcd of
// their own.
func (m *Mirror) ask(ctx context.Context) (uint64, error) {
	page, err := m.source.List(ctx, m.Resource.MetadataOnly(), kube.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("gateway: the most recent version of %s: %w", m.collection, err)
	}
	version, ok := number(page.RV)
	if !ok {
		return 0, fmt.Errorf("%w: resource version %q", kube.ErrBadAnswer, page.RV)
	}
	return version, nil
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
