package authority

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/deltaplane/deltaplane/core/access"
	"github.com/deltaplane/deltaplane/internal/kube"
)

// accounts are the users that a cluster's own tokens name.
var accounts = kube.Resource{Version: "v1", Name: "serviceaccounts", Namespaced: true}.MetadataOnly()

// account takes an event of a service account: what was said of its tokens counts no more.
func (c *cluster) account(object []byte) error {
	var o struct {
		Metadata struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return fmt.Errorf("%w: a service account: %w", kube.ErrBadAnswer, err)
	}
	if c.tokens.touch(access.ServiceAccountPrefix+o.Metadata.Namespace+":"+o.Metadata.Name, time.Now()) {
		c.changed()
	}
	return nil
}

// touch forgets what was said of a user's tokens, and reports whether there was anything. The API
// server learns of a change of its users by a watch too, and may do so after us, so what it says of
// this user is kept for a moment only, for a while.
func (t *reviewedTokens) touch(user string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for u, at := range t.touched {
		if now.Sub(at) > unsettledAfter {
			delete(t.touched, u)
		}
	}
	found := false
	for _, e := range t.tokens {
		select {
		case <-e.done:
			if e.id != nil && e.id.User == user {
				e.until, found = now, true
			}
		default: // it is being reviewed, and may be of the user
			found = true
		}
	}
	if found {
		t.touched[user] = now
	}
	return found
}

// keep is how long what the cluster says of a user's token is kept. t.mu is locked.
func (t *reviewedTokens) keep(user string, now time.Time) time.Duration {
	if at, ok := t.touched[user]; ok && now.Sub(at) < unsettledAfter {
		return unsettledFor
	}
	return reviewedFor
}
