package authority

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/attempt"
	"github.com/deltaplane/deltaplane/internal/kube"
	"github.com/deltaplane/deltaplane/internal/telemetry"
)

// object is what the token of a service account stands and falls with: the account, and the pod or
// the secret that the token is bound to. Without a uid it is any of the name.
type object struct{ resource, namespace, name, uid string }

// boundResources are those of the objects that tokens are bound to and that are watched.
var boundResources = map[string]kube.Resource{
	"pods":    kube.Resource{Version: "v1", Name: "pods", Namespaced: true}.MetadataOnly(),
	"secrets": kube.Resource{Version: "v1", Name: "secrets", Namespaced: true}.MetadataOnly(),
}

const (
	// maxBound are the objects of a cluster that are watched at once. What is bound to others is
	// known by the next review.
	maxBound = 512
	// boundRefused is how long a server that may not watch an object does not try again.
	boundRefused = time.Minute
	// boundUnused is how long an object is of interest after the last review of a token.
	boundUnused = 2 * reviewedFor
)

// objectsOf are those that a token stands and falls with, which are watched from now on.
func (c *cluster) objectsOf(token string, id *access.Identity, now time.Time) []object {
	account, ok := accountOf(id)
	if !ok {
		return nil
	}
	bound := boundTo(token, account.namespace)
	if bound == (object{}) {
		return []object{account}
	}
	c.bearers.use(bound, now)
	return []object{account, bound}
}

// boundTo is what a token of a namespace is bound to by its claims, which are true: the cluster has
// reviewed it. It is zero for one that is bound to nothing.
func boundTo(token, namespace string) object {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return object{}
	}
	type ref struct{ Name, UID string }
	var claims struct {
		Kubernetes struct{ Pod, Secret ref } `json:"kubernetes.io"`
		Legacy     string                    `json:"kubernetes.io/serviceaccount/secret.name"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil {
		return object{}
	}
	switch k := claims.Kubernetes; {
	case k.Pod.Name != "":
		return object{"pods", namespace, k.Pod.Name, k.Pod.UID}
	case k.Secret.Name != "":
		return object{"secrets", namespace, k.Secret.Name, k.Secret.UID}
	case claims.Legacy != "":
		return object{"secrets", namespace, claims.Legacy, ""}
	}
	return object{}
}

// boundObjects are the objects that are watched. Its zero value is none, of which nobody watches.
type boundObjects struct {
	fresh chan object // to be watched

	mu   sync.Mutex
	used map[object]time.Time // when a token that is bound to it was reviewed last; guarded by mu
}

func newBoundObjects() boundObjects {
	return boundObjects{fresh: make(chan object, maxBound), used: map[object]time.Time{}}
}

// use has an object watched, unless it is or there are too many.
func (b *boundObjects) use(o object, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, watched := b.used[o]; !watched {
		if len(b.used) >= maxBound {
			return
		}
		select {
		case b.fresh <- o:
		default:
			return
		}
	}
	b.used[o] = now
}

// leave ends the watch of an object that is over, or was not of interest lately.
func (b *boundObjects) leave(o object, over bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !over && time.Since(b.used[o]) < boundUnused {
		return false
	}
	delete(b.used, o)
	return true
}

// followBound watches what tokens are bound to until ctx ends.
func (c *cluster) followBound(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case o := <-c.bearers.fresh:
			parts.Go(func() { c.followObject(ctx, o) })
		}
	}
}

// followObject watches an object as long as it is there and tokens that are bound to it are used.
func (c *cluster) followObject(ctx context.Context, o object) {
	for {
		began := time.Now()
		gone, err := c.watchObject(ctx, o)
		wait := rolesRetry - time.Since(began)
		switch {
		case ctx.Err() != nil:
			return
		case gone:
			c.withdraw(o, true)
			attempt.Sleep(ctx, withdrawnFor/2) // its tokens are not reviewed with success meanwhile
			c.bearers.leave(o, true)
			return
		case err != nil:
			c.log.Debug("changes of what a token is bound to are not seen", slog.String(telemetry.KeyCluster, c.name), slog.String("resource", o.resource), telemetry.Err(err))
			if wait = rolesRetry; kube.IsForbidden(err) {
				wait = boundRefused
			}
		}
		if !attempt.Sleep(ctx, wait) {
			return
		}
		if c.bearers.leave(o, false) {
			return
		}
	}
}

// watchObject watches once, from what is there, and reports whether the object is gone.
func (c *cluster) watchObject(ctx context.Context, o object) (gone bool, err error) {
	r, only := boundResources[o.resource], kube.Scope{Namespace: o.namespace, FieldSelector: "metadata.name=" + o.name}
	page, err := c.roles.List(ctx, r, kube.ListOptions{Scope: only})
	if err != nil {
		return false, err
	}
	if len(page.Items) == 0 || o.uid != "" && uidOf(page.Items[0]) != o.uid {
		return true, nil
	}
	w, err := c.roles.Watch(ctx, r, kube.WatchOptions{Scope: only, RV: page.RV, Timeout: rolesWatched})
	if err != nil {
		return false, err
	}
	defer w.Close()
	for {
		e, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case e.Type == kube.EventDeleted:
			return true, nil
		case e.Type != kube.EventBookmark && o.resource == "secrets": // its token may be another, or marked invalid
			c.withdraw(o, false)
		}
	}
}

func uidOf(raw []byte) string {
	var in struct {
		Metadata struct{ UID string }
	}
	_ = json.Unmarshal(raw, &in) // what cannot be read is another object
	return in.Metadata.UID
}
