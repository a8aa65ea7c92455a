package authority

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
)

const (
	// reviewTimeout bounds one question to a cluster.
	reviewTimeout = 5 * time.Second
	// maxReviews bounds the questions under way to one cluster, of each kind.
	maxReviews = 64
)

// roleWatcher is what following the roles of a cluster needs.
type roleWatcher interface {
	kube.Lister
	Watch(ctx context.Context, r kube.Resource, o kube.WatchOptions) (*kube.Watch, error)
}

// cluster asks one API server.
type cluster struct {
	name     string
	audience string // of tokens; empty for the API server's own
	reviews  kube.Reviewer
	roles    roleWatcher
	log      *slog.Logger
	metrics  *metrics
	changed  func()        // decisions may have become others
	ended    func()        // tokens may have
	asking   chan struct{} // one place for each access review under way
	tokens   reviewedTokens
	bearers  boundObjects
	bound    bindings

	mu       sync.Mutex
	altered  time.Time        // when a role or binding changed last; guarded by mu
	followed map[string]bool  // resources whose changes are seen; guarded by mu
	faults   map[string]error // why others are not; guarded by mu
}

func newCluster(name string, client *kube.Client, log *slog.Logger, changed, ended func()) *cluster {
	return &cluster{
		name: name, audience: Audience, reviews: client, roles: client, log: log, changed: changed, ended: ended, asking: make(chan struct{}, maxReviews),
		tokens: newReviewedTokens(), bearers: newBoundObjects(), bound: newBindings(), followed: map[string]bool{}, faults: map[string]error{},
	}
}

// review asks what the cluster's authorizers say.
func (c *cluster) review(ctx context.Context, id *access.Identity, a access.Attributes) *decision {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	select {
	case c.asking <- struct{}{}:
		defer func() { <-c.asking }()
	case <-ctx.Done():
		return failed(errors.New("the cluster does not answer access reviews in time"))
	}
	asked := time.Now()
	allowed, reason, err := c.reviews.ReviewAccess(ctx, id, a)
	c.metrics.reviewed("access", err, allowed)
	if err != nil {
		return failed(fmt.Errorf("access review by cluster %s: %w", c.name, err))
	}
	return &decision{allowed: allowed, reason: reason, until: asked.Add(c.keep(asked))}
}

func failed(err error) *decision { return &decision{err: err, until: time.Now().Add(failedFor)} }

// keep is how long an answer is kept that was asked for at a time.
func (c *cluster) keep(asked time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.followed) < len(roleResources) || asked.Sub(c.altered) < unsettledAfter {
		return unsettledFor
	}
	return decidedFor
}

// alter notes that a role or binding changed, or may have.
func (c *cluster) alter() {
	c.mu.Lock()
	c.altered = time.Now()
	c.mu.Unlock()
	c.changed()
}

// check says why decisions are not kept for long, or nil.
func (c *cluster) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, err := range c.faults {
		return fmt.Errorf("cluster %s: changes of %s are not seen, so each decision is kept for %v only: %w", c.name, name, unsettledFor, err)
	}
	return nil
}
