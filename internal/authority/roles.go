package authority

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

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

// followRoles notes when what RBAC decides by changes, and service accounts, until ctx ends. It
// reads no rules: that a role has changed is enough to ask again. Of RoleBindings it keeps whom
// they name.
func (c *cluster) followRoles(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	for _, r := range append(slices.Clip(roleResources), accounts) {
		parts.Go(func() { c.followResource(ctx, r) })
	}
}

func (c *cluster) followResource(ctx context.Context, r kube.Resource) {
	rv := ""
	for ctx.Err() == nil {
		err := c.watchRoles(ctx, r, &rv)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			continue // its time was over
		}
		c.unfollow(r.Name, err)
		select {
		case <-ctx.Done():
		case <-time.After(rolesRetry):
		}
	}
}

// watchRoles watches once, behind rv or from now on, and leaves in rv where the next watch begins.
func (c *cluster) watchRoles(ctx context.Context, r kube.Resource, rv *string) error {
	if *rv == "" {
		var err error
		if *rv, err = c.listRoles(ctx, r); err != nil {
			return err
		}
	}
	w, err := c.roles.Watch(ctx, r, kube.WatchOptions{RV: *rv, Timeout: rolesWatched})
	if err != nil {
		if kube.IsExpired(err) {
			*rv = ""
		}
		return err
	}
	defer w.Close()
	c.follow(r.Name)
	for {
		e, err := w.Next()
		switch {
		case errors.Is(err, kube.ErrBadEvent):
			if r.Name == bindingsResource { // whom does it name?
				*rv = ""
				return err
			}
			if r.Name != accountsResource {
				c.alter()
			}
			continue
		case err != nil && kube.IsExpired(err):
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
		if r.Name == accountsResource {
			if err := c.account(e.Object); err != nil {
				return err
			}
			continue
		}
		if r.Name == bindingsResource {
			if err := c.bound.put(e.Object, e.Type == kube.EventDeleted); err != nil {
				*rv = ""
				return err
			}
		}
		c.alter()
	}
}

// listRoles returns the version behind which to watch.
func (c *cluster) listRoles(ctx context.Context, r kube.Resource) (rv string, err error) {
	if r.Name == bindingsResource {
		return c.bound.list(ctx, c.roles, r)
	}
	page, err := c.roles.List(ctx, r, kube.ListOptions{Limit: rolesPage})
	return page.RV, err
}

// follow notes that changes of a resource are seen from now on. What happened before may have been
// missed.
func (c *cluster) follow(resource string) {
	if resource == accountsResource {
		return
	}
	c.mu.Lock()
	was := c.followed[resource]
	c.followed[resource] = true
	delete(c.faults, resource)
	c.mu.Unlock()
	if !was {
		c.alter()
	}
}

func (c *cluster) unfollow(resource string, err error) {
	if resource == accountsResource { // what is said of tokens is kept for a short time anyway
		c.log.Debug("changes of service accounts are not seen", slog.String(telemetry.KeyCluster, c.name), telemetry.Err(err))
		return
	}
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
