package reflector

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/delta"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// cluster is one API server with what is known of it.
type cluster struct {
	name    string
	kube    *kube.Client
	catalog *catalog
}

// catalog shares the answers of discovery: however many collections look for their resource, the
// API server is asked once for all of them.
type catalog struct {
	kube *kube.Client

	mu    sync.Mutex
	pages map[string]*catalogPage // by group version, "" for everything; guarded by mu
}

// catalogPage is one answer of discovery.
type catalogPage struct {
	turn chan struct{} // cap 1: who holds it asks, or reads what follows

	resources []kube.Resource
	err       error
	asked     time.Time // before the answer came
}

func newCatalog(kc *kube.Client) *catalog {
	return &catalog{kube: kc, pages: map[string]*catalogPage{}}
}

// look returns an answer that was asked for after since, and what was asked then. A call that is
// under way is waited for.
func (c *catalog) look(ctx context.Context, key string, since time.Time, ask func(context.Context) ([]kube.Resource, error)) ([]kube.Resource, time.Time, error) {
	c.mu.Lock()
	p := c.pages[key]
	if p == nil {
		p = &catalogPage{turn: make(chan struct{}, 1)}
		c.pages[key] = p
	}
	c.mu.Unlock()
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, time.Time{}, ctx.Err()
	}
	defer func() { <-p.turn }()
	if p.asked.IsZero() || !p.asked.After(since) {
		asked := time.Now()
		resources, err := ask(ctx)
		if ctx.Err() != nil {
			return nil, time.Time{}, ctx.Err() // the caller's end, of no use to others
		}
		p.resources, p.err, p.asked = resources, err, asked
	}
	return p.resources, p.asked, p.err
}

// all are the resources of the preferred versions. Beside an error it returns what could be found.
func (c *catalog) all(ctx context.Context, since time.Time) ([]kube.Resource, time.Time, error) {
	return c.look(ctx, "", since, c.kube.DiscoverAll)
}

// find resolves a collection whose version, or version and group, may be missing, with answers that
// were asked for after since. It returns when the last of them was asked for.
func (c *catalog) find(ctx context.Context, col delta.Collection, since time.Time) (kube.Resource, time.Time, error) {
	if col.Version != "" {
		return c.in(ctx, col, since)
	}
	if col.Group == "" {
		core := col
		core.Version = "v1"
		if res, asked, err := c.in(ctx, core, since); err == nil {
			return res, asked, nil
		}
	}
	all, asked, err := c.all(ctx, since)
	for _, res := range all {
		if res.Name == col.Resource && (col.Group == "" || res.Group == col.Group) {
			return res, asked, nil
		}
	}
	return kube.Resource{}, asked, cmp.Or(err, fmt.Errorf("%w: %s", kube.ErrNotServed, col.Resource))
}

func (c *catalog) in(ctx context.Context, col delta.Collection, since time.Time) (kube.Resource, time.Time, error) {
	list, asked, err := c.look(ctx, col.APIVersion(), since, func(ctx context.Context) ([]kube.Resource, error) {
		return c.kube.Discover(ctx, col.Group, col.Version)
	})
	for _, res := range list {
		if res.Name == col.Resource {
			return res, asked, nil
		}
	}
	return kube.Resource{}, asked, cmp.Or(err, fmt.Errorf("%w: %s", kube.ErrNotServed, col.ResourceName()))
}
