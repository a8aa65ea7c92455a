package authority

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

const (
	roleGroup        = "rbac.authorization.k8s.io"
	bindingsResource = "rolebindings"
)

// roleResources are what RBAC decides by. Of most only the changes count.
var roleResources = []kube.Resource{
	roleResource("roles", true).MetadataOnly(), roleResource("clusterroles", false).MetadataOnly(),
	roleResource(bindingsResource, true), roleResource("clusterrolebindings", false).MetadataOnly(),
}

func roleResource(name string, namespaced bool) kube.Resource {
	return kube.Resource{Group: roleGroup, Version: "v1", Name: name, Namespaced: namespaced}
}

const (
	// rolesWatched is how long one watch of roles lasts.
	rolesWatched = 5 * time.Minute
	rolesRetry   = time.Second
	rolesPage    = 1 // a list is only for its version
)

// watched is a resource whose changes are followed.
type watched struct {
	resource kube.Resource
	// decides says that RBAC decides by it: while its changes are not seen, decisions are kept for a
	// moment only.
	decides bool
	// list reads what is there, and returns the version behind which to watch; nil where the version
	// alone counts.
	list func(context.Context, kube.Lister, kube.Resource) (rv string, err error)
	// take takes in an object as it is now, or that it is gone; nil where it counts only that there
	// was a change. After an error, or an event that cannot be read, it begins with a list again.
	take func(object []byte, gone bool) error
}

// watches are what is followed. Of roles no rule is read: that one has changed is enough to ask
// again. Of RoleBindings it is kept whom they name.
func (c *cluster) watches() []watched {
	all := []watched{{resource: accounts, take: c.account}}
	for _, r := range roleResources {
		w := watched{resource: r, decides: true}
		if r.Name == bindingsResource {
			w.list, w.take = c.bound.list, c.bound.put
		}
		all = append(all, w)
	}
	return all
}

// followRoles notes when what RBAC decides by changes, and what tokens stand and fall with, until
// ctx ends.
func (c *cluster) followRoles(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { c.followBound(ctx) })
	for _, w := range c.watches() {
		parts.Go(func() { c.followResource(ctx, w) })
	}
}

func (c *cluster) followResource(ctx context.Context, w watched) {
	rv := ""
	for {
		began := time.Now()
		err := c.watchRoles(ctx, w, &rv)
		wait := rolesRetry - time.Since(began) // none when the watch had its time
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			c.unfollow(w, err)
			wait = rolesRetry
		}
		if !attempt.Sleep(ctx, wait) {
			return
		}
	}
}

// watchRoles watches once, behind rv or from now on, and leaves in rv where the next watch begins.
func (c *cluster) watchRoles(ctx context.Context, of watched, rv *string) error {
	if *rv == "" {
		var err error
		if *rv, err = c.listRoles(ctx, of); err != nil {
			return err
		}
	}
	w, err := c.roles.Watch(ctx, of.resource, kube.WatchOptions{RV: *rv, Timeout: rolesWatched})
	if err != nil {
		if kube.IsExpired(err) {
			*rv = ""
		}
		return err
	}
	defer w.Close()
	c.follow(of)
	for {
		e, err := w.Next()
		switch {
		case errors.Is(err, kube.ErrBadEvent) && of.take == nil:
			c.alter()
			continue
		case errors.Is(err, kube.ErrBadEvent), err != nil && kube.IsExpired(err):
			*rv = ""
			return err
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if at, err := kube.EventRV(e.Object); err == nil {
			*rv = at
		}
		if e.Type == kube.EventBookmark {
			continue
		}
		if of.take != nil {
			if err := of.take(e.Object, e.Type == kube.EventDeleted); err != nil {
				*rv = ""
				return err
			}
		}
		if of.decides {
			c.alter()
		}
	}
}

// listRoles returns the version behind which to watch.
func (c *cluster) listRoles(ctx context.Context, of watched) (rv string, err error) {
	if of.list != nil {
		return of.list(ctx, c.roles, of.resource)
	}
	page, err := c.roles.List(ctx, of.resource, kube.ListOptions{Limit: rolesPage})
	return page.RV, err
}

// follow notes that changes of a resource are seen from now on. What happened before may have been
// missed.
func (c *cluster) follow(of watched) {
	if !of.decides {
		return
	}
	c.mu.Lock()
	was := c.followed[of.resource.Name]
	c.followed[of.resource.Name] = true
	delete(c.faults, of.resource.Name)
	c.mu.Unlock()
	if !was {
		c.alter()
	}
}

func (c *cluster) unfollow(of watched, err error) {
	if !of.decides { // what is said of tokens is kept for a short time anyway
		c.log.Debug("changes of service accounts are not seen", slog.String(telemetry.KeyCluster, c.name), telemetry.Err(err))
		return
	}
	resource := of.resource.Name
	c.mu.Lock()
	_, known := c.faults[resource]
	delete(c.followed, resource)
	c.faults[resource] = err
	c.mu.Unlock()
	c.alter()
	if !known {
		c.log.Warn("changes of roles are not seen: decisions are kept for a moment only",
			slog.String(telemetry.KeyCluster, c.name), slog.String("resource", resource), telemetry.Err(err))
	}
}
